#include "data/bpe/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/bpe/normalizer.h"

namespace megatrain {
namespace {

// The code point at `at`, and its length.
int32_t code_point_at(std::string_view text, size_t at, size_t& length) {
  utf8proc_int32_t c = -1;
  const auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                                  static_cast<utf8proc_ssize_t>(text.size() - at), &c);
  length = n > 0 ? static_cast<size_t>(n) : 1;
  return c;
}

size_t previous(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (text[at] & 0xc0) == 0x80);
  return at;
}

bool is_space(int32_t c) {
  return (c >= 9 && c <= 13) || c == 32 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool is_word(int32_t c) {
  const auto k = utf8proc_category(c);
  return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_ND) || k == UTF8PROC_CATEGORY_PC;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  size_t n;
  return (begin == 0 || !is_word(code_point_at(text, previous(text, begin), n))) &&
         (end == text.size() || !is_word(code_point_at(text, end, n)));
}

size_t strip_left(std::string_view text, size_t floor, size_t begin) {
  size_t n;
  while (begin > floor) {
    const size_t before = previous(text, begin);
    if (before < floor || !is_space(code_point_at(text, before, n))) break;
    begin = before;
  }
  return begin;
}

size_t strip_right(std::string_view text, size_t end) {
  for (size_t n; end < text.size() && is_space(code_point_at(text, end, n));) end += n;
  return end;
}

}  // namespace

AddedTokens::AddedTokens(const nlohmann::json& list, const Normalizer& normalizer, const std::string& where) {
  for (const auto& item : list) {
    Token t;
    const auto id = item.at("id").get<int64_t>();
    if (id < 0 || id > 10'000'000) fail(where + ": the id of an added token is out of range");
    t.id = static_cast<int32_t>(id), t.content = item.at("content").get<std::string>();
    t.single_word = item.value("single_word", false), t.lstrip = item.value("lstrip", false);
    t.rstrip = item.value("rstrip", false), t.special = item.value("special", false);
    t.normalized = item.value("normalized", !t.special);
    if (t.content.empty()) continue;
    all_.push_back(t);
    if (t.normalized) t.content = normalizer(t.content);
    if (!t.content.empty())
      by_first_[t.normalized][static_cast<unsigned char>(t.content[0])].push_back(std::move(t));
  }
  for (auto& table : by_first_)
    for (auto& tokens : table)
      std::stable_sort(tokens.begin(), tokens.end(),
                       [](auto& a, auto& b) { return a.content.size() > b.content.size(); });
}

const AddedTokens::Token* AddedTokens::match(std::string_view text, size_t at, bool normalized,
                                             bool ordinary) const {
  for (const Token& t : by_first_[normalized][static_cast<unsigned char>(text[at])])
    if (!(ordinary && t.special) && text.compare(at, t.content.size(), t.content) == 0) return &t;
  return nullptr;
}

void AddedTokens::split(std::string_view text, bool normalized, bool ordinary,
                        const std::function<void(int32_t)>& token,
                        const std::function<void(std::string_view)>& rest) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const Token* t = match(text, at, normalized, ordinary);
    if (!t) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + t->content.size();
    at = end;
    if (t->single_word && !stands_alone(text, begin, end)) continue;
    if (t->lstrip) begin = strip_left(text, done, begin);
    if (t->rstrip) end = strip_right(text, end);
    if (begin > done) rest(text.substr(done, begin - done));
    token(t->id);
    done = end, at = std::max(at, end);
  }
  if (done < text.size()) rest(text.substr(done));
}

const AddedTokens::Token* AddedTokens::find(const std::string& content) const {
  const auto it = std::find_if(all_.begin(), all_.end(), [&](auto& t) { return t.content == content; });
  return it == all_.end() ? nullptr : &*it;
}

bool AddedTokens::holds_words() const {
  return std::any_of(all_.begin(), all_.end(), [](const Token& t) {
    for (size_t i = 0; i + 1 < t.content.size(); ++i)
      if (t.content[i] == ' ' && std::isalpha(static_cast<unsigned char>(t.content[i + 1]))) return true;
    return false;
  });
}

bool AddedTokens::is_special(int32_t id) const {
  return std::any_of(all_.begin(), all_.end(), [&](auto& t) { return t.id == id && t.special; });
}

}  // namespace megatrain
