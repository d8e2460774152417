#include "cli/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/rng.h"

namespace megatrain {
namespace {

constexpr uint64_t kSampleStream = uint64_t{1} << 43;
constexpr double kNegligible = 40;  // nats below the best: beneath a double's resolution

void penalise(std::vector<float>& logits, const std::vector<int32_t>& context, double penalty) {
  std::vector<int32_t> seen = context;
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (int32_t t : seen) {
    if (t < 0 || static_cast<size_t>(t) >= logits.size()) continue;
    float& x = logits[static_cast<size_t>(t)];
    x = static_cast<float>(x > 0 ? x / penalty : x * penalty);
  }
}

// Tokens worth looking at, most likely first.
std::vector<int32_t> candidates(const std::vector<float>& logits, double temperature, int64_t top_k) {
  const float best = *std::max_element(logits.begin(), logits.end());
  std::vector<int32_t> order;
  for (size_t i = 0; i < logits.size(); ++i)
    if (static_cast<double>(best - logits[i]) <= kNegligible * temperature)
      order.push_back(static_cast<int32_t>(i));
  auto more_likely = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const size_t keep = top_k > 0 ? std::min(static_cast<size_t>(top_k), order.size()) : order.size();
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(keep), order.end(),
                    more_likely);
  order.resize(keep);
  return order;
}

}  // namespace

int32_t sample_token(const float* raw, int64_t vocab, const SamplingOptions& o,
                     const std::vector<int32_t>& context, uint64_t sequence, uint64_t draw) {
  std::vector<float> logits(raw, raw + vocab);
  if (!std::all_of(logits.begin(), logits.end(), [](float x) { return !std::isnan(x) && x < HUGE_VALF; }))
    fail(
        "the model's logits are not finite: its weights are not sound; train it again from an earlier "
        "checkpoint");
  if (o.repetition_penalty != 1) penalise(logits, context, o.repetition_penalty);
  if (o.temperature <= 0)
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const std::vector<int32_t> order = candidates(logits, o.temperature, o.top_k);
  std::vector<double> p;
  double total = 0;
  for (int32_t t : order) {
    const double d =
        static_cast<double>(logits[static_cast<size_t>(t)]) - logits[static_cast<size_t>(order[0])];
    total += p.emplace_back(std::exp(d / o.temperature));
  }
  size_t keep = 0;
  double kept = 0;
  while (keep < p.size() && (keep == 0 || (kept < o.top_p * total && p[keep] >= o.min_p * p[0])))
    kept += p[keep++];
  double u = random_uniform(static_cast<uint64_t>(o.seed), kSampleStream + sequence, draw) * kept;
  for (size_t i = 0; i < keep; ++i)
    if ((u -= p[i]) <= 0) return order[i];
  return order[keep - 1];
}

}  // namespace megatrain
