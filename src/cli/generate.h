#pragma once
// defines: GenerateOptions, TextGenerator — prompts in, text out, for the generate command and for samples.

#include <functional>
#include <optional>

#include "cli/sampling.h"
#include "cli/session.h"
#include "engine/generator.h"

namespace megatrain {

struct GenerateOptions : SamplingOptions {
  std::vector<std::string> prompts;
  std::string prompt_file;  ///< one prompt a line, beside `prompts`
  int64_t max_tokens = 200;
  std::vector<std::string> stop;  ///< texts that end a sequence (and are not printed)
  bool stats = false;             ///< print the speed even when stderr is no terminal
  bool chat = false;   ///< prompts are what a user says; without prompts, a conversation in the terminal
  std::string system;  ///< chat: system message
};

/// Continues token sequences side by side. `session` must be allocated; the plan is made here.
class TextGenerator {
 public:
  /// Room for `batch` sequences of up to `longest` tokens each, prompt included.
  TextGenerator(Session& session, const Tokenizer& tokenizer, const SamplingOptions& sampling, int64_t batch,
                int64_t longest, const MachineOptions& machine);
  /// Ids that end a sequence, and texts that do.
  void stop_at(std::vector<int32_t> ids, std::vector<std::string> texts);
  void set_prompt(int64_t sequence, const std::vector<int32_t>& ids) { generator_->set(sequence, ids); }
  const std::vector<int32_t>& sequence(int64_t b) const { return generator_->sequence(b); }
  /// Adds up to `max_tokens` to every sequence; `piece(sequence, text)` gets what is to be shown, as it
  /// comes. Returns the number of tokens added to all.
  int64_t run(int64_t max_tokens, const std::function<void(int64_t, const std::string&)>& piece);

 private:
  /// Text that may be shown now: what could still become a stop text is held back.
  std::string release(size_t b, const std::string& more, bool last, bool& stopped);

  const Tokenizer& tokenizer_;
  SamplingOptions sampling_;
  int64_t vocab_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Generator> generator_;
  std::vector<int32_t> stop_ids_;
  std::vector<std::string> stop_texts_, held_;
};

/// Prints a sample of one prompt (training's end).
void print_sample(Session& session, const Tokenizer& tokenizer, const GenerateOptions& options,
                  const MachineOptions& machine);

}  // namespace megatrain
