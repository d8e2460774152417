#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/bpe/pattern.h"

#include <fmt/format.h>
#include <pcre2.h>

#include "core/error.h"

namespace megatrain {
namespace {

// Unicode White_Space; PCRE2's own \s differs (U+180E).
constexpr const char* kSpace =
    "\\t\\n\\v\\f\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr const char* kWord = "\\p{L}\\p{M}\\p{Nd}\\p{Pc}";
constexpr uint32_t kMatchLimit = 10'000'000, kDepthLimit = 10'000;
constexpr size_t kMaxExpression = 10'000;

// A class escape of ours, inside or outside of brackets.
std::string spelled(char escape, bool in_class, const std::string& where) {
  const char* set = escape == 's' || escape == 'S' ? kSpace : kWord;
  const bool negative = escape == 'S' || escape == 'W';
  if (!in_class) return fmt::format("[{}{}]", negative ? "^" : "", set);
  if (negative) fail(fmt::format("{}: \\{} inside brackets is not supported", where, escape));
  return set;
}

}  // namespace

std::string translate_regex(const std::string& e, const std::string& where) {
  if (e.size() > kMaxExpression) fail(where + ": the regular expression is too long");
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < e.size(); ++i) {
    const char c = e[i];
    if (c == '\\' && i + 1 < e.size()) {
      const char n = e[++i];
      if (n == 's' || n == 'S' || n == 'w' || n == 'W')
        out += spelled(n, in_class, where);
      else if (std::string("hHKRXNOyYgk").find(n) != std::string::npos)
        fail(fmt::format("{}: \\{} in a regular expression is not supported", where, n));
      else
        out += {c, n};
      continue;
    }
    if (in_class && (c == '[' || (c == '&' && i + 1 < e.size() && e[i + 1] == '&')))
      fail(where + ": nested or intersected brackets in a regular expression are not supported");
    if (c == '[' && !in_class) {
      in_class = true;
      out += c;
      if (i + 1 < e.size() && e[i + 1] == '^') out += e[++i];
      if (i + 1 < e.size() && e[i + 1] == ']') out += "\\]", ++i;
      continue;
    }
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

struct Pattern::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

Pattern Pattern::regex(const std::string& expression, const std::string& where) {
  const std::string translated = translate_regex(expression, where);
  auto code = std::make_shared<Code>();
  int error = 0;
  PCRE2_SIZE at = 0;
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                             PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
  if (!code->code) {
    PCRE2_UCHAR message[200] = {};
    pcre2_get_error_message(error, message, sizeof message);
    fail(fmt::format("{}: the regular expression does not compile: {}", where,
                     reinterpret_cast<const char*>(message)));
  }
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);
  return Pattern(code);
}

Pattern Pattern::literal(const std::string& text) {
  std::string quoted;
  for (char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c))) quoted += '\\';
    quoted += c;
  }
  return regex(quoted, "a literal pattern");
}

struct Pattern::Matcher::State {
  std::shared_ptr<const Code> code;
  std::string_view text;
  size_t at = 0;
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  ~State() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

Pattern::Matcher::Matcher(const Pattern& pattern, std::string_view text) : state_(new State) {
  state_->code = pattern.code_, state_->text = text;
  state_->match = pcre2_match_data_create_from_pattern(pattern.code_->code, nullptr);
  state_->context = pcre2_match_context_create(nullptr);
  state_->stack = pcre2_jit_stack_create(32 << 10, 1 << 20, nullptr);
  pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
  pcre2_set_match_limit(state_->context, kMatchLimit);
  pcre2_set_depth_limit(state_->context, kDepthLimit);
}

Pattern::Matcher::~Matcher() = default;

bool Pattern::Matcher::next(size_t& begin, size_t& end) {
  State& s = *state_;
  while (s.at < s.text.size()) {
    const int rc = pcre2_match(s.code->code, reinterpret_cast<PCRE2_SPTR>(s.text.data()), s.text.size(), s.at,
                               PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, s.match, s.context);
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    if (rc < 0) fail(fmt::format("tokenizer: the text is too complex to split (PCRE2 error {})", rc));
    const PCRE2_SIZE* o = pcre2_get_ovector_pointer(s.match);
    begin = o[0], end = o[1];
    s.at = end;
    if (end > begin) return true;
    return false;
  }
  return false;
}

}  // namespace megatrain
