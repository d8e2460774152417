#include "data/bpe/gpt2_scanner.h"

#include <utf8proc.h>

#include <array>

namespace megatrain {
namespace {

enum Class : unsigned char { letter, digit, space, other };

bool is_space(utf8proc_int32_t c) {  // Unicode White_Space
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

Class class_of(utf8proc_int32_t c) {
  if (is_space(c)) return space;
  const utf8proc_category_t k = utf8proc_category(c);
  if (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) return letter;
  return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO ? digit : other;
}

constexpr std::array<Class, 128> kAscii = [] {
  std::array<Class, 128> t{};
  for (size_t c = 0; c < 128; ++c) {
    const bool alpha = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool blank = c == ' ' || (c >= '\t' && c <= '\r');
    t[c] = alpha ? letter : c >= '0' && c <= '9' ? digit : blank ? space : other;
  }
  return t;
}();

// Class and length of the code point at `at`.
struct Point {
  Class kind;
  size_t bytes;
  Point(std::string_view text, size_t at) {
    const auto c = static_cast<unsigned char>(text[at]);
    if (c < 0x80) {
      kind = kAscii[c], bytes = 1;
      return;
    }
    utf8proc_int32_t point = 0;
    const auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                                    static_cast<utf8proc_ssize_t>(text.size() - at), &point);
    kind = n > 0 ? class_of(point) : other, bytes = n > 0 ? static_cast<size_t>(n) : 1;
  }
};

size_t run_of(std::string_view text, size_t at, Class kind) {
  while (at < text.size()) {
    const Point p(text, at);
    if (p.kind != kind) break;
    at += p.bytes;
  }
  return at;
}

// Bytes of 's, 't, 'll and so on at an apostrophe; 0: none.
size_t contraction(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? text[at + i] : '\0'; };
  const char a = byte(1), b = byte(2);
  if (a == 's' || a == 'd' || a == 'm' || a == 't') return 2;
  return (a == 'l' && b == 'l') || (a == 'v' && b == 'e') || (a == 'r' && b == 'e') ? 3 : 0;
}

// \s+(?!\S)|\s+: a run of blanks leaves its last one to what follows.
size_t blanks(std::string_view text, size_t at) {
  size_t end = at, last = at, count = 0;
  while (end < text.size()) {
    const Point p(text, end);
    if (p.kind != space) break;
    last = end, end += p.bytes, ++count;
  }
  return end == text.size() || count == 1 ? end : last;
}

}  // namespace

size_t gpt2_piece(std::string_view text, size_t at) {
  if (text[at] == '\'')
    if (const size_t n = contraction(text, at)) return at + n;
  size_t start = at;
  if (text[at] == ' ' && at + 1 < text.size()) ++start;
  const Point p(text, start);
  if (p.kind == space) return blanks(text, at);
  return run_of(text, start + p.bytes, p.kind);
}

}  // namespace megatrain
