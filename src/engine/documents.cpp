#include "engine/documents.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace megatrain {
namespace {

struct Span {
  int32_t first, length;
};

std::vector<Span> spans_of(const int32_t* positions, int64_t n, int64_t seq_len) {
  std::vector<Span> list;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t p = positions[i];
    if (p != 0 && (i % seq_len == 0 || p != positions[i - 1] + 1))
      throw std::logic_error("the positions of a packed batch do not count up");
    if (p == 0)
      list.push_back({static_cast<int32_t>(i), 1});
    else
      ++list.back().length;
  }
  return list;
}

int64_t size_class(int32_t length) {
  return std::max<int64_t>(128, static_cast<int64_t>(std::bit_ceil(static_cast<uint32_t>(length))));
}

}  // namespace

std::vector<DocumentGroup> find_documents(const int32_t* positions, int64_t n, int64_t seq_len,
                                          int32_t* spans) {
  std::vector<Span> list = spans_of(positions, n, seq_len);
  std::stable_sort(list.begin(), list.end(), [](Span a, Span b) { return a.length > b.length; });
  std::vector<DocumentGroup> groups;
  for (size_t i = 0; i < list.size(); ++i) {
    spans[i] = list[i].first, spans[static_cast<size_t>(n) + i] = list[i].length;
    if (groups.empty() ||
        size_class(list[i].length) != size_class(static_cast<int32_t>(groups.back().longest)))
      groups.push_back({static_cast<int64_t>(i), 0, list[i].length});
    ++groups.back().count;
  }
  return groups;
}

}  // namespace megatrain
