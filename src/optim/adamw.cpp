#include "optim/adamw.h"

#include <cmath>

#include "ops/cpu/kernels.h"

namespace megatrain {

AdamWStep adamw_step(const AdamWConfig& c, int64_t step, double gradient_scale, bool decays) {
  AdamWStep k{};
  k.beta1 = static_cast<float>(c.beta1), k.beta2 = static_cast<float>(c.beta2);
  k.epsilon = static_cast<float>(c.epsilon);
  const auto t = static_cast<double>(step);
  k.step_size = static_cast<float>(c.learning_rate / (1 - std::pow(c.beta1, t)));
  k.sqrt_correction = static_cast<float>(std::sqrt(1 - std::pow(c.beta2, t)));
  k.gradient_scale = static_cast<float>(gradient_scale);
  k.decay_factor = decays ? static_cast<float>(1 - c.learning_rate * c.weight_decay) : 1.0f;
  return k;
}

void adamw_update_unit(ThreadPool& pool, const UnitLayout& layout, const UnitState& s, const float* gradient,
                       const AdamWConfig& c, int64_t step, double gradient_scale) {
  for (const Parameter& p : layout.parameters) {
    const AdamWStep k = adamw_step(c, step, gradient_scale, p.decay);
    pool.parallel_near(p.offset, p.numel, layout.numel, 65536, [&](int64_t begin, int64_t end) {
      const int64_t at = p.offset + begin;
      cpu_kernels().adamw(end - begin, s.hi + at, s.lo + at, s.m + at, s.v + at, gradient + at, &k);
    });
  }
}

}  // namespace megatrain
