// Embedding. The backward sorts (token, position) pairs, stably, and one block adds the rows of one token in
// order: no atomics, the same bits every time.
#include <cub/device/device_radix_sort.cuh>

#include "ops/cuda/kernel_util.cuh"

namespace megatrain {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void forward(int64_t packs, int c, int64_t seq_len, const int32_t* tokens, const T* token_table,
                        const T* position_table, T* out, Dropout d) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= packs) return;
  const int64_t n = i * 8 / c, column = i * 8 % c;
  float a[8], b[8];
  load8(token_table + static_cast<int64_t>(tokens[n]) * c + column, a);
  load8(position_table + n % seq_len * c + column, b);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    a[j] += b[j];
    if (d.probability > 0) a[j] *= dropout_factor(d, static_cast<uint64_t>(i * 8 + j));
  }
  store8(out + i * 8, a);
}

__global__ void iota(int n, int32_t* out) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i < n) out[i] = i;
}

template <class T>
__device__ void add_row(const T* dout, int64_t row, int c, int column, const Dropout& d, float (&acc)[8]) {
  float v[8];
  load8(dout + row * c + column, v);
#pragma unroll
  for (int j = 0; j < 8; ++j)
    acc[j] +=
        d.probability > 0 ? v[j] * dropout_factor(d, static_cast<uint64_t>(row * c + column + j)) : v[j];
}

__device__ void add_to(float* out, const float (&acc)[8]) {
  float v[8];
  load8(out, v);
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] += acc[j];
  store8(out, v);
}

// Block i works only where a run of equal tokens begins.
template <class T>
__global__ void token_rows(int n, int c, const int32_t* tokens, const int32_t* rows, const T* dout,
                           float* table, Dropout d) {
  const int i = static_cast<int>(blockIdx.x), token = tokens[i];
  if (i > 0 && tokens[i - 1] == token) return;
  for (int column = static_cast<int>(threadIdx.x) * 8; column < c;
       column += static_cast<int>(blockDim.x) * 8) {
    float acc[8] = {0};
#pragma unroll 4
    for (int k = i; k < n && tokens[k] == token; ++k) add_row(dout, rows[k], c, column, d, acc);
    add_to(table + static_cast<int64_t>(token) * c + column, acc);
  }
}

template <class T>
__global__ void position_rows(int64_t n, int c, int64_t seq_len, const T* dout, float* table, Dropout d) {
  for (int column = static_cast<int>(threadIdx.x) * 8; column < c;
       column += static_cast<int>(blockDim.x) * 8) {
    float acc[8] = {0};
    for (int64_t row = blockIdx.x; row < n; row += seq_len) add_row(dout, row, c, column, d, acc);
    add_to(table + static_cast<int64_t>(blockIdx.x) * c + column, acc);
  }
}

}  // namespace

void CudaOps::embedding(Stream& s, const EmbeddingArgs& a) {
  const int64_t packs = a.out.numel() / 8;
  by_dtype(a.out.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    forward<T><<<blocks_for(packs, kThreads), kThreads, 0, cuda_stream(s)>>>(
        packs, static_cast<int>(a.out.shape[1]), a.seq_len, a.tokens.i32(),
        static_cast<T*>(a.token_table.data), static_cast<T*>(a.position_table.data),
        static_cast<T*>(a.out.data), a.dropout);
  });
  MT_CUDA(cudaGetLastError());
}

void CudaOps::embedding_backward(Stream& s, const EmbeddingBackwardArgs& a) {
  const int n = static_cast<int>(a.dout.shape[0]), c = static_cast<int>(a.dout.shape[1]);
  auto* order = reinterpret_cast<int32_t*>(scratch());  // rows, sorted tokens, sorted rows, CUB's own
  const int64_t room = (int64_t{n} + 63) / 64 * 64;
  int32_t *sorted_tokens = order + room, *sorted_rows = order + 2 * room;
  iota<<<blocks_for(n, kThreads), kThreads, 0, cuda_stream(s)>>>(n, order);
  size_t bytes = 0;
  MT_CUDA(cub::DeviceRadixSort::SortPairs(nullptr, bytes, a.tokens.i32(), sorted_tokens, order, sorted_rows,
                                          n, 0, 32, cuda_stream(s)));
  if (static_cast<int64_t>(bytes) + 3 * room * 4 > kCudaScratchBytes)
    fail("CUDA embedding: too many tokens in a micro-batch for the scratch; lower micro_batch");
  MT_CUDA(cub::DeviceRadixSort::SortPairs(order + 3 * room, bytes, a.tokens.i32(), sorted_tokens, order,
                                          sorted_rows, n, 0, 32, cuda_stream(s)));
  const int threads = std::min(kThreads, (c / 8 + 31) / 32 * 32);
  by_dtype(a.dout.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    const auto* dout = static_cast<T*>(a.dout.data);
    token_rows<T><<<n, threads, 0, cuda_stream(s)>>>(n, c, sorted_tokens, sorted_rows, dout,
                                                     a.dtoken_table.f32(), a.dropout);
    position_rows<T><<<static_cast<unsigned>(a.seq_len), threads, 0, cuda_stream(s)>>>(
        n, c, a.seq_len, dout, a.dposition_table.f32(), a.dropout);
  });
  MT_CUDA(cudaGetLastError());
}

}  // namespace megatrain
