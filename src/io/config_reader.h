#pragma once
// defines: ConfigReader — a config.json read strictly: what nobody asked for is refused by name.

#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace megatrain {

/// Reads a JSON object field by field; null counts as absent. finish() refuses every field that was neither
/// read nor is known to leave the maths alone. All errors start with the file's name.
class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, std::string where);

  bool has(const std::string& key);
  /// Present, be it null (some defaults differ between the two).
  bool mentions(const std::string& key) const { return json_.contains(key); }
  std::string text(const std::string& key, const std::string& absent);
  int64_t integer(const std::string& key);
  int64_t integer(const std::string& key, int64_t absent);
  double number(const std::string& key, double absent);
  bool flag(const std::string& key, bool absent);
  std::vector<std::string> texts(const std::string& key);  ///< empty when absent
  ConfigReader object(const std::string& key);

  /// The field, if present, must have this value: the only one that is supported.
  void only(const std::string& key, const nlohmann::json& value);
  void ignore(const std::string& key) { used_.insert(key); }
  /// Throws Error for fields not read.
  void finish() const;
  [[noreturn]] void refuse(const std::string& key, const std::string& why) const;

 private:
  const nlohmann::json* value(const std::string& key);
  const nlohmann::json& needed(const std::string& key);
  const nlohmann::json& json_;
  std::string where_;
  std::set<std::string> used_;
};

}  // namespace megatrain
