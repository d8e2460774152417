#pragma once
// defines: ModelSource, read_model_spec, load_weights, save_model — a model directory in Hugging Face form.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "store/state_store.h"

namespace megatrain {

/// What an imported directory looked like, so that the export looks the same. Everything is kept in memory:
/// the directory may be overwritten meanwhile.
struct ModelSource {
  struct Home {
    std::string dtype;  ///< F32, BF16 or F16
    int shard = 0;
  };
  std::string config;                                        ///< config.json
  std::vector<std::pair<std::string, std::string>> carried;  ///< tokenizer, generation and licence files
  std::vector<std::string> shards;                           ///< file names of the weights
  std::map<std::string, Home> tensors;                       ///< by the name in the file
  std::vector<std::string> ignored;                          ///< tensors that hold nothing to train
  bool has_tokenizer() const;
};

/// Reads config.json. A field that changes the maths and is not supported is refused by name.
ModelSpec read_model_spec(const std::string& directory);
/// The same from the text of a config.json; `where` starts the errors.
ModelSpec parse_model_spec(const std::string& config, const std::string& where);

/// Fills the store from model.safetensors or its shards, `threads` at a time, in pieces of a few MiB.
/// Missing, unknown and mis-shaped tensors are named before anything is read; a weight that is not finite by
/// its tensor and index, unless allowed.
ModelSource load_weights(const std::string& directory, const Model& model, StateStore& store, int threads,
                         const ProgressFn& progress = {}, bool allow_nonfinite = false);

struct ExportOptions {
  const ModelSource* source =
      nullptr;        ///< names, dtypes, shards and files to keep; null: fp32, our own names
  std::string dtype;  ///< F32, BF16 or F16 for all tensors; empty: as the source has them
  int threads = 1;
};
/// Writes config.json, the weights (an index too when there are several shards) and the source's other files
/// into `directory`, which must exist. transformers loads the result. A tied head is written once.
void save_model(const std::string& directory, const Model& model, const StateStore& store,
                const ExportOptions& options, const ProgressFn& progress = {});

}  // namespace megatrain
