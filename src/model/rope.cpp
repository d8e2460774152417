#include "model/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace megatrain {
namespace {

// fp32 where transformers computes in fp32, so that long positions turn by the same angle.
std::vector<float> plain(double base, int64_t dim) {
  std::vector<float> out;
  for (int64_t i = 0; i < dim; i += 2)
    out.push_back(1.0f / std::pow(static_cast<float>(base), static_cast<float>(i) / static_cast<float>(dim)));
  return out;
}

double magnitude(double scale, double m) {
  return scale <= 1 ? 1 : 0.1 * m * std::log(scale) + 1;
}

// Peng et al. 2023.
RopeTable yarn(const ModelSpec& spec, RopeTable t) {
  const RopeSpec& r = spec.rope;
  const auto dim = static_cast<double>(spec.head_dim());
  const double original = static_cast<double>(r.original_max_position_embeddings);
  auto correction = [&](double rotations) {
    return dim * std::log(original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(r.theta));
  };
  double low = correction(r.beta_fast), high = correction(r.beta_slow);
  if (r.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < t.inv_freq.size(); ++i) {
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
    const float keep = 1 - ramp, f = t.inv_freq[i];
    t.inv_freq[i] = f / static_cast<float>(r.factor) * (1 - keep) + f * keep;
  }
  if (r.attention_factor > 0)
    t.factor = static_cast<float>(r.attention_factor);
  else if (r.mscale != 0 && r.mscale_all_dim != 0)
    t.factor = static_cast<float>(magnitude(r.factor, r.mscale) / magnitude(r.factor, r.mscale_all_dim));
  else
    t.factor = static_cast<float>(magnitude(r.factor, 1));
  return t;
}

RopeTable llama3(const ModelSpec& spec, RopeTable t) {
  const RopeSpec& r = spec.rope;
  const double original = static_cast<double>(r.original_max_position_embeddings);
  const double low_wave = original / r.low_freq_factor, high_wave = original / r.high_freq_factor;
  for (float& f : t.inv_freq) {
    const double wave = 2 * std::numbers::pi / static_cast<double>(f);
    if (wave < high_wave) continue;
    const double smooth = (original / wave - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor);
    const double slow = static_cast<double>(f) / r.factor;
    f = static_cast<float>(wave > low_wave ? slow : (1 - smooth) * slow + smooth * static_cast<double>(f));
  }
  return t;
}

}  // namespace

RopeTable make_rope_table(const ModelSpec& spec, int64_t seq_len) {
  const RopeSpec& r = spec.rope;
  const int64_t dim = spec.head_dim();
  RopeTable t{plain(r.theta, dim), 1};
  if (r.type == "default") return t;
  if (r.type == "linear") {
    for (float& f : t.inv_freq) f /= static_cast<float>(r.factor);
    return t;
  }
  if (r.type == "dynamic") {
    const auto most = static_cast<double>(spec.max_position_embeddings);
    const double length = std::max(static_cast<double>(seq_len), most), d = static_cast<double>(dim);
    return {plain(r.theta * std::pow(r.factor * length / most - (r.factor - 1), d / (d - 2)), dim), 1};
  }
  if (r.type == "yarn") return yarn(spec, std::move(t));
  if (r.type == "llama3") return llama3(spec, std::move(t));
  fail(fmt::format("rope_type '{}' is not supported; supported: default, linear, dynamic, yarn, llama3",
                   r.type));
}

}  // namespace megatrain
