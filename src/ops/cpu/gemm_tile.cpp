#include "ops/cpu/gemm_tile.h"

#include <cmath>
#include <vector>

#include "ops/cpu/kernels.h"

#ifdef MT_WITH_OPENBLAS
#include <cblas.h>
#endif

namespace megatrain {
namespace {

void portable(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
              const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  // alpha is folded into C: only alpha == 1, or overwriting products, are used.
  cpu_kernels().gemm(ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc);
  if (alpha != 1.0f)
    for (int64_t i = 0; i < m; ++i) cpu_kernels().scale(n, alpha, c + i * ldc);
}

#ifdef MT_WITH_OPENBLAS
void blas(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
          const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans,
              static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), alpha, a, static_cast<int>(lda),
              b, static_cast<int>(ldb), beta, c, static_cast<int>(ldc));
}

// Old OpenBLAS builds give wrong products on processors newer than they know; compare once at start.
bool blas_is_healthy() {
  openblas_set_num_threads(1);
  for (int64_t size : {5, 64, 131}) {
    const auto n = static_cast<size_t>(size * size);
    std::vector<float> a(n), b(n), got(n), want(n);
    for (size_t i = 0; i < n; ++i) {
      a[i] = static_cast<float>(static_cast<int>(i * 37 % 19) - 9) / 8;
      b[i] = static_cast<float>(static_cast<int>(i * 53 % 23) - 11) / 8;
    }
    for (int t = 0; t < 4; ++t) {
      blas(t & 1, t & 2, size, size, size, 1, a.data(), size, b.data(), size, 0, got.data(), size);
      portable(t & 1, t & 2, size, size, size, 1, a.data(), size, b.data(), size, 0, want.data(), size);
      for (size_t i = 0; i < n; ++i)
        if (!(std::fabs(got[i] - want[i]) <= 1e-2f)) return false;
    }
  }
  return true;
}
#endif

struct Backend {
  decltype(&portable) gemm = portable;
  const char* name = "portable";
};

const Backend& backend() {
  static const Backend chosen = [] {
    Backend b;
#ifdef MT_WITH_OPENBLAS
    if (blas_is_healthy()) b.gemm = blas, b.name = "OpenBLAS";
#endif
    return b;
  }();
  return chosen;
}

}  // namespace

void gemm_tile(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda,
               const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  backend().gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

const char* gemm_library() {
  return backend().name;
}

}  // namespace megatrain
