// Layer norm and RMS norm: one block a row, the row in registers, 16-byte accesses. The backward reads x and
// dy once: each block walks rows, fetching the next while the warps agree on the sums of this one, and keeps
// its part of dweight and dbias in registers; a second kernel adds the parts in order.
#include "ops/cuda/kernel_util.cuh"

namespace megatrain {
namespace {

constexpr int kThreads = 256;

// V packs of 8 elements a thread: C <= 2048·V. Without mean_out: RMS norm.
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    forward(int c, const T* x, const T* w, const T* b, float eps, T* y, float* mean_out, float* rstd_out) {
  __shared__ float shared[32];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * c;
  float v[V][8], sum = 0, square = 0;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int at = (i * kThreads + static_cast<int>(threadIdx.x)) * 8;
    if (at < c) load8(x + row + at, v[i]);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (at >= c) v[i][j] = 0;
      sum += v[i][j];
    }
  }
  const float mean = mean_out ? block_sum(sum, shared) / static_cast<float>(c) : 0.0f;
#pragma unroll
  for (int i = 0; i < V; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if ((i * kThreads + static_cast<int>(threadIdx.x)) * 8 < c)
        square += (v[i][j] - mean) * (v[i][j] - mean);
  const float rstd = rsqrtf(block_sum(square, shared) / static_cast<float>(c) + eps);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int at = (i * kThreads + static_cast<int>(threadIdx.x)) * 8;
    if (at >= c) continue;
    float ww[8], bb[8] = {0};
    load8(w + at, ww);
    if (b) load8(b + at, bb);
#pragma unroll
    for (int j = 0; j < 8; ++j) v[i][j] = (v[i][j] - mean) * rstd * ww[j] + bb[j];
    store8(y + row + at, v[i]);
  }
  if (threadIdx.x != 0) return;
  if (mean_out) mean_out[blockIdx.x] = mean;
  rstd_out[blockIdx.x] = rstd;
}

// Eight elements as they lie in memory.
template <class T>
struct Pack {
  uint4 raw[sizeof(T) / 2];
  __device__ void fetch(const T* p) {
#pragma unroll
    for (size_t i = 0; i < sizeof(T) / 2; ++i) raw[i] = reinterpret_cast<const uint4*>(p)[i];
  }
  __device__ void get(float (&v)[8]) const {
    load8(reinterpret_cast<const T*>(raw), v);
  }
};

// One row of x, dy and (to be added to) dx.
template <class T, int V>
struct BackwardRow {
  Pack<T> x[V], dy[V], dx[V];
  __device__ void fetch(int64_t row, int c, const T* px, const T* pdy, const T* pdx) {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const int at = (i * kThreads + static_cast<int>(threadIdx.x)) * 8;
      if (at >= c) continue;
      x[i].fetch(px + row * c + at);
      dy[i].fetch(pdy + row * c + at);
      if (pdx) dx[i].fetch(pdx + row * c + at);
    }
  }
};

// kCentered: layer norm; else RMS norm, which has neither mean nor bias.
template <class T, int V, bool kCentered>
__global__ void __launch_bounds__(kThreads)
    backward(int64_t n, int c, const T* x, const T* w, const float* mean, const float* rstd, const T* dy,
             T* dx, bool accumulate, float* partial) {
  __shared__ float2 shared[2][kThreads / 32];
  float dw[V][8] = {}, db[V][8] = {};
  int phase = 0;
  BackwardRow<T, V> next;
  next.fetch(blockIdx.x, c, x, dy, accumulate ? dx : nullptr);
  for (int64_t r = blockIdx.x; r < n; r += gridDim.x, phase ^= 1) {
    const BackwardRow<T, V> row = next;
    const float m = kCentered ? mean[r] : 0.0f, s = rstd[r];
    float sum_g = 0, sum_gx = 0;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const int at = (i * kThreads + static_cast<int>(threadIdx.x)) * 8;
      if (at >= c) continue;
      float xh[8], d[8], ww[8];
      row.x[i].get(xh), row.dy[i].get(d);
      load8(w + at, ww);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        xh[j] = (xh[j] - m) * s;
        dw[i][j] += d[j] * xh[j];
        if (kCentered) db[i][j] += d[j];
        const float g = d[j] * ww[j];
        sum_g += g, sum_gx += g * xh[j];
      }
    }
    if (r + gridDim.x < n) next.fetch(r + gridDim.x, c, x, dy, accumulate ? dx : nullptr);
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
      if (kCentered) sum_g += __shfl_xor_sync(0xffffffffu, sum_g, o);
      sum_gx += __shfl_xor_sync(0xffffffffu, sum_gx, o);
    }
    if (threadIdx.x % 32 == 0) shared[phase][threadIdx.x / 32] = make_float2(sum_g, sum_gx);
    __syncthreads();  // one barrier a row: the two phases keep fast warps from overwriting
    float mg = 0, mgx = 0;
#pragma unroll
    for (int k = 0; k < kThreads / 32; ++k) mg += shared[phase][k].x, mgx += shared[phase][k].y;
    mg = kCentered ? mg / static_cast<float>(c) : 0.0f, mgx /= static_cast<float>(c);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const int at = (i * kThreads + static_cast<int>(threadIdx.x)) * 8;
      if (at >= c) continue;
      float out[8] = {0}, xh[8], d[8], ww[8];
      if (accumulate) row.dx[i].get(out);
      row.x[i].get(xh), row.dy[i].get(d);
      load8(w + at, ww);
#pragma unroll
      for (int j = 0; j < 8; ++j) out[j] += s * (d[j] * ww[j] - mg - (xh[j] - m) * s * mgx);
      store8(dx + r * c + at, out);
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const int at = (i * kThreads + static_cast<int>(threadIdx.x)) * 8;
    if (at >= c) continue;
    float* p = partial + static_cast<int64_t>(blockIdx.x) * 2 * c + at;
    store8(p, dw[i]);
    if (kCentered) store8(p + c, db[i]);
  }
}

// out[j] += sum over rows of partial[:, j], rows in a fixed order: 32 columns a block, 8 row groups.
__global__ void add_rows(int rows, int64_t stride, int c, const float* partial, float* out) {
  __shared__ float part[8][33];
  const int column = static_cast<int>(blockIdx.x) * 32 + static_cast<int>(threadIdx.x);
  float sum = 0;
  if (column < c)
    for (int r = static_cast<int>(threadIdx.y); r < rows; r += 8) sum += partial[r * stride + column];
  part[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= c) return;
  for (int k = 1; k < 8; ++k) sum += part[k][threadIdx.x];
  out[column] += sum;
}

// Column sums: a block takes 256 columns (one pack a lane, 8 warps share the rows).
template <class T>
__global__ void column_parts(int64_t n, int c, const T* x, float* partial) {
  __shared__ float part[8][32][9];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int at = (static_cast<int>(blockIdx.x) * 32 + lane) * 8;
  float acc[8] = {0};
  if (at < c)
    for (int64_t r = blockIdx.y * 8 + warp; r < n; r += gridDim.y * 8) {
      float v[8];
      load8(x + r * c + at, v);
#pragma unroll
      for (int j = 0; j < 8; ++j) acc[j] += v[j];
    }
#pragma unroll
  for (int j = 0; j < 8; ++j) part[warp][lane][j] = acc[j];
  __syncthreads();
  if (warp != 0 || at >= c) return;
  for (int k = 1; k < 8; ++k)
#pragma unroll
    for (int j = 0; j < 8; ++j) acc[j] += part[k][lane][j];
  store8(partial + static_cast<int64_t>(blockIdx.y) * c + at, acc);
}

// Calls f with the number of packs as a compile-time constant.
template <class F>
void by_packs(int64_t c, F&& f) {
  if (c % 8 != 0 || c > 2048 * 8) fail("CUDA layer norm: hidden_size must be a multiple of 8, at most 16384");
  const int64_t packs = (c + 2047) / 2048;
  if (packs <= 1)
    f(std::integral_constant<int, 1>());
  else if (packs == 2)
    f(std::integral_constant<int, 2>());
  else if (packs <= 4)
    f(std::integral_constant<int, 4>());
  else
    f(std::integral_constant<int, 8>());
}

}  // namespace

void add_partial_rows(cudaStream_t stream, int rows, int64_t stride, int64_t columns, const float* partial,
                      float* out) {
  add_rows<<<blocks_for(columns, 32), dim3(32, 8), 0, stream>>>(rows, stride, static_cast<int>(columns),
                                                                partial, out);
  MT_CUDA(cudaGetLastError());
}

void CudaOps::layer_norm(Stream& s, const LayerNormArgs& a) {
  const int64_t n = a.x.shape[0], c = a.x.shape[1];
  by_dtype(a.x.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    by_packs(c, [&](auto v) {
      forward<T, decltype(v)::value><<<static_cast<unsigned>(n), kThreads, 0, cuda_stream(s)>>>(
          static_cast<int>(c), static_cast<T*>(a.x.data), static_cast<T*>(a.weight.data),
          static_cast<T*>(a.bias.data), a.eps, static_cast<T*>(a.y.data), a.mean.f32(), a.rstd.f32());
    });
  });
  MT_CUDA(cudaGetLastError());
}

void CudaOps::layer_norm_backward(Stream& s, const LayerNormBackwardArgs& a) {
  const int64_t n = a.x.shape[0], c = a.x.shape[1];
  auto* partial = reinterpret_cast<float*>(scratch());
  const int grid = static_cast<int>(std::min<int64_t>(n, 4 * multiprocessors()));
  by_dtype(a.x.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    by_packs(c, [&](auto v) {
      const auto kernel =
          a.mean ? backward<T, decltype(v)::value, true> : backward<T, decltype(v)::value, false>;
      kernel<<<grid, kThreads, 0, cuda_stream(s)>>>(
          n, static_cast<int>(c), static_cast<T*>(a.x.data), static_cast<T*>(a.weight.data), a.mean.f32(),
          a.rstd.f32(), static_cast<T*>(a.dy.data), static_cast<T*>(a.dx.data), a.accumulate, partial);
    });
  });
  add_partial_rows(cuda_stream(s), grid, 2 * c, c, partial, a.dweight.f32());
  if (a.dbias) add_partial_rows(cuda_stream(s), grid, 2 * c, c, partial + c, a.dbias.f32());
}

void CudaOps::column_sum(Stream& s, Tensor x, Tensor out) {
  const int64_t n = x.shape[0], c = x.shape[1];
  if (c % 8 != 0) fail("CUDA column sum: the width must be a multiple of 8");
  auto* partial = reinterpret_cast<float*>(scratch());
  const int across = blocks_for(c, 256);
  const int down =
      static_cast<int>(std::min<int64_t>((n + 31) / 32, std::max(1, 8 * multiprocessors() / across)));
  by_dtype(x.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    column_parts<T>
        <<<dim3(static_cast<unsigned>(across), static_cast<unsigned>(down)), 256, 0, cuda_stream(s)>>>(
            n, static_cast<int>(c), static_cast<T*>(x.data), partial);
  });
  add_partial_rows(cuda_stream(s), down, c, c, partial, out.f32());
}

}  // namespace megatrain
