#pragma once
// defines: mutate — one of the ways in which a file comes to harm.

#include <algorithm>
#include <string>

#include "core/rng.h"

namespace megatrain {

/// Changes `content` in the way that (`seed`, `i`) names, and says how. Never the same bytes by design,
/// though a hole in zeros is none.
inline std::string mutate(std::string& content, uint64_t seed, uint64_t i) {
  auto roll = [&](uint64_t k, uint64_t n) { return random_u64(seed, i, k) % n; };
  const size_t at = content.empty() ? 0 : roll(1, content.size());
  const std::string where = " at " + std::to_string(at);
  switch (content.empty() ? 2 : roll(2, 6)) {
    case 0:
      content[at] = static_cast<char>(content[at] ^ (1 << roll(3, 8)));
      return "a bit" + where;
    case 1:
      content.resize(at);
      return "cut" + where;
    case 2:
      content += std::string(1 + roll(3, 100), '\0');
      return "longer";
    case 3:
      std::fill_n(content.begin() + static_cast<int64_t>(at), std::min<size_t>(64, content.size() - at),
                  '\0');
      return "a hole" + where;
    case 4: {
      const size_t from = roll(3, content.size()),
                   n = std::min<size_t>(1 + roll(4, 64), content.size() - from);
      content.insert(at, content.substr(from, n));
      return "something twice" + where;
    }
    default:
      content.insert(at, 1, content[roll(3, content.size())]);
      return "a byte more" + where;
  }
}

}  // namespace megatrain
