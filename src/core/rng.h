#pragma once
// defines: philox4x32, random_u32 / uniform helpers — counter-based random numbers.
// The same (seed, stream, counter) always gives the same number, on any device and in any order, so a
// dropout mask can be made again in the recompute. Philox: Salmon et al., SC'11.

#include <cstdint>

namespace megatrain {

struct Philox4 {
  uint32_t v[4] = {};
};

constexpr Philox4 philox4x32(uint64_t counter, uint64_t stream, uint64_t seed) {
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32);
  uint32_t c2 = static_cast<uint32_t>(stream), c3 = static_cast<uint32_t>(stream >> 32);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c0;
    const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1), c3 = static_cast<uint32_t>(p0), c0 = n0, c2 = n2;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Element `index` of random stream `stream`.
constexpr uint32_t random_u32(uint64_t seed, uint64_t stream, uint64_t index) {
  return philox4x32(index >> 2, stream, seed).v[index & 3];
}

constexpr uint64_t random_u64(uint64_t seed, uint64_t stream, uint64_t index) {
  const Philox4 p = philox4x32(index, stream, seed);
  return (static_cast<uint64_t>(p.v[0]) << 32) | p.v[1];
}

/// Uniform in (0, 1].
inline double random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
  return (static_cast<double>(random_u64(seed, stream, index) >> 11) + 1.0) * 0x1.0p-53;
}

}  // namespace megatrain
