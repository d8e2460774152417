#pragma once
// defines: Generator — several sequences that grow token by token over one key-value cache.

#include <vector>

#include "engine/engine.h"

namespace megatrain {

/// Feeds an engine whose plan has a cache: prompts of different lengths side by side, in pieces of at most
/// the plan's seq_len tokens, then one token at a time. A sequence that outgrows the cache goes on with its
/// last half.
class Generator {
 public:
  explicit Generator(Engine& engine);
  /// Replaces sequence b (at least one token). What it shares with the old one from the start is not computed
  /// again.
  void set(int64_t b, const std::vector<int32_t>& tokens);
  void append(int64_t b, int32_t token) { sequences_[static_cast<size_t>(b)].push_back(token); }
  const std::vector<int32_t>& sequence(int64_t b) const { return sequences_[static_cast<size_t>(b)]; }
  /// logits [batch, V] of the token that follows each sequence, valid until the next call.
  const float* next_logits();

 private:
  void slide(size_t b);
  const float* feed(int64_t count);

  Engine& engine_;
  int64_t capacity_;
  std::vector<std::vector<int32_t>> sequences_;  // whole, as the caller sees them
  std::vector<size_t> start_;                    // where the part that is in the cache's window begins
  std::vector<int32_t> past_;                    // tokens behind start_ that the cache holds
};

}  // namespace megatrain
