#pragma once
// defines: the commands behind `megatrain train|generate|eval|prepare`. Each returns an exit code.

#include "cli/config.h"
#include "cli/generate.h"
#include "cli/session.h"

namespace megatrain {

int run_train(const TrainConfig& config, const std::string& command_line);
int run_generate(const std::string& model_directory, const GenerateOptions& options,
                 const MachineOptions& machine);

struct EvalOptions {
  std::string model_directory, data;
  int64_t sequence_length = 0, batch_size = 8;
  int64_t stride = 0;         ///< tokens between windows; 0: windows do not overlap
  bool per_document = false;  ///< a line of JSON for each
};
/// Perplexity over a .bin, a text file or a JSONL with "text"; log-likelihoods of choices over a JSONL with
/// "prompt" and "choices".
int run_eval(const EvalOptions& options, const MachineOptions& machine);
/// What a model directory holds and what training it needs.
int run_info(const std::string& directory, const MachineOptions& machine);

struct PrepareOptions {
  std::string input, out_dir, tokenizer = "char";
  double val_fraction = 0.1;
  std::string train_on = "assistant";  ///< rows: assistant | last | all
  bool strict = false;                 ///< rows: stop at the first that cannot be used
};
int run_prepare(const PrepareOptions& options);
/// The part of it for .jsonl and .json.
int prepare_rows(const PrepareOptions& options, const Tokenizer& tokenizer);

struct DataCheckOptions {
  std::string file, tokenizer;
  int64_t sequence_length = 1024, examples = 2;
};
int run_data_check(const DataCheckOptions& options);

/// Parses the command line and runs a command. Errors become one line and an exit code: 2 for what the user
/// can fix, 1 for a mistake of ours.
int run_command_line(int argc, char** argv);

}  // namespace megatrain
