#pragma once
// defines: Pattern — a pre-tokenizer's regular expression, matched as the tokenizers package (Oniguruma)
// does.

#include <memory>
#include <string>
#include <string_view>

namespace megatrain {

/// Compiled by PCRE2 with its JIT. \s, \S and \w are written out, since the two libraries disagree about
/// them. Constructs that mean something else in Oniguruma are refused. Safe to use from several threads.
class Pattern {
 public:
  /// `where` starts the errors.
  static Pattern regex(const std::string& expression, const std::string& where);
  static Pattern literal(const std::string& text);

  /// One pass over a text; not shared between threads.
  class Matcher {
   public:
    /// `text` is valid UTF-8 and outlives the matcher.
    Matcher(const Pattern& pattern, std::string_view text);
    ~Matcher();
    Matcher(const Matcher&) = delete;
    Matcher& operator=(const Matcher&) = delete;
    /// Next non-empty match behind the last one; false at the end. Throws Error when the match is too
    /// complex.
    bool next(size_t& begin, size_t& end);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  explicit Pattern(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;
};

/// `expression` for PCRE2 (exposed for tests).
std::string translate_regex(const std::string& expression, const std::string& where);

}  // namespace megatrain
