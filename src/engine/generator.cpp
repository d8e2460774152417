#include "engine/generator.h"

#include <algorithm>

namespace megatrain {

Generator::Generator(Engine& engine) : engine_(engine), capacity_(engine.plan().cache_capacity) {
  const auto b = static_cast<size_t>(engine.plan().batch);
  sequences_.assign(b, {0}), start_.assign(b, 0), past_.assign(b, 0);
}

void Generator::set(int64_t b, const std::vector<int32_t>& tokens) {
  const auto i = static_cast<size_t>(b);
  if (tokens.empty()) throw std::logic_error("a sequence needs a token");
  const auto same = std::mismatch(sequences_[i].begin(), sequences_[i].end(), tokens.begin(), tokens.end());
  const auto shared = static_cast<size_t>(same.first - sequences_[i].begin());
  if (start_[i] > 0) start_[i] = 0, past_[i] = 0;
  // The last token is always fed: its logits are wanted.
  past_[i] = std::min(past_[i], static_cast<int32_t>(std::min(shared, tokens.size() - 1)));
  sequences_[i] = tokens;
}

void Generator::slide(size_t b) {
  if (static_cast<int64_t>(sequences_[b].size() - start_[b]) <= capacity_) return;
  start_[b] = sequences_[b].size() - static_cast<size_t>(std::max<int64_t>(capacity_ / 2, 1));
  past_[b] = 0;
}

// The next `count` tokens of every sequence, but never its last one unless count is 1.
const float* Generator::feed(int64_t count) {
  const size_t n = sequences_.size();
  std::vector<int32_t> tokens(n * static_cast<size_t>(count), 0), advance(n);
  for (size_t b = 0; b < n; ++b) {
    const size_t at = start_[b] + static_cast<size_t>(past_[b]), left = sequences_[b].size() - at;
    const size_t take = count == 1 ? 1 : std::min(left - 1, static_cast<size_t>(count));
    std::copy_n(sequences_[b].begin() + static_cast<std::ptrdiff_t>(at), take,
                tokens.begin() + static_cast<std::ptrdiff_t>(b * static_cast<size_t>(count)));
    advance[b] = static_cast<int32_t>(take);
  }
  const float* logits = engine_.decode(tokens.data(), count, past_.data());
  for (size_t b = 0; b < n; ++b) past_[b] += advance[b];
  return logits;
}

const float* Generator::next_logits() {
  for (size_t b = 0; b < sequences_.size(); ++b) {
    slide(b);
    // Asked again without a new token: feed the last one anew.
    past_[b] = std::min(past_[b], static_cast<int32_t>(sequences_[b].size() - start_[b] - 1));
  }
  for (;;) {
    int64_t longest = 0;
    for (size_t b = 0; b < sequences_.size(); ++b)
      longest = std::max(longest, static_cast<int64_t>(sequences_[b].size() - start_[b]) - past_[b]);
    if (longest <= 1) return feed(1);
    // A piece of one would feed last tokens too early; at two, the shorter sequences are padded.
    feed(std::min(std::max<int64_t>(longest - 1, 2), engine_.plan().seq_len));
  }
}

}  // namespace megatrain
