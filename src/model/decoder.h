#pragma once
// defines: make_decoder — the pre-norm decoder of Llama, Qwen and Mistral (Touvron et al. 2023).

#include "model/layer_template.h"

namespace megatrain {

/// RMS norms, rotary positions, grouped key-value heads, SwiGLU; biases, per-head norms and attention windows
/// as the spec says. Parameter names and [out, in] matrices are those of Hugging Face's LlamaForCausalLM.
std::unique_ptr<Model> make_decoder(const ModelSpec& spec);

}  // namespace megatrain
