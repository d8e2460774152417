#include "data/chat/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "data/chat/value.h"

namespace megatrain::chat {
namespace {

bool is_name_start(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) || c == '_';
}
bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c));
}
bool is_space(char c) {
  return std::isspace(static_cast<unsigned char>(c));
}

std::string code_point(uint32_t c) {
  std::string s;
  if (c < 0x80)
    s += static_cast<char>(c);
  else if (c < 0x800)
    s += {static_cast<char>(0xc0 | (c >> 6)), static_cast<char>(0x80 | (c & 63))};
  else if (c < 0x10000)
    s += {static_cast<char>(0xe0 | (c >> 12)), static_cast<char>(0x80 | ((c >> 6) & 63)),
          static_cast<char>(0x80 | (c & 63))};
  else
    s += {static_cast<char>(0xf0 | (c >> 18)), static_cast<char>(0x80 | ((c >> 12) & 63)),
          static_cast<char>(0x80 | ((c >> 6) & 63)), static_cast<char>(0x80 | (c & 63))};
  return s;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : s_(std::move(source)) {
    for (size_t at = 0; (at = s_.find("\r\n", at)) != std::string::npos;) s_.erase(at, 1);
    std::replace(s_.begin(), s_.end(), '\r', '\n');
    if (!s_.empty() && s_.back() == '\n') s_.pop_back();
  }

  std::vector<Token> run() {
    while (at_ < s_.size()) text();
    add(Token::end, "");
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw TemplateError(fmt::format("line {}: {}", line_, what));
  }
  void add(Token::Type type, std::string value) { out_.push_back({type, std::move(value), line_}); }
  bool starts(const char* word) const { return s_.compare(at_, std::string(word).size(), word) == 0; }
  void advance(size_t n) {
    line_ += static_cast<int>(std::count(s_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         s_.begin() + static_cast<std::ptrdiff_t>(at_ + n), '\n'));
    at_ += n;
  }

  // Text up to the next tag, then the tag.
  void text() {
    size_t tag = at_;
    while ((tag = s_.find('{', tag)) != std::string::npos && tag + 1 < s_.size() && s_[tag + 1] != '{' &&
           s_[tag + 1] != '%' && s_[tag + 1] != '#')
      ++tag;
    if (tag == std::string::npos || tag + 1 >= s_.size()) tag = s_.size();
    std::string words = s_.substr(at_, tag - at_);
    if (strip_next_) words.erase(0, words.find_first_not_of(" \t\n\v\f"));
    strip_next_ = false;
    if (tag < s_.size()) strip_before(words, tag);
    if (!words.empty()) add(Token::text, words);
    advance(tag - at_);
    if (at_ < s_.size()) this->tag();
  }

  // '-' strips all white space before the tag; a block or comment alone on its line strips its indentation.
  void strip_before(std::string& words, size_t tag) const {
    const char kind = s_[tag + 1], mark = tag + 2 < s_.size() ? s_[tag + 2] : ' ';
    if (mark == '-') {
      words.erase(words.find_last_not_of(" \t\n\v\f") + 1);
      return;
    }
    if (kind == '{' || mark == '+') return;
    if (at_line_start(tag)) words.erase(words.find_last_not_of(" \t") + 1);
  }
  // Only blanks between the line's start and the tag.
  bool at_line_start(size_t tag) const {
    const size_t before = tag == 0 ? std::string::npos : s_.find_last_not_of(" \t", tag - 1);
    return before == std::string::npos || s_[before] == '\n';
  }

  void tag() {
    const char kind = s_[at_ + 1];
    advance(2);
    if (kind == '#') return comment();
    if (at_ < s_.size() && (s_[at_] == '-' || s_[at_] == '+')) advance(1);
    if (kind == '%' && raw()) return;
    add(kind == '%' ? Token::block_begin : Token::output_begin, "");
    inside(kind == '%' ? "%}" : "}}", kind == '%');
  }

  void comment() {
    const size_t end = s_.find("#}", at_);
    if (end == std::string::npos) refuse("a comment is not closed");
    const bool strip = end > at_ && s_[end - 1] == '-';
    advance(end + 2 - at_);
    after_block(strip, end > 0 && s_[end - 1] == '+');
  }

  bool raw() {
    size_t i = at_;
    while (i < s_.size() && is_space(s_[i])) ++i;
    if (s_.compare(i, 3, "raw") != 0) return false;
    const size_t open = s_.find("%}", i);
    const size_t close = open == std::string::npos ? open : s_.find("{% endraw %}", open);
    if (close == std::string::npos) return false;
    advance(open + 2 - at_);
    add(Token::text, s_.substr(at_, close - at_));
    advance(close + 12 - at_);
    after_block(false, false);
    return true;
  }

  // trim_blocks: the first line end behind a block goes too.
  void after_block(bool strip, bool keep) {
    strip_next_ = strip;
    if (!strip && !keep && at_ < s_.size() && s_[at_] == '\n') advance(1);
  }

  void inside(const char* close, bool block) {
    int braces = 0;
    for (;;) {
      while (at_ < s_.size() && is_space(s_[at_])) advance(1);
      if (at_ >= s_.size()) refuse("a tag is not closed");
      const bool marked = (s_[at_] == '-' || s_[at_] == '+') && s_.compare(at_ + 1, 2, close) == 0;
      if (braces == 0 && (marked || starts(close))) {
        const bool strip = marked && s_[at_] == '-', keep = marked && s_[at_] == '+';
        advance(marked ? 3 : 2);
        add(block ? Token::block_end : Token::output_end, "");
        if (block)
          after_block(strip, keep);
        else
          strip_next_ = strip;
        return;
      }
      token(braces);
    }
  }

  void token(int& braces) {
    const char c = s_[at_];
    if (is_name_start(c)) return word();
    if (is_digit(c)) return number();
    if (c == '\'' || c == '"') return string();
    for (const char* symbol : {"==", "!=", "<=", ">=", "//", "**"})
      if (starts(symbol)) {
        add(Token::symbol, symbol);
        return advance(2);
      }
    if (std::string("+-*/%~<>=()[]{},.:|").find(c) == std::string::npos)
      refuse(fmt::format("unexpected character '{}'", c));
    if (c == '{' || c == '[' || c == '(') ++braces;
    if (c == '}' || c == ']' || c == ')') braces = std::max(braces - 1, 0);
    add(Token::symbol, std::string(1, c));
    advance(1);
  }

  void word() {
    size_t end = at_;
    while (end < s_.size() && (is_name_start(s_[end]) || is_digit(s_[end]))) ++end;
    add(Token::name, s_.substr(at_, end - at_));
    advance(end - at_);
  }

  void number() {
    size_t end = at_;
    bool whole = true;
    auto digits = [&] {
      while (end < s_.size() && (is_digit(s_[end]) || s_[end] == '_')) ++end;
    };
    digits();
    if (end + 1 < s_.size() && s_[end] == '.' && is_digit(s_[end + 1])) whole = false, ++end, digits();
    if (end < s_.size() && (s_[end] == 'e' || s_[end] == 'E')) {
      const size_t sign = end + 1 < s_.size() && (s_[end + 1] == '-' || s_[end + 1] == '+') ? 1 : 0;
      if (end + 1 + sign < s_.size() && is_digit(s_[end + 1 + sign]))
        whole = false, end += 1 + sign, digits();
    }
    std::string value = s_.substr(at_, end - at_);
    std::erase(value, '_');
    if (value.size() > 18 && whole) refuse("a number is too large");
    add(whole ? Token::integer : Token::real, value);
    advance(end - at_);
  }

  void string() {
    const char quote = s_[at_];
    std::string value;
    size_t i = at_ + 1;
    for (; i < s_.size() && s_[i] != quote; ++i) {
      if (s_[i] != '\\' || i + 1 >= s_.size())
        value += s_[i];
      else
        escape(++i, value);
    }
    if (i >= s_.size()) refuse("a string is not closed");
    add(Token::string, value);
    advance(i + 1 - at_);
  }

  void escape(size_t& i, std::string& value) const {
    const char c = s_[i];
    const std::string plain = "ntrbfva0", meaning = std::string("\n\t\r\b\f\v\a\0", 8);
    if (const size_t at = plain.find(c); at != std::string::npos) {
      value += meaning[at];
    } else if (c == 'u' || c == 'x' || c == 'U') {
      const size_t n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      uint32_t code = 0;
      if (i + n >= s_.size()) refuse("a string has a broken escape");
      for (size_t k = 1; k <= n; ++k) {
        if (!std::isxdigit(static_cast<unsigned char>(s_[i + k]))) refuse("a string has a broken escape");
        code = code * 16 + static_cast<uint32_t>(std::stoi(std::string(1, s_[i + k]), nullptr, 16));
      }
      if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) refuse("a string has a broken escape");
      value += code_point(code);
      i += n;
    } else if (c == '\\' || c == '\'' || c == '"') {
      value += c;
    } else if (c != '\n') {
      value += {'\\', c};
    }
  }

  std::string s_;
  size_t at_ = 0;
  int line_ = 1;
  bool strip_next_ = false;
  std::vector<Token> out_;
};

}  // namespace

std::vector<Token> tokenize(const std::string& source) {
  return Lexer(source).run();
}

}  // namespace megatrain::chat
