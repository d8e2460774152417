#pragma once
// defines: NumpyRandom, validation_rows — the validation rows that Hugging Face datasets' train_test_split
// (so nanoGPT's prepare.py) draws.

#include <cstdint>
#include <vector>

namespace megatrain {

/// numpy's default_rng(seed): PCG64 (O'Neill 2014) seeded through SeedSequence.
class NumpyRandom {
 public:
  explicit NumpyRandom(uint32_t seed);
  uint64_t next64();
  uint32_t next32();
  /// Uniform in [0, bound] by masking and drawing again, as Generator.shuffle does it.
  uint32_t bounded(uint32_t bound);

 private:
  __extension__ typedef unsigned __int128 Wide;
  Wide state_ = 0, increment_ = 0;
  bool has_half_ = false;
  uint32_t half_ = 0;
};

/// The first ceil(fraction · n) of default_rng(seed).permutation(n), sorted. n below 2^32.
std::vector<uint32_t> validation_rows(uint64_t n, double fraction, uint32_t seed);

}  // namespace megatrain
