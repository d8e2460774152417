#include "data/loader.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/rng.h"

namespace megatrain {
namespace {
constexpr uint64_t kShuffleStream = uint64_t{1} << 41, kOffsetStream = uint64_t{1} << 42;
}

uint64_t permute(uint64_t index, uint64_t n, uint64_t key) {
  unsigned half = 1;
  while ((uint64_t{1} << (2 * half)) < n) ++half;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  do {
    uint64_t left = index >> half, right = index & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t next = left ^ (random_u64(key, kShuffleStream + round, right) & mask);
      left = right, right = next;
    }
    index = (left << half) | right;
  } while (index >= n);
  return index;
}

Loader::Loader(const TokenFile& file, int64_t batch, int64_t seq_len, const std::string& sampling,
               uint64_t seed)
    : file_(file),
      batch_(batch),
      seq_len_(seq_len),
      windows_(file.documents() > 0 ? file.documents() : (file.size() - 1) / seq_len),
      random_(sampling == "random"),
      sequential_(sampling == "sequential"),
      seed_(seed),
      window_(static_cast<size_t>(seq_len) + 1) {
  if (windows_ < 1)
    fail(fmt::format("{}: {} tokens are too few for sequence_length {}; it needs at least {}", file.path(),
                     file.size(), seq_len, seq_len + 1));
}

int64_t Loader::window_of(uint64_t index) const {
  const auto windows = static_cast<uint64_t>(windows_);
  if (sequential_) return static_cast<int64_t>(index % windows);
  if (random_) return static_cast<int64_t>(random_u64(seed_, kOffsetStream, index) % windows);
  return static_cast<int64_t>(permute(index % windows, windows, seed_ + 0x9E3779B9u * (index / windows)));
}

int64_t Loader::start_of(uint64_t index) const {
  if (!random_) return window_of(index) * seq_len_;
  return static_cast<int64_t>(random_u64(seed_, kOffsetStream, index) %
                              static_cast<uint64_t>(file_.size() - seq_len_));
}

int64_t read_document(const TokenFile& file, int64_t i, int64_t seq_len, int32_t* tokens, int32_t* targets) {
  const auto [start, size] = file.document(i);
  const int64_t n = std::min(size - 1, seq_len);  // inputs
  int64_t count = 0;
  std::fill(tokens, tokens + seq_len, 0);
  std::fill(targets, targets + seq_len, -1);
  if (n < 1) return 0;
  file.read(start, n, tokens);
  file.read(start + 1, n, targets);
  for (int64_t t = 0; t < n; ++t) {
    if (!file.trained(start + 1 + t)) targets[t] = -1;
    count += targets[t] >= 0;
  }
  return count;
}

void Loader::batch(int64_t step, int32_t* tokens, int32_t* targets) {
  for (int64_t i = 0; i < batch_; ++i) {
    const auto index = static_cast<uint64_t>(step * batch_ + i);
    if (file_.documents() > 0) {
      read_document(file_, window_of(index), seq_len_, tokens + i * seq_len_, targets + i * seq_len_);
      continue;
    }
    file_.read(start_of(index), seq_len_ + 1, window_.data());
    std::copy_n(window_.data(), seq_len_, tokens + i * seq_len_);
    std::copy_n(window_.data() + 1, seq_len_, targets + i * seq_len_);
  }
}

}  // namespace megatrain
