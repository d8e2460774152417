#pragma once
// defines: save_model, read_model_spec, load_weights — a model directory in Hugging Face form.

#include <functional>
#include <string>

#include "store/host_store.h"

namespace megatrain {

/// Writes config.json and model.safetensors (fp32, the exact master weights) into `directory`, which must
/// exist; `extra(directory)` lies with the caller (tokenizer). transformers loads the result.
void save_model(const std::string& directory, const Model& model, const HostStore& store,
                const ProgressFn& progress = {});
/// Reads config.json. A field that changes the maths and is not supported is refused by name.
ModelSpec read_model_spec(const std::string& directory);
/// Fills the store from model.safetensors. Missing, unknown and mis-shaped tensors are named.
void load_weights(const std::string& directory, const Model& model, HostStore& store,
                  const ProgressFn& progress = {});

}  // namespace megatrain
