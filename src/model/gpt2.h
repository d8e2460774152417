#pragma once
// defines: make_gpt2 — GPT-2 as nanoGPT and gigaGPT train it (Radford et al. 2019).

#include "model/layer_template.h"

namespace megatrain {

/// Learned positions, pre-layer-norm, biases optional, erf or tanh GELU, multi-head attention, tied or
/// untied head. Parameter names and [in, out] matrix layout are those of Hugging Face's GPT-2.
std::unique_ptr<Model> make_gpt2(const ModelSpec& spec);

}  // namespace megatrain
