#pragma once
// defines: LrSchedule, learning_rate_at — the learning rate as a pure function of the optimizer step.

#include <cstdint>
#include <string>

namespace megatrain {

/// kind: "cosine_nanogpt": lr·(step+1)/(warmup+1), then a cosine from lr to min_lr that ends at step
///   warmup + decay (nanoGPT's lr_decay_iters), then min_lr.
/// "cosine" (gigaGPT): lr·step/warmup, then a cosine to min_lr over `decay` steps, then min_lr.
/// "linear": the same warm-up, then a line to min_lr. "constant": warm-up, then lr.
struct LrSchedule {
  std::string kind = "cosine";
  double learning_rate = 0, min_learning_rate = 0;
  int64_t warmup_steps = 0, decay_steps = 0;
};

/// `step` counts from 0.
double learning_rate_at(const LrSchedule& schedule, int64_t step);

}  // namespace megatrain
