#pragma once
// defines: Normalizer — the normalizer of a tokenizer.json.

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace megatrain {

/// NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace and sequences of them; another type is refused.
class Normalizer {
 public:
  Normalizer() = default;  ///< changes nothing
  Normalizer(const nlohmann::json& definition, const std::string& where);
  bool identity() const { return steps_.empty(); }
  /// What it makes of a text does not depend on what lies beyond a space.
  bool local() const { return local_; }
  std::string operator()(std::string text) const;

 private:
  void add(const nlohmann::json& definition, const std::string& where, int depth);
  std::vector<std::function<std::string(std::string)>> steps_;
  bool local_ = true;
};

}  // namespace megatrain
