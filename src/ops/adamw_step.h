#pragma once
// defines: AdamWStep (std only).

namespace megatrain {

/// Constants of one AdamW step for one run of parameters (Loshchilov & Hutter 2019; PyTorch's order of
/// operations). step_size = lr / (1 - beta1^t), sqrt_correction = sqrt(1 - beta2^t).
struct AdamWStep {
  float beta1, beta2, epsilon, decay_factor, step_size, sqrt_correction, gradient_scale;
};

}  // namespace megatrain
