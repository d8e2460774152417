#include <algorithm>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/gemm_tile.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"

namespace megatrain {
namespace {

// Tiles depend on the shape alone, never on the number of threads: same bits on any machine size.
struct Tiling {
  int64_t rows, columns;
};

Tiling tiling(int64_t m, int64_t n) {
  Tiling t{m, n};
  auto count = [&] { return ((m + t.rows - 1) / t.rows) * ((n + t.columns - 1) / t.columns); };
  while (count() < 16 && (t.rows > 64 || t.columns > 128)) {
    int64_t& longer = t.rows * 2 > t.columns ? t.rows : t.columns;
    longer = (longer + 1) / 2;
  }
  t.rows = std::min<int64_t>((t.rows + 7) / 8 * 8, 1024);
  t.columns = std::min<int64_t>((t.columns + 15) / 16 * 16, 1024);
  return t;
}

void gemm_tiles(ThreadPool& pool, const GemmArgs& g) {
  const int64_t m = g.c.shape[0], n = g.c.shape[1], k = g.a.shape[g.trans_a ? 0 : 1];
  const int64_t lda = g.lda > 0 ? g.lda : g.a.shape[1], ldb = g.ldb > 0 ? g.ldb : g.b.shape[1];
  const int64_t ldc = g.ldc > 0 ? g.ldc : n;
  const Tiling tile = tiling(m, n);
  const int64_t across = (n + tile.columns - 1) / tile.columns;
  const int64_t down = (m + tile.rows - 1) / tile.rows;
  pool.parallel_for(across * down, [&](int64_t t) {
    const int64_t i = t / across * tile.rows, j = t % across * tile.columns;
    const int64_t rows = std::min(tile.rows, m - i), columns = std::min(tile.columns, n - j);
    const float* a = g.a.f32() + (g.trans_a ? i : i * lda);
    const float* b = g.b.f32() + (g.trans_b ? j * ldb : j);
    float* c = g.c.f32() + i * ldc + j;
    gemm_tile(g.trans_a, g.trans_b, rows, columns, k, 1, a, lda, b, ldb, g.accumulate ? 1.0f : 0.0f, c, ldc);
    if (!g.bias) return;
    for (int64_t r = 0; r < rows; ++r) cpu_kernels().add(columns, c + r * ldc, g.bias.f32() + j, c + r * ldc);
  });
}

}  // namespace

void check_shapes(const GemmArgs& g) {
  const int64_t k = g.a.shape[g.trans_a ? 0 : 1];
  if (k != g.b.shape[g.trans_b ? 1 : 0] || g.c.shape[0] != g.a.shape[g.trans_a ? 1 : 0] ||
      g.c.shape[1] != g.b.shape[g.trans_b ? 0 : 1])
    throw std::logic_error("gemm: shapes do not agree");
}

void CpuOps::gemm(Stream& s, const GemmArgs& g) {
  check_shapes(g);
  cpu_stream(s).enqueue([g](ThreadPool& pool) { gemm_tiles(pool, g); });
}

void CpuOps::column_sum(Stream& s, Tensor x, Tensor out) {
  cpu_stream(s).enqueue([x, out](ThreadPool& pool) {
    const int64_t n = x.shape[0], c = x.shape[1];
    pool.parallel_ranges(c, 64, [&](int64_t begin, int64_t end) {
      cpu_kernels().column_sum(n, c, end - begin, x.f32() + begin, out.f32() + begin);
    });
  });
}

}  // namespace megatrain
