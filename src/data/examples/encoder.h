#pragma once
// defines: Example, ExampleEncoder — a row as token ids, with a mark on those that are trained.

#include <memory>
#include <optional>

#include "data/chat/template.h"
#include "data/examples/rows.h"
#include "data/tokenizer.h"

namespace megatrain {

struct Example {
  std::vector<int32_t> ids;
  std::vector<bool> trained;  ///< per id: it is a target
};

enum class TrainOn { assistant, last, all };

/// Renders conversations with the model's chat template and marks what the assistant says, the token that
/// ends its turn included. With {% generation %} in the template its spans are the marks, as transformers'
/// return_assistant_tokens_mask has them; otherwise turns are found by rendering the conversation up to each
/// of them.
class ExampleEncoder {
 public:
  ExampleEncoder(const Tokenizer& tokenizer, std::optional<ChatFormat> format, TrainOn train_on);
  /// Throws Error for a conversation that the template refuses or whose turns cannot be told apart.
  Example encode(const Row& row) const;

 private:
  using Span = std::pair<size_t, size_t>;  // bytes
  Example conversation(const Row& row) const;
  std::vector<Span> assistant_spans(const Row& row, const ChatTemplate::Rendered& whole) const;
  void mark(const std::string& text, Span span, bool whole_span, Example& e) const;
  /// Bytes of the text at which each token ends; falls back to encoding what lies before a boundary.
  std::vector<size_t> token_ends(const std::string& text, const std::vector<int32_t>& ids) const;

  const Tokenizer& tokenizer_;
  std::optional<ChatFormat> format_;
  TrainOn train_on_;
};

}  // namespace megatrain
