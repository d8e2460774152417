// Embedding. The backward sorts (token, row) pairs, stably, and cuts them into chunks; a block adds the runs
// of equal tokens inside its chunk. A run that crosses chunks leaves one part in each, and a second kernel
// adds those in order: no atomics, the same bits every time, and no block walks all rows of a frequent token.
#include <cub/device/device_radix_sort.cuh>

#include "ops/cuda/kernel_util.cuh"

namespace megatrain {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void forward(int64_t packs, int c, int64_t seq_len, const int32_t* tokens, const T* token_table,
                        const T* position_table, const int32_t* positions, T* out, Dropout d) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= packs) return;
  const int64_t n = i * 8 / c, column = i * 8 % c;
  float a[8], b[8] = {0};
  load8(token_table + static_cast<int64_t>(tokens[n]) * c + column, a);
  if (position_table) load8(position_table + (positions ? positions[n] : n % seq_len) * c + column, b);
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

struct Sorted {
  const int32_t *tokens, *rows;
  int n, chunk;
  __device__ bool continues(int i) const { return i > 0 && i < n && tokens[i - 1] == tokens[i]; }
};

// parts [chunks, 2, C]: the sum of the run that comes in from the chunk before, and of the one that starts
// here and goes on in the next.
template <class T>
__global__ void chunk_rows(Sorted s, int c, const T* dout, float* table, float* parts, Dropout d) {
  const int begin = static_cast<int>(blockIdx.x) * s.chunk, end = min(begin + s.chunk, s.n);
  float* part = parts + static_cast<int64_t>(blockIdx.x) * 2 * c;
  for (int column = static_cast<int>(threadIdx.x) * 8; column < c;
       column += static_cast<int>(blockDim.x) * 8) {
    for (int i = begin; i < end;) {
      const int token = s.tokens[i];
      const bool entered = s.continues(i);  // only at the chunk's beginning
      float acc[8] = {0};
#pragma unroll 4
      for (; i < end && s.tokens[i] == token; ++i) add_row(dout, s.rows[i], c, column, d, acc);
      if (entered)
        store8(part + column, acc);
      else if (i == end && s.continues(end))
        store8(part + c + column, acc);
      else
        add_to(table + static_cast<int64_t>(token) * c + column, acc);
    }
  }
}

// The block of the chunk where a run starts that goes on.
__global__ void join_parts(Sorted s, int c, const float* parts, float* table) {
  const int end = (static_cast<int>(blockIdx.x) + 1) * s.chunk, begin = end - s.chunk;
  if (end >= s.n || !s.continues(end)) return;
  const int token = s.tokens[end];
  if (s.tokens[begin] == token && s.continues(begin)) return;  // came in from before
  for (int column = static_cast<int>(threadIdx.x) * 8; column < c;
       column += static_cast<int>(blockDim.x) * 8) {
    float acc[8], v[8];
    load8(parts + (static_cast<int64_t>(blockIdx.x) * 2 + 1) * c + column, acc);
    for (int at = end; at < s.n && s.tokens[at] == token; at += s.chunk) {
      load8(parts + static_cast<int64_t>(at / s.chunk) * 2 * c + column, v);
#pragma unroll
      for (int j = 0; j < 8; ++j) acc[j] += v[j];
    }
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

int threads_for(int c) {
  return std::min(kThreads, (c / 8 + 31) / 32 * 32);
}

// Adds the rows of dout to the table's rows that `keys` [N] name. Scratch: rows, sorted keys, sorted rows,
// CUB's own, then parts.
struct RowScatter {
  const EmbeddingBackwardArgs& a;
  int32_t* scratch;
  cudaStream_t stream;

  void run(const Tensor& keys, const Tensor& table) const {
    const int n = static_cast<int>(a.dout.shape[0]), c = static_cast<int>(a.dout.shape[1]);
    const int64_t room = (int64_t{n} + 63) / 64 * 64;
    int32_t *sorted_keys = scratch + room, *sorted_rows = scratch + 2 * room;
    iota<<<blocks_for(n, kThreads), kThreads, 0, stream>>>(n, scratch);
    size_t bytes = 0;
    MT_CUDA(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys.i32(), sorted_keys, scratch, sorted_rows, n,
                                            0, 32, stream));
    const int64_t sorting = (3 * room * 4 + static_cast<int64_t>(bytes) + 255) / 256 * 256;
    const int chunk = chunk_of(n, c, sorting);
    MT_CUDA(cub::DeviceRadixSort::SortPairs(scratch + 3 * room, bytes, keys.i32(), sorted_keys, scratch,
                                            sorted_rows, n, 0, 32, stream));
    auto* parts = reinterpret_cast<float*>(reinterpret_cast<char*>(scratch) + sorting);
    const Sorted sorted{sorted_keys, sorted_rows, n, chunk};
    const int chunks = (n + chunk - 1) / chunk;
    by_dtype(a.dout.dtype, [&](auto* t) {
      using T = std::remove_pointer_t<decltype(t)>;
      chunk_rows<T><<<chunks, threads_for(c), 0, stream>>>(sorted, c, static_cast<T*>(a.dout.data),
                                                           table.f32(), parts, a.dropout);
    });
    join_parts<<<chunks, threads_for(c), 0, stream>>>(sorted, c, parts, table.f32());
    MT_CUDA(cudaGetLastError());
  }

 private:
  // Rows of a chunk: 32, or more so that the parts fit behind what sorting takes.
  static int chunk_of(int n, int c, int64_t sorting) {
    const int64_t room = kCudaScratchBytes - sorting, part = int64_t{2} * c * 4;
    int chunk = 32;
    while (chunk < n && (n / chunk + 1) * part > room) chunk *= 2;
    if ((n + chunk - 1) / chunk * part > room)
      fail("CUDA embedding: too many tokens in a micro-batch for the scratch; lower micro_batch");
    return chunk;
  }
};

}  // namespace

void CudaOps::embedding(Stream& s, const EmbeddingArgs& a) {
  const int64_t packs = a.out.numel() / 8;
  by_dtype(a.out.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    forward<T><<<blocks_for(packs, kThreads), kThreads, 0, cuda_stream(s)>>>(
        packs, static_cast<int>(a.out.shape[1]), a.seq_len, a.tokens.i32(),
        static_cast<T*>(a.token_table.data), static_cast<T*>(a.position_table.data),
        static_cast<int32_t*>(a.positions.data), static_cast<T*>(a.out.data), a.dropout);
  });
  MT_CUDA(cudaGetLastError());
}

void CudaOps::embedding_backward(Stream& s, const EmbeddingBackwardArgs& a) {
  const RowScatter scatter{a, reinterpret_cast<int32_t*>(scratch()), cuda_stream(s)};
  scatter.run(a.tokens, a.dtoken_table);
  if (!a.dposition_table) return;
  if (a.positions) return scatter.run(a.positions, a.dposition_table);
  const int64_t n = a.dout.shape[0];
  const int c = static_cast<int>(a.dout.shape[1]);
  by_dtype(a.dout.dtype, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    position_rows<T><<<static_cast<unsigned>(a.seq_len), threads_for(c), 0, cuda_stream(s)>>>(
        n, c, a.seq_len, static_cast<T*>(a.dout.data), a.dposition_table.f32(), a.dropout);
  });
  MT_CUDA(cudaGetLastError());
}

}  // namespace megatrain
