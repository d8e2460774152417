#include "data/examples/encoder.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace megatrain {

ExampleEncoder::ExampleEncoder(const Tokenizer& tokenizer, std::optional<ChatFormat> format, TrainOn train_on)
    : tokenizer_(tokenizer), format_(std::move(format)), train_on_(train_on) {}

Example ExampleEncoder::encode(const Row& row) const {
  if (row.kind == Row::conversation) return conversation(row);
  Example e;
  const std::string& text = row.kind == Row::completion ? row.prompt + row.answer : row.text;
  tokenizer_.encode(text, e.ids);
  const std::vector<int32_t> wrapped = tokenizer_.with_special_tokens(e.ids);
  const auto found = std::search(wrapped.begin(), wrapped.end(), e.ids.begin(), e.ids.end());
  const auto lead = static_cast<size_t>(found - wrapped.begin());
  const std::vector<size_t> ends = token_ends(text, e.ids);
  e.trained.assign(e.ids.size(), row.kind == Row::document || train_on_ == TrainOn::all);
  for (size_t i = 0; i < ends.size(); ++i)
    if (ends[i] > row.prompt.size()) e.trained[i] = true;
  e.ids = wrapped;
  e.trained.insert(e.trained.begin(), lead, false);
  e.trained.resize(e.ids.size(), true);
  const int32_t end = tokenizer_.end_of_text();
  if (end >= 0 && (e.ids.empty() || e.ids.back() != end)) e.ids.push_back(end), e.trained.push_back(true);
  return e;
}

std::vector<size_t> ExampleEncoder::token_ends(const std::string& text,
                                               const std::vector<int32_t>& ids) const {
  std::vector<size_t> ends;
  size_t at = 0;
  for (int32_t id : ids) {
    std::string piece = tokenizer_.decode(id);
    // SentencePiece puts a space before a text; added tokens may have swallowed blanks around them.
    if (text.compare(at, piece.size(), piece) != 0 && !piece.empty() && piece[0] == ' ') piece.erase(0, 1);
    while (at < text.size() && text.compare(at, piece.size(), piece) != 0 && text[at] == ' ') ++at;
    if (text.compare(at, piece.size(), piece) != 0)
      fail("the tokenizer changes this text (Unicode normalisation), so its turns cannot be placed");
    at += piece.size();
    ends.push_back(at);
  }
  return ends;
}

// From the render of everything before a turn, with the generation prompt, to the render that includes it.
std::vector<ExampleEncoder::Span> ExampleEncoder::assistant_spans(const Row& row,
                                                                  const ChatTemplate::Rendered& whole) const {
  if (!whole.generated.empty()) return {whole.generated.begin(), whole.generated.end()};
  std::vector<Span> spans;
  nlohmann::ordered_json before = nlohmann::ordered_json::array();
  for (const auto& m : row.messages) {
    const bool answer = m["role"] == "assistant" && !before.empty();
    const std::string prefix = answer ? format_->render(before, true, row.tools).text : "";
    before.push_back(m);
    if (!answer) continue;
    const std::string upto = format_->render(before, false, row.tools).text;
    const bool places = upto.size() > prefix.size() && upto.compare(0, prefix.size(), prefix) == 0 &&
                        whole.text.compare(0, upto.size(), upto) == 0;
    if (places)
      spans.emplace_back(prefix.size(), upto.size());
    else if (before.size() == row.messages.size())
      fail("the template writes this conversation's last turn in a way that cannot be placed");
  }
  return spans;
}

// Tokens that begin inside the span, up to the control token that ends the turn: what the template puts
// behind it (a line end) is not the assistant's.
void ExampleEncoder::mark(const std::string& text, Span span, bool whole_span, Example& e) const {
  const std::vector<size_t> ends = token_ends(text, e.ids);
  size_t first = e.ids.size(), last = e.ids.size();
  for (size_t i = 0; i < ends.size(); ++i) {
    const size_t begin = i == 0 ? 0 : ends[i - 1];
    if (ends[i] <= span.first || begin >= span.second) continue;
    if (first == e.ids.size()) first = i;
    if (tokenizer_.is_special(e.ids[i]) || e.ids[i] == tokenizer_.end_of_text()) last = i;
    e.trained[i] = true;
  }
  if (whole_span || last == e.ids.size() || last < first) return;
  for (size_t i = last + 1; i < ends.size() && (i == 0 ? 0 : ends[i - 1]) < span.second; ++i)
    e.trained[i] = false;
}

Example ExampleEncoder::conversation(const Row& row) const {
  if (!format_) fail("a conversation needs a chat template; the model's directory has none");
  const auto whole = format_->render(row.messages, false, row.tools);
  Example e;
  tokenizer_.encode(whole.text, e.ids);  // the template writes the special tokens itself
  e.trained.assign(e.ids.size(), train_on_ == TrainOn::all);
  if (train_on_ == TrainOn::all) return e;
  std::vector<Span> spans = assistant_spans(row, whole);
  if (spans.empty()) fail("no turn of the assistant can be placed");
  if (train_on_ == TrainOn::last) spans.erase(spans.begin(), spans.end() - 1);
  for (const Span& s : spans) mark(whole.text, s, !whole.generated.empty(), e);
  return e;
}

}  // namespace megatrain
