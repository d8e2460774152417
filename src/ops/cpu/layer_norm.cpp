#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"

namespace megatrain {
namespace {

void backward(ThreadPool& pool, const LayerNormBackwardArgs& a) {
  const int64_t n = a.x.shape[0], c = a.x.shape[1];
  // Columns first: dx may be x itself.
  pool.parallel_ranges(c, 64, [&](int64_t begin, int64_t end) {
    cpu_kernels().layer_norm_backward_columns(n, c, end - begin, a.x.f32() + begin, a.mean.f32(),
                                              a.rstd.f32(), a.dy.f32() + begin, a.dweight.f32() + begin,
                                              a.dbias ? a.dbias.f32() + begin : nullptr);
  });
  pool.parallel_ranges(n, row_grain(c), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      cpu_kernels().layer_norm_backward_row(c, a.x.f32() + r * c, a.weight.f32(),
                                            a.mean ? a.mean.f32() + r : nullptr, a.rstd.f32()[r],
                                            a.dy.f32() + r * c, a.dx.f32() + r * c, a.accumulate);
  });
}

}  // namespace

void CpuOps::layer_norm(Stream& s, const LayerNormArgs& a) {
  cpu_stream(s).enqueue([a](ThreadPool& pool) {
    const int64_t n = a.x.shape[0], c = a.x.shape[1];
    pool.parallel_ranges(n, row_grain(c), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        cpu_kernels().layer_norm_row(c, a.x.f32() + r * c, a.weight.f32(), a.bias.f32(), a.eps,
                                     a.y.f32() + r * c, a.mean ? a.mean.f32() + r : nullptr,
                                     a.rstd.f32() + r);
    });
  });
}

void CpuOps::layer_norm_backward(Stream& s, const LayerNormBackwardArgs& a) {
  cpu_stream(s).enqueue([a](ThreadPool& pool) { backward(pool, a); });
}

}  // namespace megatrain
