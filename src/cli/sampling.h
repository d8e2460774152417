#pragma once
// defines: SamplingOptions, sample_token — how the next token is chosen from its logits.

#include <cstdint>
#include <vector>

namespace megatrain {

/// Applied in this order, as transformers does: repetition penalty, temperature, top-k, top-p, min-p.
struct SamplingOptions {
  double temperature = 1.0;  ///< 0: the most likely token
  int64_t top_k = 0;         ///< 0: all
  double top_p = 1.0;
  double min_p = 0.0;               ///< share of the most likely token's probability
  double repetition_penalty = 1.0;  ///< Keskar et al. 2019; on every token of the sequence so far
  int64_t seed = 1337;
};

/// `sequence` numbers the sequence and `draw` the token: the same pair draws the same number.
int32_t sample_token(const float* logits, int64_t vocab_size, const SamplingOptions& options,
                     const std::vector<int32_t>& context, uint64_t sequence, uint64_t draw);

}  // namespace megatrain
