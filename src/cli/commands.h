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

struct PlanOptions {
  bool json = false;
  std::string timeline;  ///< file for a picture of the step; empty: none
};
/// What `train` would do with the config, here or on the machine that config.machine describes, without doing
/// it.
int run_plan(const TrainConfig& config, const PlanOptions& options);

struct DoctorOptions {
  std::string device = "auto", out, disk_directory = ".";
  int64_t threads = 0;
  bool dry = false;  ///< limits only, nothing is measured
};
/// Measures this machine, says what is wrong with it, and writes its profile.
int run_doctor(const DoctorOptions& options);

struct PrepareOptions {
  std::vector<std::string> inputs;            ///< files and directories
  std::string dataset, dataset_dir = "data";  ///< instead: a set of dataset_dir/dataset_info.json
  std::string out_dir, tokenizer = "char";
  double val_fraction = 0.1;
  int64_t seed = 2357;          ///< draws the validation rows; nanoGPT's
  std::string format = "auto";  ///< auto | bin | mtbin
  std::string columns, text_column = "text";
  std::string train_on = "assistant";  ///< conversations: assistant | last | all
  bool strict = false;                 ///< stop at the first row that cannot be used
  bool restart = false;                ///< forget what a killed run left
  int64_t threads = 0;
  double journal_seconds = 10;  ///< between records of how far it has come
};
int run_prepare(const PrepareOptions& options);

struct DataCheckOptions {
  std::string file, tokenizer;
  int64_t sequence_length = 1024, examples = 2;
};
/// A token file, or what `prepare` would make of rows or text.
int run_data_check(const DataCheckOptions& options);
/// By its name: tokens, not rows or text.
bool is_prepared(const std::string& file);

/// Parses the command line and runs a command. Errors become one line and an exit code: 2 for what the user
/// can fix, 1 for a mistake of ours.
int run_command_line(int argc, char** argv);

}  // namespace megatrain
