#pragma once
// defines: RowFormat — how a set's rows name their columns (LLaMA-Factory's dataset_info.json, or --columns).

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace megatrain {

/// Renames a row's columns, and the roles in its turns, to the names that parse_row knows.
struct RowFormat {
  std::map<std::string, std::string> columns;  ///< our name -> the row's
  std::map<std::string, std::string> roles;    ///< the row's role -> sharegpt's
  std::string role_tag = "from", content_tag = "value";
  std::string system;  ///< for rows without one

  bool plain() const { return columns.empty() && roles.empty() && role_tag == "from" && system.empty(); }
  /// The row under the names that parse_row knows; what is not mapped is left out, unless nothing is.
  nlohmann::ordered_json apply(const nlohmann::ordered_json& row) const;

  /// "prompt=question, completion=answer". Names: messages, conversations, instruction, input, output,
  /// system, history, tools, prompt, completion, text, chosen, rejected.
  static RowFormat parse(const std::string& columns);
};

/// One entry of a dataset_info.json: the files (inside `directory`) and the format of their rows. Refuses
/// names it does not have, sets that must be fetched from a hub first, and files outside of the directory.
struct RegisteredSet {
  std::vector<std::string> files;
  RowFormat format;
  static RegisteredSet load(const std::string& directory, const std::string& name);
};

}  // namespace megatrain
