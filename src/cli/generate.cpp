#include "cli/generate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "cli/commands.h"
#include "core/error.h"
#include "data/chat/template.h"
#include "io/file.h"
#include "io/hf_model.h"
#include "io/json.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

constexpr int64_t kPromptPiece = 512;  // tokens of a prompt computed at a time

void check_vocabulary(const Tokenizer& tokenizer, const ModelSpec& spec) {
  if (tokenizer.vocab_size() > spec.vocab_size)
    fail(fmt::format("the tokenizer has {} tokens, the model {}; they do not belong together",
                     tokenizer.vocab_size(), spec.vocab_size));
}

void add_ids(const nlohmann::json& value, std::vector<int32_t>& out) {
  if (value.is_number_integer()) out.push_back(value.get<int32_t>());
  if (value.is_array())
    for (const auto& v : value) add_ids(v, out);
}

// eos_token_id of the generation settings (or of the config), and the tokenizer's own.
std::vector<int32_t> end_tokens(const std::string& directory, const Tokenizer& tokenizer) {
  std::vector<int32_t> out;
  for (const char* name : {"/generation_config.json", "/config.json"}) {
    if (!out.empty() || !fs::exists(directory + name)) continue;
    const nlohmann::json j = parse_json(read_text_file(directory + name), directory + name);
    if (j.is_object() && j.contains("eos_token_id")) add_ids(j["eos_token_id"], out);
  }
  if (tokenizer.end_of_text() >= 0) out.push_back(tokenizer.end_of_text());
  return out;
}

std::vector<int32_t> encoded(const Tokenizer& tokenizer, const std::string& text, bool with_special) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  if (with_special) ids = tokenizer.with_special_tokens(ids);
  if (ids.empty()) fail("prompt: is empty; give at least one character to continue");
  return ids;
}

std::vector<std::string> all_prompts(const GenerateOptions& o) {
  std::vector<std::string> out = o.prompts;
  if (o.prompt_file.empty()) return out;
  std::istringstream lines(read_text_file(o.prompt_file));
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) out.push_back(line);
  if (out.empty()) fail(o.prompt_file + ": has no prompt; one a line is expected");
  return out;
}

nlohmann::ordered_json opening(const GenerateOptions& o) {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  if (!o.system.empty()) messages.push_back({{"role", "system"}, {"content", o.system}});
  return messages;
}

ChatFormat needed_format(const std::string& directory) {
  auto format = ChatFormat::load(directory);
  if (!format)
    fail(directory +
         ": has no chat template (chat_template.jinja or tokenizer_config.json); leave --chat out");
  return std::move(*format);
}

void report_speed(int64_t tokens, std::chrono::steady_clock::time_point start) {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print(stderr, "{} tokens in {:.1f} s, {:.1f} tok/s\n", tokens, seconds,
             static_cast<double>(tokens) / std::max(seconds, 1e-9));
}

// Each prompt and what follows it; one alone is shown as it comes.
void run_prompts(Session& session, const Tokenizer& tokenizer, const std::string& directory,
                 const GenerateOptions& o, const MachineOptions& machine) {
  const std::vector<std::string> prompts = all_prompts(o);
  std::optional<ChatFormat> format;
  if (o.chat) format.emplace(needed_format(directory));
  std::vector<std::vector<int32_t>> ids;
  size_t longest = 0;
  for (const std::string& p : prompts) {
    if (format) {
      auto messages = opening(o);
      messages.push_back({{"role", "user"}, {"content", p}});
      ids.push_back(encoded(tokenizer, format->render(messages, true).text, false));
    } else {
      ids.push_back(encoded(tokenizer, p, true));
    }
    longest = std::max(longest, ids.back().size());
  }
  const auto n = static_cast<int64_t>(prompts.size());
  TextGenerator generator(session, tokenizer, o, n, static_cast<int64_t>(longest) + o.max_tokens, machine);
  generator.stop_at(end_tokens(directory, tokenizer), o.stop);
  for (int64_t b = 0; b < n; ++b) generator.set_prompt(b, ids[static_cast<size_t>(b)]);
  std::vector<std::string> texts(prompts.size());
  if (n == 1 && !o.chat) fmt::print("{}", prompts[0]);
  const auto start = std::chrono::steady_clock::now();
  const int64_t tokens = generator.run(o.max_tokens, [&](int64_t b, const std::string& piece) {
    texts[static_cast<size_t>(b)] += piece;
    if (n > 1) return;
    fmt::print("{}", piece);
    std::fflush(stdout);
  });
  if (n == 1) fmt::print("\n");
  for (size_t b = 0; n > 1 && b < prompts.size(); ++b)
    fmt::print("--- {}\n{}{}\n", b + 1, o.chat ? "" : prompts[b], texts[b]);
  if (o.stats || isatty(STDERR_FILENO)) report_speed(tokens, start);
}

// A conversation: one line of the user at a time, until the input ends.
void run_conversation(Session& session, const Tokenizer& tokenizer, const std::string& directory,
                      const GenerateOptions& o, const MachineOptions& machine) {
  const ChatFormat format = needed_format(directory);
  const int64_t room = session.model->spec().max_position_embeddings;
  TextGenerator generator(session, tokenizer, o, 1, std::min<int64_t>(room, 8192), machine);
  generator.stop_at(end_tokens(directory, tokenizer), o.stop);
  nlohmann::ordered_json messages = opening(o);
  fmt::print(stderr, "an empty line or Ctrl-D ends the conversation\n");
  for (std::string line;
       fmt::print("> "), std::fflush(stdout), !interrupted() && std::getline(std::cin, line);) {
    if (line.empty()) break;
    messages.push_back({{"role", "user"}, {"content", line}});
    generator.set_prompt(0, encoded(tokenizer, format.render(messages, true).text, false));
    std::string answer;
    generator.run(o.max_tokens, [&](int64_t, const std::string& piece) {
      answer += piece;
      fmt::print("{}", piece);
      std::fflush(stdout);
    });
    fmt::print("\n");
    messages.push_back({{"role", "assistant"}, {"content", answer}});
  }
}

}  // namespace

TextGenerator::TextGenerator(Session& session, const Tokenizer& tokenizer, const SamplingOptions& sampling,
                             int64_t batch, int64_t longest, const MachineOptions& machine)
    : tokenizer_(tokenizer),
      sampling_(sampling),
      vocab_(std::min(session.model->spec().vocab_size, tokenizer.vocab_size())),
      held_(static_cast<size_t>(batch)) {
  check_vocabulary(tokenizer, session.model->spec());
  PlanRequest request;
  request.batch = batch, request.training = false;
  request.cache_capacity = std::clamp<int64_t>(longest, 2, session.model->spec().max_position_embeddings);
  request.seq_len = std::min(request.cache_capacity, kPromptPiece);
  MachineOptions m = machine;
  m.micro_batch = batch;
  const MemoryPlan plan = session.plan_again(request, m);
  engine_ =
      std::make_unique<Engine>(*session.device, *session.model, *session.store, plan.step, Engine::Options{});
  generator_ = std::make_unique<Generator>(*engine_);
}

void TextGenerator::stop_at(std::vector<int32_t> ids, std::vector<std::string> texts) {
  stop_ids_ = std::move(ids), stop_texts_ = std::move(texts);
  std::erase(stop_texts_, "");
}

std::string TextGenerator::release(size_t b, const std::string& more, bool last, bool& stopped) {
  std::string& held = held_[b];
  held += more;
  size_t cut = std::string::npos, keep = 0;
  for (const std::string& s : stop_texts_) {
    cut = std::min(cut, held.find(s));
    for (size_t n = std::min(s.size() - 1, held.size()); n > keep; --n)
      if (held.compare(held.size() - n, n, s, 0, n) == 0) keep = n;
  }
  stopped = cut != std::string::npos;
  const size_t shown = stopped ? cut : last ? held.size() : held.size() - keep;
  std::string out = held.substr(0, shown);
  held = stopped ? "" : held.substr(shown);
  return out;
}

int64_t TextGenerator::run(int64_t max_tokens,
                           const std::function<void(int64_t, const std::string&)>& piece) {
  const auto n = static_cast<size_t>(engine_->plan().batch);
  std::vector<bool> done(n, false);
  int64_t tokens = 0;
  for (std::string& h : held_) h.clear();
  for (int64_t i = 0; i < max_tokens && !interrupted(); ++i) {
    if (std::all_of(done.begin(), done.end(), [](bool d) { return d; })) break;
    const float* logits = generator_->next_logits();
    for (size_t b = 0; b < n; ++b) {
      if (done[b]) continue;
      const auto s = static_cast<int64_t>(b);
      const int32_t next =
          sample_token(logits + s * engine_->vocab_size(), vocab_, sampling_, generator_->sequence(s), b,
                       static_cast<uint64_t>(generator_->sequence(s).size()));
      ++tokens;
      generator_->append(s, next);
      const bool end = std::find(stop_ids_.begin(), stop_ids_.end(), next) != stop_ids_.end();
      const bool last = end || i + 1 == max_tokens;
      bool stopped = false;
      const std::string text = end || tokenizer_.is_special(next) ? "" : tokenizer_.decode(next);
      const std::string shown = release(b, text, last, stopped);
      if (!shown.empty()) piece(s, shown);
      done[b] = end || stopped;
    }
  }
  return tokens;
}

void print_sample(Session& session, const Tokenizer& tokenizer, const GenerateOptions& o,
                  const MachineOptions& machine) {
  const std::vector<int32_t> ids = encoded(tokenizer, o.prompts.at(0), true);
  TextGenerator generator(session, tokenizer, o, 1, static_cast<int64_t>(ids.size()) + o.max_tokens, machine);
  if (tokenizer.end_of_text() >= 0) generator.stop_at({tokenizer.end_of_text()}, {});
  generator.set_prompt(0, ids);
  fmt::print("{}", o.prompts[0]);
  generator.run(o.max_tokens, [](int64_t, const std::string& piece) {
    fmt::print("{}", piece);
    std::fflush(stdout);
  });
  fmt::print("\n");
}

int run_generate(const std::string& directory, const GenerateOptions& options,
                 const MachineOptions& machine) {
  watch_interrupts();
  if (options.prompts.empty() && options.prompt_file.empty() && !options.chat)
    fail("generate: give --prompt, --prompts-file or --chat");
  const auto tokenizer = load_tokenizer(directory);
  if (!tokenizer)
    fail(directory + ": has no tokenizer (meta.json, tokenizer.json, or vocab.json and merges.txt)");
  PlanRequest request;
  request.batch = 1, request.seq_len = 1, request.training = false;
  Session session = load_session(directory, request, machine);
  if (options.prompts.empty() && options.prompt_file.empty())
    run_conversation(session, *tokenizer, directory, options, machine);
  else
    run_prompts(session, *tokenizer, directory, options, machine);
  return interrupted() ? 130 : 0;
}

}  // namespace megatrain
