#pragma once
// defines: CudnnAttention — scaled dot-product attention by cuDNN 9, in one translation unit (its headers
// take most of a minute to compile).

#include <cuda_runtime.h>

#include <memory>

#include "ops/ops.h"

namespace megatrain {

class CudnnAttention {
 public:
  CudnnAttention();
  ~CudnnAttention();
  /// True for what cuDNN computes here: bf16, no dropout, T a multiple of 128, head_dim a multiple of 8 up to
  /// 128. (cuDNN 9's Hopper backward gives NaN for some masks at T mod 128 = 64; other T take our own
  /// kernel.)
  static bool supports(DType type, int64_t seq_len, int64_t head_dim, double dropout);
  /// Workspace for whole sequences where that is at most 1 GiB, else for as many heads as fit; at least one.
  /// The deterministic backward before cuDNN 9.25 materialises dP: 2 bytes · heads · T².
  static int64_t workspace_bytes(int64_t batch, int64_t seq_len, int64_t num_heads);
  void forward(cudaStream_t stream, const AttentionArgs& args, void* workspace, int64_t bytes);
  void backward(cudaStream_t stream, const AttentionBackwardArgs& args, void* workspace, int64_t bytes);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megatrain
