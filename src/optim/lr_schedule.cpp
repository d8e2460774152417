#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace megatrain {

double learning_rate_at(const LrSchedule& s, int64_t step) {
  const auto t = static_cast<double>(step), warmup = static_cast<double>(s.warmup_steps);
  if (step < s.warmup_steps)
    return s.kind == "cosine_nanogpt" ? s.learning_rate * (t + 1) / (warmup + 1)
                                      : s.learning_rate * t / warmup;
  if (s.kind == "constant") return s.learning_rate;
  const double decay = static_cast<double>(std::max<int64_t>(s.decay_steps, 1));
  const double progress = std::min(1.0, (t - warmup) / decay);
  const double keep = s.kind == "linear" ? 1 - progress : 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return s.min_learning_rate + keep * (s.learning_rate - s.min_learning_rate);
}

}  // namespace megatrain
