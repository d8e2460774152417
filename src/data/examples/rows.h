#pragma once
// defines: Row, parse_row — fine-tuning sets in the forms that people have them.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/examples/row_format.h"

namespace megatrain {

/// One example before tokenisation.
struct Row {
  enum Kind { conversation, completion, document, pair };
  Kind kind = document;
  nlohmann::ordered_json messages, tools;  ///< conversation: OpenAI's form; tools may be null
  std::string prompt, answer;              ///< completion
  std::string text;                        ///< document
  std::vector<Row> sides;                  ///< pair: the chosen answer and the rejected one
};

/// Understands OpenAI messages, sharegpt (conversations), alpaca (instruction, input, output, system,
/// history), prompt and completion, preference pairs (any of these with chosen and rejected in place of the
/// answer), and plain text. Throws Error saying what is wrong with the row.
Row parse_row(const nlohmann::ordered_json& json);
/// The same from the text of one row: broken JSON, lone surrogates, wrong types become an Error.
Row parse_row(const std::string& text, const RowFormat& format);

}  // namespace megatrain
