#pragma once
// defines: gemm_tile — one single-threaded matrix product; the library behind it is OpenBLAS when built
// in and healthy, else the portable kernel. Callers cut the work into fixed tiles (deterministic for any
// number of threads).

#include <cstdint>

namespace megatrain {

void gemm_tile(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
               int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);
/// "OpenBLAS" or "portable", for the start-up table.
const char* gemm_library();

}  // namespace megatrain
