#pragma once
// defines: AdamWConfig, adamw_step, adamw_update_unit — AdamW on the host over one unit's block.

#include "core/thread_pool.h"
#include "ops/adamw_step.h"
#include "store/state_store.h"

namespace megatrain {

/// Hyper-parameters of one optimizer step (Loshchilov & Hutter 2019). Weight decay is decoupled, scaled
/// by the learning rate, and applies to parameters of dimension >= 2 only (nanoGPT, gigaGPT).
struct AdamWConfig {
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
};

/// The constants of one step for a parameter that decays, or does not. `step` counts from 1 (bias
/// correction); gradients are first multiplied by `gradient_scale` (the clip coefficient).
AdamWStep adamw_step(const AdamWConfig& config, int64_t step, double gradient_scale, bool decays);

/// Updates hi, lo, m and v of `unit` from its fp32 gradient, which is first multiplied by
/// `gradient_scale` (the clip coefficient). `step` counts from 1 (bias correction). Every instruction
/// set and thread count gives the same bits.
void adamw_update_unit(ThreadPool& pool, const UnitLayout& layout, const UnitState& state,
                       const float* gradient, const AdamWConfig& config, int64_t step, double gradient_scale);

}  // namespace megatrain
