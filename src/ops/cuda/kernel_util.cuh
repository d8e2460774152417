#pragma once
// defines: load8/store8, block_sum, by_dtype, launch helpers — shared by the CUDA kernels (C++17, std only).

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <stdexcept>

#include "core/rng.h"
#include "device/cuda/cuda_check.h"
#include "ops/cuda/cuda_ops.h"

namespace megatrain {

using bf16 = __nv_bfloat16;

/// Eight consecutive elements as fp32; 16-byte accesses. Pointers are 16-byte aligned.
__device__ inline void load8(const float* p, float (&v)[8]) {
  const float4 a = reinterpret_cast<const float4*>(p)[0], b = reinterpret_cast<const float4*>(p)[1];
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
__device__ inline void load8(const bf16* p, float (&v)[8]) {
  const uint4 u = *reinterpret_cast<const uint4*>(p);
  const unsigned w[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    v[2 * i] = __uint_as_float(w[i] << 16), v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
}
__device__ inline void store8(float* p, const float (&v)[8]) {
  reinterpret_cast<float4*>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<float4*>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
}
__device__ inline void store8(bf16* p, const float (&v)[8]) {
  __nv_bfloat162 h[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) h[i] = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
  *reinterpret_cast<uint4*>(p) = *reinterpret_cast<const uint4*>(h);
}
__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(bf16 x) {
  return __bfloat162float(x);
}
template <class T>
__device__ inline T from_float(float x) {
  if constexpr (sizeof(T) == 4)
    return x;
  else
    return __float2bfloat16_rn(x);
}

/// Sum over the block's threads, in a fixed order; every thread gets it. `shared` holds 32 values.
template <class V>
__device__ inline V block_sum(V x, V* shared) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o);
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  if (threadIdx.x % 32 == 0) shared[warp] = x;
  __syncthreads();
  V total = 0;
  for (int w = 0; w < warps; ++w) total += shared[w];
  __syncthreads();
  return total;
}

/// 0 or 1/(1-p) for one element of a dropout mask (core/rng.h).
__device__ inline float dropout_factor(const Dropout& d, uint64_t index) {
  const uint32_t threshold = static_cast<uint32_t>(static_cast<double>(d.probability) * 4294967296.0);
  return random_u32(d.seed, d.stream, d.first + index) < threshold ? 0.0f : 1.0f / (1.0f - d.probability);
}

/// Calls f with a null pointer of the tensor's element type (float or bf16).
template <class F>
void by_dtype(DType t, F&& f) {
  if (t == DType::f32) return f(static_cast<float*>(nullptr));
  if (t == DType::bf16) return f(static_cast<bf16*>(nullptr));
  throw std::logic_error("CUDA op: element type is neither fp32 nor bf16");
}

/// out[j] += sum over `rows` rows of partial[:, j], in a fixed order; rows are `stride` apart, `columns`
/// wide.
void add_partial_rows(cudaStream_t stream, int rows, int64_t stride, int64_t columns, const float* partial,
                      float* out);

inline int blocks_for(int64_t items, int per_block, int64_t most = 1 << 30) {
  const int64_t n = (items + per_block - 1) / per_block;
  return static_cast<int>(n < most ? n : most);
}

inline int multiprocessors() {
  static const int count = [] {
    int n = 0;
    MT_CUDA(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0));
    return n;
  }();
  return count;
}

}  // namespace megatrain
