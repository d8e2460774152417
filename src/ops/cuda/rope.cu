// Rotary positions, with Qwen3's per-head RMS norms in front. A block takes a token at a time: the angles are
// computed once and shared by all heads; a group of lanes holds one head's row in registers.
#include <algorithm>

#include "ops/cuda/kernel_util.cuh"

namespace megatrain {
namespace {

constexpr int kMaxHalf = 256;  // head_dim <= 512

struct Frequencies {
  float value[kMaxHalf];
};

struct Dims {
  int64_t tokens, seq_len;
  int heads, q_heads, d, width;  // width: of a packed row
  int group;                     // lanes a head, a power of two
  float factor, eps;
};

// P consecutive elements: 8 with 16-byte accesses, or 1.
template <int P, class T>
__device__ void load(const T* p, float (&v)[P]) {
  if constexpr (P == 8)
    load8(p, v);
  else
    v[0] = to_float(p[0]);
}
template <int P, class T>
__device__ void store(T* p, const float (&v)[P]) {
  if constexpr (P == 8)
    store8(p, v);
  else
    p[0] = from_float<T>(v[0]);
}

__device__ float group_sum(float x, int group) {
  for (int o = group / 2; o > 0; o >>= 1) x += __shfl_xor_sync(0xffffffffu, x, o);
  return x;
}

__device__ void make_angles(const Dims& s, const Frequencies& f, const int32_t* positions, int64_t n,
                            float (&cosine)[kMaxHalf], float (&sine)[kMaxHalf]) {
  const float position = static_cast<float>(positions ? positions[n] : static_cast<int32_t>(n % s.seq_len));
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < s.d / 2; i += static_cast<int>(blockDim.x)) {
    float a, b;
    sincosf(position * f.value[i], &a, &b);
    sine[i] = a * s.factor, cosine[i] = b * s.factor;
  }
  __syncthreads();
}

template <class T, int P>
__global__ void forward(Dims s, Frequencies f, const int32_t* positions, const T* in, T* out, const T* q_norm,
                        const T* k_norm) {
  __shared__ float cosine[kMaxHalf], sine[kMaxHalf];
  const int half = s.d / 2, at = static_cast<int>(threadIdx.x) % s.group * P,
            slots = static_cast<int>(blockDim.x) / s.group;
  const bool active = at < half;
  for (int64_t n = blockIdx.x; n < s.tokens; n += gridDim.x) {
    make_angles(s, f, positions, n, cosine, sine);
    for (int first = 0; first < s.heads; first += slots) {  // all lanes stay for the shuffles
      const int h = first + static_cast<int>(threadIdx.x) / s.group;
      const bool mine = active && h < s.heads;
      const int64_t row = n * s.width + static_cast<int64_t>(h) * s.d + at;
      float a[P] = {0}, b[P] = {0};
      if (mine) load<P>(in + row, a), load<P>(in + row + half, b);
      if (q_norm) {
        float square = 0;
#pragma unroll
        for (int j = 0; j < P; ++j) square += a[j] * a[j] + b[j] * b[j];
        const float rstd = rsqrtf(group_sum(square, s.group) / static_cast<float>(s.d) + s.eps);
        float wa[P] = {0}, wb[P] = {0};
        const T* w = h < s.q_heads ? q_norm : k_norm;
        if (mine) load<P>(w + at, wa), load<P>(w + at + half, wb);
#pragma unroll
        for (int j = 0; j < P; ++j) a[j] *= rstd * wa[j], b[j] *= rstd * wb[j];
      }
      if (!mine) continue;
#pragma unroll
      for (int j = 0; j < P; ++j) {
        const float x = a[j], y = b[j], c = cosine[at + j], si = sine[at + j];
        a[j] = x * c - y * si, b[j] = y * c + x * si;
      }
      store<P>(out + row, a), store<P>(out + row + half, b);
    }
    if (in == out) continue;
    for (int i = s.heads * s.d + static_cast<int>(threadIdx.x); i < s.width;
         i += static_cast<int>(blockDim.x))
      out[n * s.width + i] = in[n * s.width + i];  // values
  }
}

// RMS norm of one head over the lanes of its group: a, b (the two halves) become its input's gradient, dw
// gets the weight's.
template <int P>
__device__ void norm_backward(const Dims& s, float (&xa)[P], float (&xb)[P], const float (&wa)[P],
                              const float (&wb)[P], float (&a)[P], float (&b)[P], bool query,
                              float (&dw)[2][2][P]) {
  float square = 0, dot = 0;
#pragma unroll
  for (int j = 0; j < P; ++j) square += xa[j] * xa[j] + xb[j] * xb[j];
  const float rstd = rsqrtf(group_sum(square, s.group) / static_cast<float>(s.d) + s.eps);
#pragma unroll
  for (int j = 0; j < P; ++j) {
    xa[j] *= rstd, xb[j] *= rstd;
    const float ga = a[j] * xa[j], gb = b[j] * xb[j];
    dw[0][0][j] += query ? ga : 0, dw[0][1][j] += query ? gb : 0;  // no index by `query`: it would spill
    dw[1][0][j] += query ? 0 : ga, dw[1][1][j] += query ? 0 : gb;
    a[j] *= wa[j], b[j] *= wb[j];
    dot += a[j] * xa[j] + b[j] * xb[j];
  }
  const float mean = group_sum(dot, s.group) / static_cast<float>(s.d);
#pragma unroll
  for (int j = 0; j < P; ++j) a[j] = rstd * (a[j] - xa[j] * mean), b[j] = rstd * (b[j] - xb[j] * mean);
}

// partial [gridDim.x, 2, D]: this block's sums for q_norm and k_norm.
template <class T, int P>
__global__ void backward(Dims s, Frequencies f, const int32_t* positions, T* grad, const T* in,
                         const T* q_norm, const T* k_norm, float* partial) {
  __shared__ float cosine[kMaxHalf], sine[kMaxHalf];
  __shared__ float sums[2][2 * kMaxHalf];
  const int half = s.d / 2, at = static_cast<int>(threadIdx.x) % s.group * P,
            slots = static_cast<int>(blockDim.x) / s.group, slot = static_cast<int>(threadIdx.x) / s.group;
  const bool active = at < half;
  float dw[2][2][P] = {};
  for (int64_t n = blockIdx.x; n < s.tokens; n += gridDim.x) {
    make_angles(s, f, positions, n, cosine, sine);
    for (int first = 0; first < s.heads; first += slots) {
      const int h = first + slot;
      const bool mine = active && h < s.heads;
      const int64_t row = n * s.width + static_cast<int64_t>(h) * s.d + at;
      float a[P] = {0}, b[P] = {0};
      if (mine) load<P>(grad + row, a), load<P>(grad + row + half, b);
#pragma unroll
      for (int j = 0; j < P; ++j) {
        const float x = a[j], y = b[j], c = mine ? cosine[at + j] : 0, si = mine ? sine[at + j] : 0;
        a[j] = x * c + y * si, b[j] = y * c - x * si;
      }
      if (q_norm) {
        const int which = h < s.q_heads ? 0 : 1;
        float xa[P] = {0}, xb[P] = {0}, wa[P] = {0}, wb[P] = {0};
        if (mine) {
          const T* w = which == 0 ? q_norm : k_norm;
          load<P>(in + row, xa), load<P>(in + row + half, xb);
          load<P>(w + at, wa), load<P>(w + at + half, wb);
        }
        norm_backward<P>(s, xa, xb, wa, wb, a, b, which == 0, dw);
      }
      if (mine) store<P>(grad + row, a), store<P>(grad + row + half, b);
    }
  }
  if (!q_norm) return;
  for (int i = static_cast<int>(threadIdx.x); i < s.d; i += static_cast<int>(blockDim.x))
    sums[0][i] = sums[1][i] = 0;
  for (int turn = 0; turn < slots; ++turn) {  // in order: the same sum every time
    __syncthreads();
    if (slot != turn || !active) continue;
#pragma unroll
    for (int j = 0; j < P; ++j)
      for (int which = 0; which < 2; ++which) {
        sums[which][at + j] += dw[which][0][j];
        sums[which][at + half + j] += dw[which][1][j];
      }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * s.d; i += static_cast<int>(blockDim.x))
    partial[static_cast<int64_t>(blockIdx.x) * 2 * s.d + i] = sums[i / s.d][i % s.d];
}

template <class Args>
Dims dims_of(const Args& a, int pack) {
  const AttentionShape& s = a.shape;
  int group = 1;
  while (group * pack < s.head_dim / 2) group *= 2;
  if (s.head_dim % 2 != 0 || group > 32)
    fail("CUDA rope: head_dim must be a multiple of 16 up to 512, or even and at most 64");
  return {s.batch * s.seq_len,
          s.seq_len,
          static_cast<int>(s.num_heads + s.num_kv_heads),
          static_cast<int>(s.num_heads),
          static_cast<int>(s.head_dim),
          static_cast<int>(s.qkv_width()),
          group,
          a.factor,
          a.eps};
}

Frequencies frequencies(const float* inv_freq, int64_t half) {
  Frequencies f{};
  std::copy_n(inv_freq, half, f.value);
  return f;
}

int threads_for(const Dims& s) {
  return std::min((s.heads * s.group + 31) / 32 * 32, 512);
}

// Calls f with the number of elements that a lane takes as a constant.
template <class F>
void by_pack(int64_t head_dim, F&& f) {
  if (head_dim % 16 == 0)
    f(std::integral_constant<int, 8>());
  else
    f(std::integral_constant<int, 1>());
}

}  // namespace

void CudaOps::rope(Stream& s, const RopeArgs& a) {
  by_dtype(a.in.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    by_pack(a.shape.head_dim, [&](auto pack) {
      constexpr int P = decltype(pack)::value;
      const Dims d = dims_of(a, P);
      forward<T, P><<<blocks_for(d.tokens, 1), threads_for(d), 0, cuda_stream(s)>>>(
          d, frequencies(a.inv_freq, d.d / 2), static_cast<int32_t*>(a.positions.data),
          static_cast<T*>(a.in.data), static_cast<T*>(a.out.data), static_cast<T*>(a.q_norm.data),
          static_cast<T*>(a.k_norm.data));
    });
  });
  MT_CUDA(cudaGetLastError());
}

void CudaOps::rope_backward(Stream& s, const RopeBackwardArgs& a) {
  auto* partial = reinterpret_cast<float*>(scratch());
  int blocks = 0;
  by_dtype(a.grad.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    by_pack(a.shape.head_dim, [&](auto pack) {
      constexpr int P = decltype(pack)::value;
      const Dims d = dims_of(a, P);
      blocks = blocks_for(d.tokens, 1, a.q_norm ? 8 * multiprocessors() : 1 << 30);
      backward<T, P><<<blocks, threads_for(d), 0, cuda_stream(s)>>>(
          d, frequencies(a.inv_freq, d.d / 2), static_cast<int32_t*>(a.positions.data),
          static_cast<T*>(a.grad.data), static_cast<T*>(a.in.data), static_cast<T*>(a.q_norm.data),
          static_cast<T*>(a.k_norm.data), partial);
    });
  });
  MT_CUDA(cudaGetLastError());
  if (!a.q_norm) return;
  const int64_t d = a.shape.head_dim;
  add_partial_rows(cuda_stream(s), blocks, 2 * d, d, partial, a.dq_norm.f32());
  add_partial_rows(cuda_stream(s), blocks, 2 * d, d, partial + d, a.dk_norm.f32());
}

}  // namespace megatrain
