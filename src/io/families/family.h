#pragma once
// defines: HfFamily, find_family — a model_type of Hugging Face: its config.json in and out.

#include <vector>

#include "io/config_reader.h"
#include "model/model_spec.h"

namespace megatrain {

struct HfFamily {
  const char* model_type;
  const char* architecture;  ///< transformers' class
  /// Fills everything but the family's name. The reader's finish() lies with the caller.
  ModelSpec (*read)(ConfigReader& config);
  void (*write)(const ModelSpec& spec, nlohmann::ordered_json& config);
};

/// All families, in the order of their files here.
const std::vector<HfFamily>& families();
/// Null when unknown.
const HfFamily* find_family(const std::string& model_type);

extern const HfFamily kGpt2Family, kLlamaFamily, kQwen2Family, kQwen3Family, kMistralFamily;

/// What all decoders of the Llama kind share: sizes, RMS norm, SwiGLU, rotary positions. The defaults are
/// those of transformers' class (key-value heads 0: as many as heads).
ModelSpec read_decoder(ConfigReader& config, int64_t default_max_positions, int64_t default_kv_heads);
void write_decoder(const ModelSpec& spec, nlohmann::ordered_json& config);
/// Qwen's use_sliding_window, sliding_window, max_window_layers and layer_types.
void read_qwen_windows(ConfigReader& config, ModelSpec& spec);
void write_qwen_windows(const ModelSpec& spec, nlohmann::ordered_json& config);

}  // namespace megatrain
