#include "data/chat/text.h"

#include <utf8proc.h>

#include <algorithm>

#include "data/tokenizer.h"

namespace megatrain::chat {
namespace {

int32_t code_of(const std::string& character) {
  utf8proc_int32_t c = -1;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(character.data()),
                   static_cast<utf8proc_ssize_t>(character.size()), &c);
  return c;
}

template <class F>
std::string mapped(const std::string& text, F f) {
  std::string out;
  for (const std::string& c : characters(text)) {
    const int32_t code = code_of(c);
    if (code < 0) {
      out += c;
      continue;
    }
    utf8proc_uint8_t buffer[4];
    const auto n = utf8proc_encode_char(f(code), buffer);
    out.append(reinterpret_cast<char*>(buffer), static_cast<size_t>(n));
  }
  return out;
}

// What Python's str.isspace says.
bool is_space(const std::string& character) {
  const int32_t c = code_of(character);
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool is_letter(int32_t c) {
  const auto k = utf8proc_category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

std::vector<std::string> split_words(const std::string& text, int64_t limit) {
  std::vector<std::string> out;
  const auto all = characters(text);
  for (size_t i = 0; i < all.size();) {
    while (i < all.size() && is_space(all[i])) ++i;
    if (i == all.size()) break;
    std::string word;
    const bool rest = limit >= 0 && static_cast<int64_t>(out.size()) >= limit;
    while (i < all.size() && (rest || !is_space(all[i]))) word += all[i++];
    out.push_back(rest ? strip(word, "", 2) : word);
  }
  return out;
}

}  // namespace

std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0, n; at < text.size(); at += n) {
    n = std::max<size_t>(next_code_point(text, at), 1);
    out.push_back(text.substr(at, n));
  }
  return out;
}

std::string upper(const std::string& text) {
  const std::string one = replace(text, "\u00df", "SS", -1);  // the upper case that is longer
  return mapped(one, [](int32_t c) { return utf8proc_toupper(c); });
}
std::string lower(const std::string& text) {
  return mapped(text, [](int32_t c) { return utf8proc_tolower(c); });
}

std::string title(const std::string& text, bool words) {
  bool inside = false;
  return mapped(text, [&](int32_t c) {
    const bool first = !inside;
    inside = !words || is_letter(c);
    return first ? utf8proc_totitle(c) : utf8proc_tolower(c);
  });
}

std::string strip(const std::string& text, const std::string& chars, int sides) {
  const auto all = characters(text), set = characters(chars);
  auto goes = [&](const std::string& c) {
    return set.empty() ? is_space(c) : std::find(set.begin(), set.end(), c) != set.end();
  };
  size_t begin = 0, end = all.size();
  while ((sides & 1) && begin < end && goes(all[begin])) ++begin;
  while ((sides & 2) && begin < end && goes(all[end - 1])) --end;
  std::string out;
  for (size_t i = begin; i < end; ++i) out += all[i];
  return out;
}

std::vector<std::string> split(const std::string& text, const std::string& separator, int64_t limit) {
  if (separator.empty()) return split_words(text, limit);
  std::vector<std::string> out;
  size_t at = 0;
  for (size_t found; (limit < 0 || static_cast<int64_t>(out.size()) < limit) &&
                     (found = text.find(separator, at)) != std::string::npos;
       at = found + separator.size())
    out.push_back(text.substr(at, found - at));
  out.push_back(text.substr(at));
  return out;
}

std::string replace(const std::string& text, const std::string& from, const std::string& to, int64_t limit) {
  if (from.empty()) return text;
  std::string out;
  size_t at = 0;
  for (size_t found; limit-- != 0 && (found = text.find(from, at)) != std::string::npos;
       at = found + from.size())
    out.append(text, at, found - at) += to;
  return out.append(text, at);
}

}  // namespace megatrain::chat
