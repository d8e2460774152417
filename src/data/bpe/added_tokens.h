#pragma once
// defines: AddedTokens — tokens that are found in the text before anything else looks at it.

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace megatrain {

class Normalizer;

/// tokenizers' AddedVocabulary: leftmost-longest matches, with single_word, lstrip and rstrip.
class AddedTokens {
 public:
  struct Token {
    std::string content;
    int32_t id = -1;
    bool single_word = false, lstrip = false, rstrip = false, normalized = false, special = false;
  };
  AddedTokens() = default;
  AddedTokens(const nlohmann::json& list, const Normalizer& normalizer, const std::string& where);

  /// Cuts `text`, with special tokens left as text if so asked: `token` for each token found, `rest` for the
  /// text between. `normalized` chooses the tokens.
  void split(std::string_view text, bool normalized, bool ordinary, const std::function<void(int32_t)>& token,
             const std::function<void(std::string_view)>& rest) const;
  const std::vector<Token>& all() const { return all_; }
  const Token* find(const std::string& content) const;
  bool is_special(int32_t id) const;
  /// Some token holds a space before a letter.
  bool holds_words() const;

 private:
  /// Longest token that starts at `at`, or null.
  const Token* match(std::string_view text, size_t at, bool normalized, bool ordinary) const;
  std::vector<Token> all_;
  std::vector<Token> by_first_[2][256];  // longest first; normalised contents in [1]
};

}  // namespace megatrain
