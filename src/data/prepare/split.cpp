#include "data/prepare/split.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"

namespace megatrain {
namespace {

// numpy/random/bit_generator.pyx, SeedSequence with an entropy of one word.
struct SeedPool {
  uint32_t words[4] = {0, 0, 0, 0};
  uint32_t constant = 0x43b0d7e5;

  explicit SeedPool(uint32_t seed) {
    for (int i = 0; i < 4; ++i) words[i] = hashed(i == 0 ? seed : 0);
    for (int from = 0; from < 4; ++from)
      for (int to = 0; to < 4; ++to)
        if (from != to) words[to] = mixed(words[to], hashed(words[from]));
  }
  uint32_t hashed(uint32_t value) {
    value ^= constant;
    constant *= 0x931e8875;
    value *= constant;
    return value ^ (value >> 16);
  }
  static uint32_t mixed(uint32_t x, uint32_t y) {
    const uint32_t r = 0xca01f9dd * x - 0x4973f715 * y;
    return r ^ (r >> 16);
  }
  std::vector<uint64_t> generate(int count) const {
    std::vector<uint64_t> out;
    uint32_t hash = 0x8b51f9dd;
    for (int i = 0; i < 2 * count; ++i) {
      uint32_t v = words[i % 4] ^ hash;
      hash *= 0x58f38ded;
      v *= hash;
      v ^= v >> 16;
      if (i % 2 == 0)
        out.push_back(v);
      else
        out.back() |= static_cast<uint64_t>(v) << 32;
    }
    return out;
  }
};

__extension__ typedef unsigned __int128 Wide;
constexpr Wide kMultiplier = (static_cast<Wide>(0x2360ED051FC65DA4ull) << 64) | 0x4385DF649FCCF645ull;

}  // namespace

NumpyRandom::NumpyRandom(uint32_t seed) {
  const auto words = SeedPool(seed).generate(4);
  const auto start = (static_cast<Wide>(words[0]) << 64) | words[1];
  increment_ = (((static_cast<Wide>(words[2]) << 64) | words[3]) << 1) | 1;
  state_ = increment_ + start;
  state_ = state_ * kMultiplier + increment_;
}

uint64_t NumpyRandom::next64() {
  state_ = state_ * kMultiplier + increment_;
  const auto high = static_cast<uint64_t>(state_ >> 64), x = high ^ static_cast<uint64_t>(state_);
  const auto turn = static_cast<unsigned>(high >> 58);
  return (x >> turn) | (x << ((64 - turn) & 63));
}

uint32_t NumpyRandom::next32() {
  if (has_half_) {
    has_half_ = false;
    return half_;
  }
  const uint64_t both = next64();
  has_half_ = true, half_ = static_cast<uint32_t>(both >> 32);
  return static_cast<uint32_t>(both);
}

uint32_t NumpyRandom::bounded(uint32_t bound) {
  const uint32_t mask = bound == 0 ? 0 : std::numeric_limits<uint32_t>::max() >> std::countl_zero(bound);
  uint32_t value = 0;
  do value = bound == 0 ? 0 : next32() & mask;
  while (value > bound);
  return value;
}

std::vector<uint32_t> validation_rows(uint64_t n, double fraction, uint32_t seed) {
  if (fraction <= 0 || n == 0) return {};
  if (n > std::numeric_limits<uint32_t>::max())
    fail("val_fraction: more than 4 billion rows cannot be split; give a validation file of its own");
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  NumpyRandom random(seed);
  for (auto i = static_cast<uint32_t>(n - 1); i > 0; --i) std::swap(order[i], order[random.bounded(i)]);
  order.resize(static_cast<size_t>(std::ceil(fraction * static_cast<double>(n))));
  std::sort(order.begin(), order.end());
  order.shrink_to_fit();
  return order;
}

}  // namespace megatrain
