#include <cmath>
#include <cstring>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"

namespace megatrain {
namespace {

void row(const CrossEntropyArgs& a, int64_t r) {
  const int64_t v = a.logits.shape[1];
  const int64_t stride = a.stride > 0 ? a.stride : v;
  float* x = a.logits.f32() + r * stride;
  if (a.backward) std::memset(x + v, 0, static_cast<size_t>(stride - v) * sizeof(float));
  const int32_t target = a.targets.i32()[r];
  if (target < 0) {
    a.losses.f32()[r] = 0;
    if (a.backward) std::memset(x, 0, static_cast<size_t>(v) * sizeof(float));
    return;
  }
  const float top = cpu_kernels().max(v, x), at_target = x[target];
  const float total = cpu_kernels().exp_sum(v, top, x);
  a.losses.f32()[r] = std::log(total) + top - at_target;
  if (!a.backward) return;
  cpu_kernels().scale(v, a.scale / total, x);
  x[target] -= a.scale;
}

}  // namespace

void CpuOps::cross_entropy(Stream& s, const CrossEntropyArgs& a) {
  cpu_stream(s).enqueue([a](ThreadPool& pool) {
    pool.parallel_ranges(a.logits.shape[0], row_grain(a.logits.shape[1]), [&](int64_t b, int64_t e) {
      for (int64_t r = b; r < e; ++r) row(a, r);
    });
  });
}

}  // namespace megatrain
