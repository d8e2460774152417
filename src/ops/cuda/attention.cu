// Attention: cuDNN where it applies, else plain kernels of our own (fp32 verification, dropout, odd lengths):
// one warp a row, online softmax, no T×T matrix, no atomics.
#include "ops/cuda/cudnn_attention.h"
#include "ops/cuda/kernel_util.cuh"

namespace megatrain {
namespace {

constexpr int kWarps = 8;
constexpr int kMaxPerLane = 8;  // head_dim <= 256

struct Dims {
  int64_t t, h, d;
  float scale;
  int per_lane;
};

// This warp's row: (sequence, head, index); pointers to it inside [B, T, ...].
struct Row {
  int64_t item, i, qkv, out;
  bool valid;
  __device__ Row(const Dims& s, int64_t rows) {
    const int64_t r = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
    valid = r < rows;
    item = r / s.t, i = r % s.t;
    const int64_t b = item / s.h, head = item % s.h, c = s.h * s.d;
    qkv = (b * s.t) * 3 * c + head * s.d, out = (b * s.t) * c + head * s.d;
  }
};

template <class T>
__device__ void load_row(const T* p, const Dims& s, float (&v)[kMaxPerLane]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int e = 0; e < kMaxPerLane; ++e)
    v[e] = e < s.per_lane && lane + 32 * e < s.d ? to_float(p[lane + 32 * e]) : 0.0f;
}

template <class T>
__device__ void store_row(T* p, const Dims& s, const float (&v)[kMaxPerLane]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int e = 0; e < kMaxPerLane; ++e)
    if (e < s.per_lane && lane + 32 * e < s.d) p[lane + 32 * e] = from_float<T>(v[e]);
}

__device__ float warp_dot(const float (&a)[kMaxPerLane], const float (&b)[kMaxPerLane]) {
  float x = 0;
#pragma unroll
  for (int e = 0; e < kMaxPerLane; ++e) x += a[e] * b[e];
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o);
  return x;
}

__device__ float keep_factor(const Dropout& d, const Dims& s, int64_t item, int64_t i, int64_t j) {
  return d.probability > 0 ? dropout_factor(d, static_cast<uint64_t>((item * s.t + i) * s.t + j)) : 1.0f;
}

template <class T>
__global__ void forward(Dims s, int64_t rows, const T* qkv, T* out, float* lse, Dropout d) {
  const Row r(s, rows);
  if (!r.valid) return;
  const int64_t c = s.h * s.d;
  float q[kMaxPerLane], k[kMaxPerLane], v[kMaxPerLane], acc[kMaxPerLane] = {0}, top = -INFINITY, total = 0;
  load_row(qkv + r.qkv + r.i * 3 * c, s, q);
  for (int64_t j = 0; j <= r.i; ++j) {
    load_row(qkv + r.qkv + j * 3 * c + c, s, k);
    load_row(qkv + r.qkv + j * 3 * c + 2 * c, s, v);
    const float score = warp_dot(q, k) * s.scale, next = fmaxf(top, score);
    const float shrink = expf(top - next), p = expf(score - next);
    const float kept = p * keep_factor(d, s, r.item, r.i, j);
    total = total * shrink + p, top = next;
#pragma unroll
    for (int e = 0; e < kMaxPerLane; ++e) acc[e] = acc[e] * shrink + kept * v[e];
  }
#pragma unroll
  for (float& a : acc) a /= total;
  store_row(out + r.out + r.i * c, s, acc);
  if (threadIdx.x % 32 == 0) lse[r.item * s.t + r.i] = top + logf(total);
}

template <class T>
__global__ void make_delta(Dims s, int64_t rows, const T* out, const T* dout, float* delta) {
  const Row r(s, rows);
  if (!r.valid) return;
  float o[kMaxPerLane], g[kMaxPerLane];
  load_row(out + r.out + r.i * s.h * s.d, s, o);
  load_row(dout + r.out + r.i * s.h * s.d, s, g);
  const float x = warp_dot(o, g);
  if (threadIdx.x % 32 == 0) delta[r.item * s.t + r.i] = x;
}

template <class T>
__global__ void backward_query(Dims s, int64_t rows, const T* qkv, const float* lse, const T* dout,
                               const float* delta, T* dqkv, Dropout d) {
  const Row r(s, rows);
  if (!r.valid) return;
  const int64_t c = s.h * s.d;
  float q[kMaxPerLane], g[kMaxPerLane], k[kMaxPerLane], v[kMaxPerLane], dq[kMaxPerLane] = {0};
  load_row(qkv + r.qkv + r.i * 3 * c, s, q);
  load_row(dout + r.out + r.i * c, s, g);
  const float norm = lse[r.item * s.t + r.i], mean = delta[r.item * s.t + r.i];
  for (int64_t j = 0; j <= r.i; ++j) {
    load_row(qkv + r.qkv + j * 3 * c + c, s, k);
    load_row(qkv + r.qkv + j * 3 * c + 2 * c, s, v);
    const float p = expf(warp_dot(q, k) * s.scale - norm);
    const float ds = p * (warp_dot(g, v) * keep_factor(d, s, r.item, r.i, j) - mean) * s.scale;
#pragma unroll
    for (int e = 0; e < kMaxPerLane; ++e) dq[e] += ds * k[e];
  }
  store_row(dqkv + r.qkv + r.i * 3 * c, s, dq);
}

template <class T>
__global__ void backward_key(Dims s, int64_t rows, const T* qkv, const float* lse, const T* dout,
                             const float* delta, T* dqkv, Dropout d) {
  const Row r(s, rows);
  if (!r.valid) return;
  const int64_t c = s.h * s.d, at = r.qkv + r.i * 3 * c;
  float q[kMaxPerLane], g[kMaxPerLane], k[kMaxPerLane], v[kMaxPerLane], dk[kMaxPerLane] = {0},
                                                                        dv[kMaxPerLane] = {0};
  load_row(qkv + at + c, s, k);
  load_row(qkv + at + 2 * c, s, v);
  for (int64_t i = r.i; i < s.t; ++i) {
    load_row(qkv + r.qkv + i * 3 * c, s, q);
    load_row(dout + r.out + i * c, s, g);
    const float p = expf(warp_dot(q, k) * s.scale - lse[r.item * s.t + i]),
                keep = keep_factor(d, s, r.item, i, r.i);
    const float ds = p * (warp_dot(g, v) * keep - delta[r.item * s.t + i]) * s.scale;
#pragma unroll
    for (int e = 0; e < kMaxPerLane; ++e) dk[e] += ds * q[e], dv[e] += p * keep * g[e];
  }
  store_row(dqkv + at + c, s, dk);
  store_row(dqkv + at + 2 * c, s, dv);
}

template <class Args>
Dims dims_of(const Args& a) {
  if (a.head_dim > 32 * kMaxPerLane) fail("CUDA attention: head_dim above 256 is not supported");
  return {a.seq_len, a.num_heads, a.head_dim, 1.0f / sqrtf(static_cast<float>(a.head_dim)),
          static_cast<int>((a.head_dim + 31) / 32)};
}

}  // namespace

void CudaOps::attention(Stream& s, const AttentionArgs& a) {
  if (CudnnAttention::supports(a.qkv.dtype, a.seq_len, a.head_dim, a.dropout.probability)) {
    if (!attention_) attention_ = std::make_unique<CudnnAttention>();
    return attention_->forward(cuda_stream(s), a, attention_workspace(), attention_bytes());
  }
  const Dims d = dims_of(a);
  const int64_t rows = a.batch * a.num_heads * a.seq_len;
  by_dtype(a.qkv.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    forward<T><<<blocks_for(rows, kWarps), kWarps * 32, 0, cuda_stream(s)>>>(
        d, rows, static_cast<T*>(a.qkv.data), static_cast<T*>(a.out.data), a.lse.f32(), a.dropout);
  });
  MT_CUDA(cudaGetLastError());
}

void CudaOps::attention_backward(Stream& s, const AttentionBackwardArgs& a) {
  if (CudnnAttention::supports(a.qkv.dtype, a.seq_len, a.head_dim, a.dropout.probability)) {
    if (!attention_) attention_ = std::make_unique<CudnnAttention>();
    return attention_->backward(cuda_stream(s), a, attention_workspace(), attention_bytes());
  }
  const Dims d = dims_of(a);
  const int64_t rows = a.batch * a.num_heads * a.seq_len;
  const int blocks = blocks_for(rows, kWarps);
  by_dtype(a.qkv.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    const auto *qkv = static_cast<T*>(a.qkv.data), *dout = static_cast<T*>(a.dout.data);
    auto* dqkv = static_cast<T*>(a.dqkv.data);
    make_delta<T><<<blocks, kWarps * 32, 0, cuda_stream(s)>>>(d, rows, static_cast<T*>(a.out.data), dout,
                                                              a.delta.f32());
    backward_query<T><<<blocks, kWarps * 32, 0, cuda_stream(s)>>>(d, rows, qkv, a.lse.f32(), dout,
                                                                  a.delta.f32(), dqkv, a.dropout);
    backward_key<T><<<blocks, kWarps * 32, 0, cuda_stream(s)>>>(d, rows, qkv, a.lse.f32(), dout,
                                                                a.delta.f32(), dqkv, a.dropout);
  });
  MT_CUDA(cudaGetLastError());
}

}  // namespace megatrain
