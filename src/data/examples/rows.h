#pragma once
// defines: Row, parse_row, RowReader — fine-tuning sets in the forms that people have them.

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace megatrain {

/// One example before tokenisation.
struct Row {
  enum Kind { conversation, completion, document };
  Kind kind = document;
  nlohmann::ordered_json messages, tools;  ///< conversation: OpenAI's form; tools may be null
  std::string prompt, answer;              ///< completion
  std::string text;                        ///< document
};

/// Understands OpenAI messages, sharegpt (conversations), alpaca (instruction, input, output, system,
/// history), prompt and completion, and plain text. Throws Error saying what is wrong with the row.
Row parse_row(const nlohmann::ordered_json& json);

/// Rows of a .jsonl (one a line) or of a .json (an array).
class RowReader {
 public:
  explicit RowReader(const std::string& path);
  /// False at the end. A row that cannot be read leaves `error` non-empty. `where` is "file:line".
  bool next(Row& row, std::string& where, std::string& error);
  double fraction() const;  ///< done, 0 to 1

 private:
  bool next_json(nlohmann::ordered_json& json, std::string& error);
  std::string path_;
  std::ifstream in_;
  nlohmann::ordered_json array_;
  bool is_array_ = false;
  int64_t number_ = 0, size_ = 1;
};

}  // namespace megatrain
