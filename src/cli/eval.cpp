// eval: perplexity over documents, with a stride; log-likelihood of choices.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>

#include "cli/commands.h"
#include "core/error.h"
#include "io/file.h"
#include "io/hf_model.h"
#include "io/json.h"

namespace megatrain {
namespace {

/// Tokens that belong together, wherever they lie; `context` gets 1 for those that are no targets.
struct Document {
  int64_t size = 0;
  std::function<void(int64_t start, int64_t count, int32_t* out, uint8_t* context)> read;
};

Document document_of(std::vector<int32_t> ids) {
  const auto n = static_cast<int64_t>(ids.size());
  return {n, [ids = std::move(ids)](int64_t start, int64_t count, int32_t* out, uint8_t* context) {
            std::copy_n(ids.begin() + start, count, out);
            std::fill_n(context, count, 0);
          }};
}

struct Score {
  double loss = 0;     ///< sum over predicted tokens
  int64_t tokens = 0;  ///< predicted
};

/// Runs windows a batch at a time, each a micro-batch of its own, so that every window has its own loss.
class Scorer {
 public:
  Scorer(Session& session, const MachineOptions& machine)
      : engine_(session.make_engine(machine)),
        batch_(session.plan.step.batch),
        length_(session.plan.step.seq_len) {
    clear();
  }
  int64_t length() const { return length_; }
  std::vector<Score>& scores() { return scores_; }
  /// A new entry of scores(), to which windows can be added.
  size_t open() {
    scores_.emplace_back();
    return scores_.size() - 1;
  }

  /// Predicts tokens [from, from + count) of `doc`; the window starts at `start`, at most length() before the
  /// end.
  void add(size_t owner, const Document& doc, int64_t start, int64_t from, int64_t count) {
    const int64_t inputs = from + count - 1 - start, row = static_cast<int64_t>(owners_.size()) * length_;
    std::vector<int32_t> window(static_cast<size_t>(inputs) + 1);
    std::vector<uint8_t> context(window.size());
    doc.read(start, inputs + 1, window.data(), context.data());
    for (size_t i = 0; i < static_cast<size_t>(inputs); ++i) {
      const size_t at = static_cast<size_t>(row) + i;
      tokens_[at] = window[i];
      if (start + static_cast<int64_t>(i) + 1 < from || context[i + 1]) continue;
      targets_[at] = window[i + 1];
      ++scores_[owner].tokens;
    }
    owners_.push_back(owner);
    if (static_cast<int64_t>(owners_.size()) == batch_) flush();
  }

  void flush() {
    if (owners_.empty()) return;
    engine_->evaluate(tokens_.data(), targets_.data());
    for (size_t i = 0; i < owners_.size(); ++i) scores_[owners_[i]].loss += engine_->losses()[i];
    windows_ += static_cast<int64_t>(owners_.size());
    clear();
    const auto now = std::chrono::steady_clock::now();
    if (now - last_word_ < std::chrono::seconds(2)) return;
    fmt::print(stderr, "  evaluating: {} windows done\n", windows_);
    last_word_ = now;
  }

 private:
  void clear() {
    owners_.clear();
    tokens_.assign(static_cast<size_t>(batch_ * length_), 0);
    targets_.assign(tokens_.size(), -1);
  }

  std::unique_ptr<Engine> engine_;
  int64_t batch_, length_, windows_ = 0;
  std::vector<int32_t> tokens_, targets_;
  std::vector<size_t> owners_;
  std::vector<Score> scores_;
  std::chrono::steady_clock::time_point last_word_ = std::chrono::steady_clock::now();
};

// Windows of `length` inputs, `stride` apart; each predicts what the ones before did not.
void add_windows(Scorer& scorer, size_t owner, const Document& doc, int64_t stride) {
  int64_t done = 1;  // the first token is never predicted
  for (int64_t start = 0; done < doc.size && !interrupted(); start += stride) {
    const int64_t end = std::min(start + scorer.length() + 1, doc.size);
    scorer.add(owner, doc, start, done, end - done);
    done = end;
  }
}

std::vector<int32_t> encoded(const Tokenizer& tokenizer, const std::string& text, bool with_special) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  return with_special ? tokenizer.with_special_tokens(ids) : ids;
}

std::vector<nlohmann::json> json_lines(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(path + ": cannot open; check the path");
  std::vector<nlohmann::json> out;
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    out.push_back(parse_json(line, fmt::format("{}:{}", path, number)));
    if (!out.back().is_object()) fail(fmt::format("{}:{}: an object was expected", path, number));
  }
  if (out.empty()) fail(path + ": has no line");
  return out;
}

std::string text_field(const nlohmann::json& j, const char* name, const std::string& where) {
  if (!j.contains(name) || !j[name].is_string())
    fail(fmt::format("{}: '{}' is missing or not a text", where, name));
  return j[name].get<std::string>();
}

/// A prompt with its choices, tokenised as one text each; `from` is where the choice begins.
struct Question {
  struct Choice {
    std::vector<int32_t> ids;
    int64_t from = 0, bytes = 0;
  };
  std::vector<Choice> choices;
  int64_t answer = -1;
};

// As evaluation harnesses do: the prompt's trailing white space belongs to the choice.
Question read_question(const nlohmann::json& j, const Tokenizer& tokenizer, const std::string& where) {
  Question q;
  std::string prompt = text_field(j, "prompt", where), blank;
  const size_t last = prompt.find_last_not_of(" \t\n");
  blank = last == std::string::npos ? prompt : prompt.substr(last + 1);
  prompt.resize(prompt.size() - blank.size());
  if (!j["choices"].is_array() || j["choices"].empty()) fail(where + ": 'choices' is not a list of texts");
  for (const auto& c : j["choices"]) {
    if (!c.is_string()) fail(where + ": 'choices' is not a list of texts");
    Question::Choice choice;
    const std::string text = blank + c.get<std::string>();
    choice.bytes = static_cast<int64_t>(text.size());
    choice.ids = encoded(tokenizer, prompt + text, true);
    choice.from = static_cast<int64_t>(encoded(tokenizer, prompt, true).size());
    if (choice.from == 0 && tokenizer.end_of_text() >= 0)  // nothing to condition on: begin a document
      choice.ids.insert(choice.ids.begin(), tokenizer.end_of_text()), choice.from = 1;
    if (choice.from < 1 || choice.from >= static_cast<int64_t>(choice.ids.size()))
      fail(where + ": the prompt or a choice is empty");
    q.choices.push_back(std::move(choice));
  }
  if (j.contains("answer") && j["answer"].is_number_integer()) q.answer = j["answer"].get<int64_t>();
  return q;
}

int64_t best_choice(const std::vector<double>& values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

void print_questions(const std::vector<Question>& questions, const std::vector<Score>& scores) {
  size_t at = 0, right = 0, right_by_length = 0, answered = 0;
  for (size_t i = 0; i < questions.size(); ++i) {
    const Question& q = questions[i];
    std::vector<double> sums, by_byte;
    nlohmann::ordered_json line = {{"question", i}};
    std::vector<int64_t> tokens;
    for (const auto& c : q.choices) {
      const Score& s = scores[at++];
      sums.push_back(-s.loss), by_byte.push_back(-s.loss / static_cast<double>(c.bytes));
      tokens.push_back(s.tokens);
    }
    line["log_likelihoods"] = sums, line["tokens"] = tokens;
    line["best"] = best_choice(sums), line["best_per_byte"] = best_choice(by_byte);
    if (q.answer >= 0) line["answer"] = q.answer;
    fmt::print("{}\n", line.dump());
    answered += q.answer >= 0;
    right += q.answer == best_choice(sums), right_by_length += q.answer == best_choice(by_byte);
  }
  if (answered > 0)
    fmt::print("accuracy {:.4f}, by likelihood per byte {:.4f}, on {} questions\n",
               static_cast<double>(right) / static_cast<double>(answered),
               static_cast<double>(right_by_length) / static_cast<double>(answered), answered);
}

/// Everything an eval run reads, before the model's memory is taken.
struct EvalInput {
  std::vector<Document> documents;
  std::vector<Question> questions;
  std::unique_ptr<TokenFile> file;  // what the documents may refer to
  int64_t longest() const {
    int64_t n = 0;
    for (const auto& d : documents) n = std::max(n, d.size - 1);
    for (const auto& q : questions)
      for (const auto& c : q.choices) n = std::max(n, static_cast<int64_t>(c.ids.size()) - 1);
    return n;
  }
};

// A fine-tuning set is its examples, of which the targets count. A .bin is one document, or with
// --per-document one between each two ends of text.
void read_bin(const EvalOptions& o, const Tokenizer* tokenizer, int64_t vocab, EvalInput& in) {
  in.file = std::make_unique<TokenFile>(o.data, vocab);
  const TokenFile* file = in.file.get();
  auto part = [file](int64_t begin, int64_t size) {
    return Document{size, [file, begin](int64_t start, int64_t count, int32_t* out, uint8_t* context) {
                      file->read(begin + start, count, out, context);
                    }};
  };
  if (file->marked() || (o.per_document && file->documents() > 0)) {
    for (int64_t i = 0; i < file->documents(); ++i) {
      const auto [first, size] = file->document(i);
      in.documents.push_back(part(first, size));
    }
    return;
  }
  const int32_t end = tokenizer ? tokenizer->end_of_text() : -1;
  if (!o.per_document || end < 0) {
    in.documents.push_back(part(0, file->size()));
    return;
  }
  int64_t begin = 0;
  std::vector<int32_t> piece(1 << 16);
  for (int64_t at = 0; at < file->size();) {
    const int64_t n = std::min<int64_t>(static_cast<int64_t>(piece.size()), file->size() - at);
    file->read(at, n, piece.data());
    for (int64_t i = 0; i < n; ++i)
      if (piece[static_cast<size_t>(i)] == end)
        in.documents.push_back(part(begin, at + i + 1 - begin)), begin = at + i + 1;
    at += n;
  }
  if (begin < file->size()) in.documents.push_back(part(begin, file->size() - begin));
}

EvalInput read_input(const EvalOptions& o, const Tokenizer* tokenizer, int64_t vocab) {
  EvalInput in;
  if (o.data.ends_with("bin")) {  // .bin, .mtbin
    read_bin(o, tokenizer, vocab, in);
    return in;
  }
  if (!tokenizer) fail(o.model_directory + ": has no tokenizer; give a .bin of tokens");
  if (tokenizer->vocab_size() > vocab)
    fail("the tokenizer has more tokens than the model; they do not belong together");
  if (!o.data.ends_with(".jsonl")) {
    in.documents.push_back(document_of(encoded(*tokenizer, read_text_file(o.data), true)));
    return in;
  }
  const auto lines = json_lines(o.data);
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string where = fmt::format("{}, entry {}", o.data, i + 1);
    if (lines[i].contains("choices"))
      in.questions.push_back(read_question(lines[i], *tokenizer, where));
    else
      in.documents.push_back(document_of(encoded(*tokenizer, text_field(lines[i], "text", where), true)));
  }
  return in;
}

void print_documents(const EvalOptions& o, const std::vector<Score>& scores, int64_t window, int64_t stride) {
  Score all;
  for (size_t i = 0; i < scores.size(); ++i) {
    all.loss += scores[i].loss, all.tokens += scores[i].tokens;
    if (!o.per_document) continue;
    const double mean = scores[i].tokens > 0 ? scores[i].loss / static_cast<double>(scores[i].tokens) : 0;
    fmt::print(
        "{}\n",
        nlohmann::ordered_json{
            {"document", i}, {"tokens", scores[i].tokens}, {"loss", mean}, {"perplexity", std::exp(mean)}}
            .dump());
  }
  const double mean = all.loss / static_cast<double>(all.tokens);
  fmt::print("loss {:.4f}  perplexity {:.2f}  on all {} predicted tokens of {} (windows of {}{})\n", mean,
             std::exp(mean), all.tokens, o.data, window,
             stride < window ? fmt::format(", {} apart", stride) : "");
}

}  // namespace

int run_eval(const EvalOptions& o, const MachineOptions& machine) {
  watch_interrupts();
  const ModelSpec spec = read_model_spec(o.model_directory);
  if (o.batch_size < 1 || o.sequence_length < 0 || o.stride < 0)
    fail("batch_size, sequence_length and stride must be positive");
  const auto tokenizer = load_tokenizer(o.model_directory);
  EvalInput in = read_input(o, tokenizer.get(), spec.vocab_size);
  const int64_t window =
      std::min(o.sequence_length > 0 ? o.sequence_length : spec.max_position_embeddings, in.longest());
  if (window < 1) fail(o.data + ": has no token to predict");
  const int64_t stride = o.stride > 0 ? std::min(o.stride, window) : window;
  PlanRequest request;
  request.training = false, request.seq_len = window, request.batch = o.batch_size;
  MachineOptions m = machine;
  m.micro_batch = 1;
  Session session = load_session(o.model_directory, request, m);
  Scorer scorer(session, m);
  for (const Document& d : in.documents) add_windows(scorer, scorer.open(), d, stride);
  const size_t first_choice = in.documents.size();
  for (const Question& q : in.questions)
    for (const auto& c : q.choices) {
      const Document d = document_of(c.ids);
      const int64_t start = std::max<int64_t>(0, d.size - 1 - window), from = std::max(c.from, start + 1);
      scorer.add(scorer.open(), d, start, from, d.size - from);  // a long prompt loses its beginning
    }
  scorer.flush();
  if (interrupted()) return 130;
  const auto split = scorer.scores().begin() + static_cast<std::ptrdiff_t>(first_choice);
  if (!in.documents.empty()) print_documents(o, {scorer.scores().begin(), split}, window, stride);
  if (!in.questions.empty()) print_questions(in.questions, {split, scorer.scores().end()});
  return 0;
}

}  // namespace megatrain
