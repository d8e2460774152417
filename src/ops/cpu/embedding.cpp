#include <cstring>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"

namespace megatrain {
namespace {

void forward(ThreadPool& pool, const EmbeddingArgs& a) {
  const int64_t n = a.out.shape[0], c = a.out.shape[1];
  pool.parallel_ranges(n, row_grain(c), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* out = a.out.f32() + i * c;
      const float* row = a.token_table.f32() + int64_t{a.tokens.i32()[i]} * c;
      const int64_t position = a.positions ? a.positions.i32()[i] : i % a.seq_len;
      if (a.position_table)
        cpu_kernels().add(c, row, a.position_table.f32() + position * c, out);
      else
        std::memcpy(out, row, static_cast<size_t>(c) * sizeof(float));
      if (a.dropout.probability <= 0) continue;
      DropoutMask mask(a.dropout, static_cast<uint64_t>(i * c));
      for (int64_t j = 0; j < c; ++j) out[j] *= mask.next();
    }
  });
}

// Each item owns a slice of columns and walks the tokens in order: no atomics, one order of addition.
void backward(ThreadPool& pool, const EmbeddingBackwardArgs& a) {
  const int64_t n = a.dout.shape[0], c = a.dout.shape[1];
  pool.parallel_ranges(c, 64, [&](int64_t begin, int64_t end) {
    float row[64];
    for (int64_t i = 0; i < n; ++i) {
      const float* dout = a.dout.f32() + i * c + begin;
      if (a.dropout.probability > 0) {
        DropoutMask mask(a.dropout, static_cast<uint64_t>(i * c + begin));
        for (int64_t j = 0; j < end - begin; ++j) row[j] = dout[j] * mask.next();
        dout = row;
      }
      cpu_kernels().axpy(end - begin, 1, dout, a.dtoken_table.f32() + int64_t{a.tokens.i32()[i]} * c + begin);
      if (!a.dposition_table) continue;
      const int64_t position = a.positions ? a.positions.i32()[i] : i % a.seq_len;
      cpu_kernels().axpy(end - begin, 1, dout, a.dposition_table.f32() + position * c + begin);
    }
  });
}

}  // namespace

void CpuOps::embedding(Stream& s, const EmbeddingArgs& a) {
  cpu_stream(s).enqueue([a](ThreadPool& pool) { forward(pool, a); });
}

void CpuOps::embedding_backward(Stream& s, const EmbeddingBackwardArgs& a) {
  cpu_stream(s).enqueue([a](ThreadPool& pool) { backward(pool, a); });
}

}  // namespace megatrain
