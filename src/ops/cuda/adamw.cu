// AdamW on the device, with the bits of the host's kernels (ops/cpu/kernels.inc): the same operations in the
// same order, each rounded on its own (no contraction), division and square root correctly rounded.
#include "ops/cuda/kernel_util.cuh"

namespace megatrain {
namespace {

constexpr int kThreads = 256;

struct Element {
  unsigned hi, lo;
  float m, v;
};

__device__ inline void update(Element& e, float gradient, const AdamWStep& s) {
  const float g = __fmul_rn(gradient, s.gradient_scale);
  const float w = __uint_as_float((((e.hi - (e.lo >> 15)) & 0xffffu) << 16) | e.lo);
  const float p = __fmul_rn(w, s.decay_factor);
  e.m = __fadd_rn(e.m, __fmul_rn(__fsub_rn(g, e.m), __fsub_rn(1.0f, s.beta1)));
  e.v = __fadd_rn(__fmul_rn(e.v, s.beta2), __fmul_rn(__fmul_rn(g, g), __fsub_rn(1.0f, s.beta2)));
  const float denom = __fadd_rn(__fdiv_rn(__fsqrt_rn(e.v), s.sqrt_correction), s.epsilon);
  const unsigned q = __float_as_uint(__fsub_rn(p, __fmul_rn(s.step_size, __fdiv_rn(e.m, denom))));
  e.hi = ((q + 0x8000u) >> 16) & 0xffffu, e.lo = q & 0xffffu;
}

// Eight elements a thread, where all is aligned to 16 bytes; the tail one by one.
__global__ void adamw_kernel(AdamWArgs a, int64_t packs) {
  if (a.squared_norm && !isfinite(*a.squared_norm)) return;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < packs) {
    uint4 h = reinterpret_cast<uint4*>(a.hi)[i], l = reinterpret_cast<uint4*>(a.lo)[i];
    float m[8], v[8], g[8];
    load8(a.m + i * 8, m);
    load8(a.v + i * 8, v);
    load8(a.gradient + i * 8, g);
    unsigned hs[4] = {h.x, h.y, h.z, h.w}, ls[4] = {l.x, l.y, l.z, l.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      Element low{hs[j] & 0xffffu, ls[j] & 0xffffu, m[2 * j], v[2 * j]},
          high{hs[j] >> 16, ls[j] >> 16, m[2 * j + 1], v[2 * j + 1]};
      update(low, g[2 * j], a.step);
      update(high, g[2 * j + 1], a.step);
      hs[j] = low.hi | high.hi << 16, ls[j] = low.lo | high.lo << 16;
      m[2 * j] = low.m, v[2 * j] = low.v, m[2 * j + 1] = high.m, v[2 * j + 1] = high.v;
    }
    reinterpret_cast<uint4*>(a.hi)[i] = make_uint4(hs[0], hs[1], hs[2], hs[3]);
    reinterpret_cast<uint4*>(a.lo)[i] = make_uint4(ls[0], ls[1], ls[2], ls[3]);
    store8(a.m + i * 8, m);
    store8(a.v + i * 8, v);
    return;
  }
  const int64_t at = packs * 8 + (i - packs);
  if (at >= a.count) return;
  Element e{a.hi[at], a.lo[at], a.m[at], a.v[at]};
  update(e, a.gradient[at], a.step);
  a.hi[at] = static_cast<uint16_t>(e.hi), a.lo[at] = static_cast<uint16_t>(e.lo), a.m[at] = e.m,
  a.v[at] = e.v;
}

}  // namespace

void CudaOps::adamw(Stream& s, const AdamWArgs& a) {
  const int64_t packs = a.count / 8, threads = packs + a.count % 8;
  adamw_kernel<<<blocks_for(threads, kThreads), kThreads, 0, cuda_stream(s)>>>(a, packs);
  MT_CUDA(cudaGetLastError());
}

}  // namespace megatrain
