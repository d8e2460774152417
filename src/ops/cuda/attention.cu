// Attention: cuDNN where it applies, else plain kernels of our own (fp32 verification, dropout, wide heads):
// one warp a row, online softmax, no T×T matrix, no atomics. Generation's attention over a cache is here too.
#include "ops/cuda/cudnn_attention.h"
#include "ops/cuda/kernel_util.cuh"

namespace megatrain {
namespace {

constexpr int kWarps = 8;
constexpr int kMaxPerLane = 8;  // head_dim <= 256

struct Dims {
  int64_t t, h, kv, d, window;
  float scale;
  int per_lane;
  const int32_t* positions;  // [B·T], null: every sequence is one document
  __host__ __device__ int64_t ld() const { return (h + 2 * kv) * d; }
};

__device__ int64_t first_key(const Dims& s, int64_t position) {
  return position >= s.window ? position - s.window + 1 : 0;
}

// Of query i of sequence b: in its document, within the window.
__device__ int64_t first_key(const Dims& s, int64_t b, int64_t i) {
  const int64_t window = first_key(s, i);
  return s.positions ? max(window, i - s.positions[b * s.t + i]) : window;
}

// This warp's row: (sequence, head, index); pointers to it inside [B, T, ...].
struct Row {
  int64_t item, i, q, k, out;
  bool valid;
  __device__ Row(const Dims& s, int64_t rows) {
    const int64_t r = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
    valid = r < rows;
    item = r / s.t, i = r % s.t;
    const int64_t b = item / s.h, head = item % s.h;
    q = b * s.t * s.ld() + head * s.d, k = b * s.t * s.ld() + (s.h + head / (s.h / s.kv)) * s.d;
    out = b * s.t * s.h * s.d + head * s.d;
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

// Running softmax of one query over some keys.
struct Online {
  float acc[kMaxPerLane] = {0}, top = -INFINITY, total = 0;
  __device__ void add(float score, float keep, const float (&v)[kMaxPerLane]) {
    const float next = fmaxf(top, score), shrink = expf(top - next), p = expf(score - next);
    total = total * shrink + p, top = next;
#pragma unroll
    for (int e = 0; e < kMaxPerLane; ++e) acc[e] = acc[e] * shrink + p * keep * v[e];
  }
};

template <class T>
__global__ void forward(Dims s, int64_t rows, const T* qkv, T* out, float* lse, Dropout d) {
  const Row r(s, rows);
  if (!r.valid) return;
  float q[kMaxPerLane], k[kMaxPerLane], v[kMaxPerLane];
  load_row(qkv + r.q + r.i * s.ld(), s, q);
  Online o;
  for (int64_t j = first_key(s, r.item / s.h, r.i); j <= r.i; ++j) {
    load_row(qkv + r.k + j * s.ld(), s, k);
    load_row(qkv + r.k + j * s.ld() + s.kv * s.d, s, v);
    o.add(warp_dot(q, k) * s.scale, keep_factor(d, s, r.item, r.i, j), v);
  }
#pragma unroll
  for (float& a : o.acc) a /= o.total;
  store_row(out + r.out + r.i * s.h * s.d, s, o.acc);
  if (threadIdx.x % 32 == 0) lse[r.item * s.t + r.i] = o.top + logf(o.total);
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
  float q[kMaxPerLane], g[kMaxPerLane], k[kMaxPerLane], v[kMaxPerLane], dq[kMaxPerLane] = {0};
  load_row(qkv + r.q + r.i * s.ld(), s, q);
  load_row(dout + r.out + r.i * s.h * s.d, s, g);
  const float norm = lse[r.item * s.t + r.i], mean = delta[r.item * s.t + r.i];
  for (int64_t j = first_key(s, r.item / s.h, r.i); j <= r.i; ++j) {
    load_row(qkv + r.k + j * s.ld(), s, k);
    load_row(qkv + r.k + j * s.ld() + s.kv * s.d, s, v);
    const float p = expf(warp_dot(q, k) * s.scale - norm);
    const float ds = p * (warp_dot(g, v) * keep_factor(d, s, r.item, r.i, j) - mean) * s.scale;
#pragma unroll
    for (int e = 0; e < kMaxPerLane; ++e) dq[e] += ds * k[e];
  }
  store_row(dqkv + r.q + r.i * s.ld(), s, dq);
}

// One warp a key: all queries of its group of heads that see it, in order.
template <class T>
__global__ void backward_key(Dims s, int64_t rows, const T* qkv, const float* lse, const T* dout,
                             const float* delta, T* dqkv, Dropout d) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (r >= rows) return;
  const int64_t j = r % s.t, head = r / s.t % s.kv, b = r / s.t / s.kv, group = s.h / s.kv;
  const int64_t at = (b * s.t + j) * s.ld() + (s.h + head) * s.d;
  float q[kMaxPerLane], g[kMaxPerLane], k[kMaxPerLane], v[kMaxPerLane], dk[kMaxPerLane] = {0},
                                                                        dv[kMaxPerLane] = {0};
  load_row(qkv + at, s, k);
  load_row(qkv + at + s.kv * s.d, s, v);
  int64_t end = s.t - j > s.window ? j + s.window : s.t;
  for (int64_t i = j + 1; s.positions && i < end; ++i)
    if (s.positions[b * s.t + i] == 0) end = i;  // the next document
  for (int64_t h = head * group; h < (head + 1) * group; ++h)
    for (int64_t i = j; i < end; ++i) {
      const int64_t item = b * s.h + h;
      load_row(qkv + (b * s.t + i) * s.ld() + h * s.d, s, q);
      load_row(dout + ((b * s.t + i) * s.h + h) * s.d, s, g);
      const float p = expf(warp_dot(q, k) * s.scale - lse[item * s.t + i]),
                  keep = keep_factor(d, s, item, i, j);
      const float ds = p * (warp_dot(g, v) * keep - delta[item * s.t + i]) * s.scale;
#pragma unroll
      for (int e = 0; e < kMaxPerLane; ++e) dk[e] += ds * q[e], dv[e] += p * keep * g[e];
    }
  store_row(dqkv + at, s, dk);
  store_row(dqkv + at + s.kv * s.d, s, dv);
}

template <class T>
__global__ void append(Dims s, int64_t elements, int64_t capacity, const int32_t* past, const T* qkv,
                       T* cache) {
  const int64_t x = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, row = 2 * s.kv * s.d;
  if (x >= elements) return;
  const int64_t n = x / row, column = x % row, b = n / s.t;
  cache[(b * capacity + past[b] + n % s.t) * row + column] = qkv[n * s.ld() + s.h * s.d + column];
}

// One block a row: its warps take every eighth key, then their softmaxes are joined in order.
template <class T>
__global__ void cached(Dims s, int64_t capacity, const int32_t* past, const T* qkv, const T* cache, T* out) {
  __shared__ float tops[kWarps], totals[kWarps], accs[kWarps][32 * kMaxPerLane];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t item = blockIdx.x / s.t, i = blockIdx.x % s.t, b = item / s.h, head = item % s.h;
  const int64_t position = past[b] + i, ld = 2 * s.kv * s.d;
  const T* keys = cache + b * capacity * ld + head / (s.h / s.kv) * s.d;
  float q[kMaxPerLane], k[kMaxPerLane], v[kMaxPerLane];
  load_row(qkv + (b * s.t + i) * s.ld() + head * s.d, s, q);
  Online o;
  for (int64_t j = first_key(s, position) + warp; j <= position; j += kWarps) {
    load_row(keys + j * ld, s, k);
    load_row(keys + j * ld + s.kv * s.d, s, v);
    o.add(warp_dot(q, k) * s.scale, 1.0f, v);
  }
  if (lane == 0) tops[warp] = o.top, totals[warp] = o.total;
#pragma unroll
  for (int e = 0; e < kMaxPerLane; ++e) accs[warp][lane + 32 * e] = o.acc[e];
  __syncthreads();
  float top = -INFINITY, total = 0;
  for (float t : tops) top = fmaxf(top, t);
  for (int w = 0; w < kWarps; ++w) total += totals[w] * expf(tops[w] - top);
  for (int e = static_cast<int>(threadIdx.x); e < s.d; e += kWarps * 32) {
    float x = 0;
    for (int w = 0; w < kWarps; ++w) x += accs[w][e] * expf(tops[w] - top);
    out[((b * s.t + i) * s.h + head) * s.d + e] = from_float<T>(x / total);
  }
}

__global__ void ragged_offsets(RaggedOffsets a) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i > a.padded) return;
  const bool real = i < a.count;
  if (i < a.padded) a.lengths[i] = real ? a.spans_length[a.first + i] : 0;
  const int64_t at = real ? a.spans_first[a.first + i] : a.end;
  for (int w = 0; w < 3; ++w) a.offsets[w * (a.padded + 1) + i] = at * a.widths[w];
}

Dims dims_of(const AttentionShape& a, const Tensor& positions) {
  if (a.head_dim > 32 * kMaxPerLane) fail("CUDA attention: head_dim above 256 is not supported");
  return {a.seq_len,
          a.num_heads,
          a.num_kv_heads,
          a.head_dim,
          a.window > 0 ? a.window : int64_t{1} << 60,
          1.0f / sqrtf(static_cast<float>(a.head_dim)),
          static_cast<int>((a.head_dim + 31) / 32),
          static_cast<const int32_t*>(positions.data)};
}

}  // namespace

void make_ragged_offsets(cudaStream_t stream, const RaggedOffsets& a) {
  ragged_offsets<<<blocks_for(a.padded + 1, 256), 256, 0, stream>>>(a);
  MT_CUDA(cudaGetLastError());
}

void CudaOps::attention(Stream& s, const AttentionArgs& a) {
  if (cudnn_supports(a.qkv.dtype, a.shape, a.dropout.probability)) {
    if (!attention_) attention_ = std::make_unique<CudnnAttention>();
    return attention_->forward(cuda_stream(s), a, attention_workspace(), attention_bytes());
  }
  const Dims d = dims_of(a.shape, a.documents.positions);
  const int64_t rows = a.shape.batch * d.h * d.t;
  by_dtype(a.qkv.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    forward<T><<<blocks_for(rows, kWarps), kWarps * 32, 0, cuda_stream(s)>>>(
        d, rows, static_cast<T*>(a.qkv.data), static_cast<T*>(a.out.data), a.lse.f32(), a.dropout);
  });
  MT_CUDA(cudaGetLastError());
}

void CudaOps::attention_backward(Stream& s, const AttentionBackwardArgs& a) {
  if (cudnn_supports(a.qkv.dtype, a.shape, a.dropout.probability)) {
    if (!attention_) attention_ = std::make_unique<CudnnAttention>();
    return attention_->backward(cuda_stream(s), a, attention_workspace(), attention_bytes());
  }
  const Dims d = dims_of(a.shape, a.documents.positions);
  const int64_t rows = a.shape.batch * d.h * d.t, keys = a.shape.batch * d.kv * d.t;
  const int blocks = blocks_for(rows, kWarps);
  by_dtype(a.qkv.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    const auto *qkv = static_cast<T*>(a.qkv.data), *dout = static_cast<T*>(a.dout.data);
    auto* dqkv = static_cast<T*>(a.dqkv.data);
    make_delta<T><<<blocks, kWarps * 32, 0, cuda_stream(s)>>>(d, rows, static_cast<T*>(a.out.data), dout,
                                                              a.delta.f32());
    backward_query<T><<<blocks, kWarps * 32, 0, cuda_stream(s)>>>(d, rows, qkv, a.lse.f32(), dout,
                                                                  a.delta.f32(), dqkv, a.dropout);
    backward_key<T><<<blocks_for(keys, kWarps), kWarps * 32, 0, cuda_stream(s)>>>(
        d, keys, qkv, a.lse.f32(), dout, a.delta.f32(), dqkv, a.dropout);
  });
  MT_CUDA(cudaGetLastError());
}

void CudaOps::attention_cached(Stream& s, const CachedAttentionArgs& a) {
  const Dims d = dims_of(a.shape, {});
  const int64_t elements = a.shape.batch * d.t * 2 * d.kv * d.d;
  by_dtype(a.qkv.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    append<T><<<blocks_for(elements, 256), 256, 0, cuda_stream(s)>>>(
        d, elements, a.capacity, a.past.i32(), static_cast<T*>(a.qkv.data), static_cast<T*>(a.cache.data));
    cached<T><<<static_cast<unsigned>(a.shape.batch * d.h * d.t), kWarps * 32, 0, cuda_stream(s)>>>(
        d, a.capacity, a.past.i32(), static_cast<T*>(a.qkv.data), static_cast<T*>(a.cache.data),
        static_cast<T*>(a.out.data));
  });
  MT_CUDA(cudaGetLastError());
}

}  // namespace megatrain
