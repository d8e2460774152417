// Elementwise ops, sums, cross-entropy: 16-byte accesses, one read and one write of each element.
#include "ops/cuda/kernel_util.cuh"

namespace megatrain {
namespace {

constexpr int kThreads = 256;

// Abramowitz & Stegun 7.1.26, |error| <= 1.5e-7, as on the CPU; `e` is exp(-x²). erff costs twice as much,
// and these kernels should wait for memory only.
__device__ float erf_approx(float x, float e) {
  const float t = __fdividef(1.0f, 1.0f + 0.3275911f * fabsf(x));
  const float p =
      t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  return copysignf(1.0f - p * e, x);
}

__device__ float gelu_value(float v, bool tanh_form) {
  if (tanh_form) return 0.5f * v * (1.0f + tanhf(0.79788456080286536f * (v + 0.044715f * v * v * v)));
  const float z = v * 0.70710678118654752f;
  return 0.5f * v * (1.0f + erf_approx(z, __expf(-z * z)));
}

__device__ float gelu_slope(float v, bool tanh_form) {
  if (tanh_form) {
    const float th = tanhf(0.79788456080286536f * (v + 0.044715f * v * v * v));
    return 0.5f * (1.0f + th) +
           0.5f * v * (1.0f - th * th) * 0.79788456080286536f * (1.0f + 3.0f * 0.044715f * v * v);
  }
  const float z = v * 0.70710678118654752f, e = __expf(-z * z);
  return 0.5f * (1.0f + erf_approx(z, e)) + v * 0.39894228040143268f * e;
}

template <class T>
__global__ void gelu(int64_t packs, bool tanh_form, const T* x, T* y) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= packs) return;
  float v[8];
  load8(x + i * 8, v);
#pragma unroll
  for (float& e : v) e = gelu_value(e, tanh_form);
  store8(y + i * 8, v);
}

template <class T>
__global__ void gelu_backward(int64_t packs, bool tanh_form, const T* x, T* dy) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= packs) return;
  float v[8], d[8];
  load8(x + i * 8, v);
  load8(dy + i * 8, d);
#pragma unroll
  for (int j = 0; j < 8; ++j) d[j] *= gelu_slope(v[j], tanh_form);
  store8(dy + i * 8, d);
}

// Packs of the F columns of one row: gate at 2·row·F, up F further.
template <class T>
__global__ void gate_up_forward(int64_t packs, int64_t f, const T* gate_up, T* y) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= packs) return;
  const int64_t at = i * 8 + i * 8 / f * f;
  float g[8], u[8];
  load8(gate_up + at, g);
  load8(gate_up + at + f, u);
#pragma unroll
  for (int j = 0; j < 8; ++j) g[j] = __fdividef(g[j], 1.0f + __expf(-g[j])) * u[j];
  store8(y + i * 8, g);
}

template <class T>
__global__ void gate_up_backward(int64_t packs, int64_t f, T* gate_up, const T* dy) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= packs) return;
  const int64_t at = i * 8 + i * 8 / f * f;
  float g[8], u[8], d[8];
  load8(gate_up + at, g);
  load8(gate_up + at + f, u);
  load8(dy + i * 8, d);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float s = __fdividef(1.0f, 1.0f + __expf(-g[j])), silu = g[j] * s;
    g[j] = d[j] * u[j] * (s + silu * (1.0f - s));
    u[j] = d[j] * silu;
  }
  store8(gate_up + at, g);
  store8(gate_up + at + f, u);
}

template <class T>
__global__ void add(int64_t packs, const T* x, const T* branch, T* y, Dropout d) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= packs) return;
  float a[8], b[8];
  load8(x + i * 8, a);
  load8(branch + i * 8, b);
#pragma unroll
  for (int j = 0; j < 8; ++j)
    a[j] += d.probability > 0 ? b[j] * dropout_factor(d, static_cast<uint64_t>(i * 8 + j)) : b[j];
  store8(y + i * 8, a);
}

template <class T>
__global__ void drop(int64_t packs, const T* in, T* out, Dropout d) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= packs) return;
  float v[8];
  load8(in + i * 8, v);
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] *= dropout_factor(d, static_cast<uint64_t>(i * 8 + j));
  store8(out + i * 8, v);
}

// First stage: one fp64 a block over a fixed, strided set of elements; second: one block adds them in order.
template <class T>
__global__ void sum_parts(int64_t n, const T* x, bool squared, double* part) {
  __shared__ double shared[32];
  double total = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * 8;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 8; i < n; i += step) {
    float few = 0;  // eight terms in fp32 lose nothing that the fp64 total would keep
    if (i + 8 <= n) {
      float v[8];
      load8(x + i, v);
#pragma unroll
      for (float e : v) few += squared ? e * e : e;
    } else {
      for (int64_t j = i; j < n; ++j) few += squared ? to_float(x[j]) * to_float(x[j]) : to_float(x[j]);
    }
    total += few;
  }
  total = block_sum(total, shared);
  if (threadIdx.x == 0) part[blockIdx.x] = total;
}

__global__ void sum_total(int parts, const double* part, double* out) {
  __shared__ double shared[32];
  double total = 0;
  for (int i = static_cast<int>(threadIdx.x); i < parts; i += kThreads) total += part[i];
  total = block_sum(total, shared);
  if (threadIdx.x == 0) *out = total;
}

__global__ void join(int64_t n, const uint16_t* hi, const uint16_t* lo, float* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const unsigned h = hi[i], l = lo[i];
  out[i] = __uint_as_float((((h - (l >> 15)) & 0xffffu) << 16) | l);
}

// Few, wide blocks: the rows in flight should still lie in the L2 cache when they are read again.
constexpr int kRowThreads = 1024;

// One block a row: running maximum and sum (online softmax), then loss and the gradient in place. Rows have
// a stride that is a multiple of 8; the pad is written with zeros so that products over it add nothing.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_row(int v, int64_t stride, T* logits, const int32_t* targets, float* losses, float scale,
                      bool backward) {
  __shared__ float shared[32], top_shared[32];
  T* x = logits + static_cast<int64_t>(blockIdx.x) * stride;
  const int target = targets[blockIdx.x], packs = static_cast<int>(stride / 8);
  float top = -INFINITY, total = 0;
  if (target >= 0)
    for (int p = static_cast<int>(threadIdx.x); p < packs; p += kRowThreads) {
      float e[8];
      load8(x + p * 8, e);
      float most = -INFINITY;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (p * 8 + j >= v) e[j] = -INFINITY;
        most = fmaxf(most, e[j]);
      }
      const float next = fmaxf(top, most);
      float few = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) few += __expf(e[j] - next);
      if (next > -INFINITY) total = total * (top > -INFINITY ? __expf(top - next) : 0.0f) + few;
      top = next;
    }
  float all = top;
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, o));
  if (threadIdx.x % 32 == 0) top_shared[threadIdx.x / 32] = all;
  __syncthreads();
  for (int k = 0; k < kRowThreads / 32; ++k) all = fmaxf(all, top_shared[k]);
  total = block_sum(top > -INFINITY ? total * __expf(top - all) : total, shared);
  if (threadIdx.x == 0) losses[blockIdx.x] = target < 0 ? 0.0f : logf(total) + all - to_float(x[target]);
  if (!backward) return;
  __syncthreads();  // thread 0 has read the target's logit
  const float factor = scale / total;
  for (int p = static_cast<int>(threadIdx.x); p < packs; p += kRowThreads) {
    float e[8];
    load8(x + p * 8, e);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int column = p * 8 + j;
      e[j] =
          target < 0 || column >= v ? 0.0f : __expf(e[j] - all) * factor - (column == target ? scale : 0.0f);
    }
    store8(x + p * 8, e);
  }
}

int64_t packs_of(Tensor t) {
  if (t.numel() % 8 != 0) fail("CUDA elementwise op: the number of elements must be a multiple of 8");
  return t.numel() / 8;
}

}  // namespace

void CudaOps::activation(Stream& s, Activation kind, Tensor x, Tensor y) {
  const int64_t packs = packs_of(x);
  by_dtype(x.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    gelu<T><<<blocks_for(packs, kThreads), kThreads, 0, cuda_stream(s)>>>(
        packs, kind == Activation::gelu_tanh, static_cast<T*>(x.data), static_cast<T*>(y.data));
  });
  MT_CUDA(cudaGetLastError());
}

void CudaOps::activation_backward(Stream& s, Activation kind, Tensor x, Tensor dy) {
  const int64_t packs = packs_of(x);
  by_dtype(x.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    gelu_backward<T><<<blocks_for(packs, kThreads), kThreads, 0, cuda_stream(s)>>>(
        packs, kind == Activation::gelu_tanh, static_cast<T*>(x.data), static_cast<T*>(dy.data));
  });
  MT_CUDA(cudaGetLastError());
}

void CudaOps::swiglu(Stream& s, Tensor gate_up, Tensor y) {
  if (y.shape[1] % 8 != 0) fail("CUDA SwiGLU: intermediate_size must be a multiple of 8");
  const int64_t packs = packs_of(y);
  by_dtype(y.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    gate_up_forward<T><<<blocks_for(packs, kThreads), kThreads, 0, cuda_stream(s)>>>(
        packs, y.shape[1], static_cast<T*>(gate_up.data), static_cast<T*>(y.data));
  });
  MT_CUDA(cudaGetLastError());
}

void CudaOps::swiglu_backward(Stream& s, Tensor gate_up, Tensor dy) {
  if (dy.shape[1] % 8 != 0) fail("CUDA SwiGLU: intermediate_size must be a multiple of 8");
  const int64_t packs = packs_of(dy);
  by_dtype(dy.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    gate_up_backward<T><<<blocks_for(packs, kThreads), kThreads, 0, cuda_stream(s)>>>(
        packs, dy.shape[1], static_cast<T*>(gate_up.data), static_cast<T*>(dy.data));
  });
  MT_CUDA(cudaGetLastError());
}

void CudaOps::residual_add(Stream& s, Tensor x, Tensor branch, Tensor y, const Dropout& d) {
  const int64_t packs = packs_of(x);
  by_dtype(x.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    add<T><<<blocks_for(packs, kThreads), kThreads, 0, cuda_stream(s)>>>(
        packs, static_cast<T*>(x.data), static_cast<T*>(branch.data), static_cast<T*>(y.data), d);
  });
  MT_CUDA(cudaGetLastError());
}

void CudaOps::dropout(Stream& s, Tensor in, Tensor out, const Dropout& d) {
  const int64_t packs = packs_of(in);
  by_dtype(in.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    drop<T><<<blocks_for(packs, kThreads), kThreads, 0, cuda_stream(s)>>>(packs, static_cast<T*>(in.data),
                                                                          static_cast<T*>(out.data), d);
  });
  MT_CUDA(cudaGetLastError());
}

void CudaOps::cross_entropy(Stream& s, const CrossEntropyArgs& a) {
  const int64_t n = a.logits.shape[0], v = a.logits.shape[1], stride = a.stride > 0 ? a.stride : v;
  if (stride % 8 != 0) fail("CUDA cross-entropy: the row stride of the logits must be a multiple of 8");
  by_dtype(a.logits.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    cross_entropy_row<T><<<static_cast<unsigned>(n), kRowThreads, 0, cuda_stream(s)>>>(
        static_cast<int>(v), stride, static_cast<T*>(a.logits.data), a.targets.i32(), a.losses.f32(), a.scale,
        a.backward);
  });
  MT_CUDA(cudaGetLastError());
}

void CudaOps::sum(Stream& s, Tensor x, Tensor out, bool squared) {
  auto* part = reinterpret_cast<double*>(scratch());
  const int blocks = blocks_for(x.numel(), kThreads * 8, 8 * multiprocessors());
  by_dtype(x.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    sum_parts<T><<<blocks, kThreads, 0, cuda_stream(s)>>>(x.numel(), static_cast<T*>(x.data), squared, part);
  });
  sum_total<<<1, kThreads, 0, cuda_stream(s)>>>(blocks, part, out.f64());
  MT_CUDA(cudaGetLastError());
}

void CudaOps::fill_bytes(Stream& s, void* data, int value, int64_t bytes) {
  MT_CUDA(cudaMemsetAsync(data, value, static_cast<size_t>(bytes), cuda_stream(s)));
}

void CudaOps::join_planes(Stream& s, const uint16_t* hi, const uint16_t* lo, Tensor weights) {
  join<<<blocks_for(weights.numel(), kThreads), kThreads, 0, cuda_stream(s)>>>(weights.numel(), hi, lo,
                                                                               weights.f32());
  MT_CUDA(cudaGetLastError());
}

}  // namespace megatrain
