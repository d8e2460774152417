#pragma once
// defines: Loader — batches as a pure function of (seed, step): nothing to save but the step.

#include <string>
#include <vector>

#include "data/token_file.h"

namespace megatrain {

/// A file of documents gives one document a row, cut to seq_len + 1 tokens and padded; targets are the tokens
/// marked as trained. A stream gives windows:
/// sampling "epoch": non-overlapping windows, shuffled anew each epoch without keeping a permutation in
/// memory (gigaGPT's order, made resumable). "random": random offsets with replacement (nanoGPT).
/// "sequential": the windows in file order, again and again.
class Loader {
 public:
  Loader(const TokenFile& file, int64_t batch, int64_t seq_len, const std::string& sampling, uint64_t seed);
  /// Fills tokens and targets [batch · seq_len] of optimizer step `step`.
  void batch(int64_t step, int32_t* tokens, int32_t* targets);
  int64_t windows() const { return windows_; }  ///< windows, or documents, of one epoch

 private:
  int64_t window_of(uint64_t index) const;
  int64_t start_of(uint64_t index) const;
  const TokenFile& file_;
  int64_t batch_, seq_len_, windows_;
  bool random_, sequential_;
  uint64_t seed_;
  std::vector<int32_t> window_;
};

/// Row of document i: tokens and targets [seq_len], padded with 0 and -1. Returns the number of targets.
int64_t read_document(const TokenFile& file, int64_t i, int64_t seq_len, int32_t* tokens, int32_t* targets);

/// Position `index` of a random permutation of [0, n) named by `key` (a Feistel network, cycle-walked).
uint64_t permute(uint64_t index, uint64_t n, uint64_t key);

}  // namespace megatrain
