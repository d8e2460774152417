#pragma once
// defines: CpuKernels, cpu_kernels() — single-threaded inner loops, compiled once per instruction set.
// kernels.inc is built for x86-64 (baseline), x86-64-v3 (AVX2) and x86-64-v4 (AVX-512) without
// contraction, so every set gives the same bits; gemm_kernel.inc may use FMA and does not promise that.
// MT_ISA=base|v3|v4 forces one. (GCC's target_clones was rejected: it picks SSE2 on AMD.)

#include <cstdint>

#include "ops/adamw_step.h"

namespace megatrain {

struct CpuKernels {
  const char* isa;
  void (*adamw)(int64_t n, uint16_t* hi, uint16_t* lo, float* m, float* v, const float* grad,
                const AdamWStep* step);
  /// C[m, n] (+)= op(A)·op(B), k deep; leading dimensions in elements.
  void (*gemm)(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
               const float* b, int64_t ldb, float beta, float* c, int64_t ldc);
  void (*gelu)(int64_t n, bool tanh, const float* x, float* y);
  void (*gelu_backward)(int64_t n, bool tanh, const float* x, float* dy);
  /// RMS norm where `mean` is null.
  void (*layer_norm_row)(int64_t c, const float* x, const float* w, const float* b, float eps, float* y,
                         float* mean, float* rstd);
  /// `mean` is null for RMS norm, else this row's.
  void (*layer_norm_backward_row)(int64_t c, const float* x, const float* w, const float* mean, float rstd,
                                  const float* dy, float* dx, bool accumulate);
  /// Adds rows [0, n) of columns [0, width) of dy·xhat and dy into dweight and dbias (dbias may be null).
  void (*layer_norm_backward_columns)(int64_t n, int64_t c, int64_t width, const float* x, const float* mean,
                                      const float* rstd, const float* dy, float* dweight, float* dbias);
  /// y = silu(gate)·up
  void (*swiglu)(int64_t n, const float* gate, const float* up, float* y);
  /// gate and up become their gradients.
  void (*swiglu_backward)(int64_t n, float* gate, float* up, const float* dy);
  /// Pairs (i, half + i) turned by the angle whose cosine and sine are given; in may be out.
  void (*rotate)(int64_t half, const float* cosine, const float* sine, const float* in, float* out);
  void (*column_sum)(int64_t n, int64_t c, int64_t width, const float* x, float* out);
  /// y = a·x + y
  void (*axpy)(int64_t n, float a, const float* x, float* y);
  void (*add)(int64_t n, const float* a, const float* b, float* y);
  float (*max)(int64_t n, const float* x);
  float (*dot)(int64_t n, const float* x, const float* y);
  /// x = exp(x - shift); returns the sum.
  float (*exp_sum)(int64_t n, float shift, float* x);
  void (*scale)(int64_t n, float a, float* x);
  double (*sum)(int64_t n, const float* x, bool squared);
  void (*join)(int64_t n, const uint16_t* hi, const uint16_t* lo, float* out);
};

/// The kernels for this processor (or for MT_ISA).
const CpuKernels& cpu_kernels();
/// A named set ("base", "v3", "v4"), or null when this processor lacks it.
const CpuKernels* cpu_kernels_for(const char* isa);

}  // namespace megatrain
