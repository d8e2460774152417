// GPT-2 (transformers/models/gpt2/configuration_gpt2.py).
#include "io/families/family.h"

namespace megatrain {
namespace {

ModelSpec read(ConfigReader& c) {
  ModelSpec s;
  s.vocab_size = c.integer("vocab_size"), s.max_position_embeddings = c.integer("n_positions");
  s.hidden_size = c.integer("n_embd"), s.num_layers = c.integer("n_layer"), s.num_heads = c.integer("n_head");
  s.intermediate_size = c.integer("n_inner", 4 * s.hidden_size);
  const std::string activation = c.text("activation_function", "gelu_new");
  if (activation != "gelu" && activation != "gelu_new")
    c.refuse("activation_function", "'" + activation + "' is not supported; supported: gelu, gelu_new");
  s.activation = activation == "gelu" ? Activation::gelu : Activation::gelu_tanh;
  s.norm_eps = c.number("layer_norm_epsilon", 1e-5), s.init_std = c.number("initializer_range", 0.02);
  s.dropout = c.number("resid_pdrop", 0.1);
  s.tied = c.flag("tie_word_embeddings", true);
  c.only("scale_attn_weights", true), c.only("scale_attn_by_inverse_layer_idx", false);
  c.only("add_cross_attention", false);
  for (const char* key :
       {"n_ctx", "embd_pdrop", "attn_pdrop", "reorder_and_upcast_attn", "summary_activation",
        "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"})
    c.ignore(key);
  if (c.has("megatrain")) s.bias = c.object("megatrain").flag("bias", true);
  return s;
}

void write(const ModelSpec& s, nlohmann::ordered_json& j) {
  j["vocab_size"] = s.vocab_size, j["n_positions"] = s.max_position_embeddings,
  j["n_ctx"] = s.max_position_embeddings;
  j["n_embd"] = s.hidden_size, j["n_layer"] = s.num_layers, j["n_head"] = s.num_heads;
  j["n_inner"] = s.intermediate_size;
  j["activation_function"] = s.activation == Activation::gelu ? "gelu" : "gelu_new";
  j["layer_norm_epsilon"] = s.norm_eps, j["initializer_range"] = s.init_std;
  j["resid_pdrop"] = s.dropout, j["embd_pdrop"] = s.dropout, j["attn_pdrop"] = s.dropout;
  j["tie_word_embeddings"] = s.tied;
  j["scale_attn_weights"] = true, j["scale_attn_by_inverse_layer_idx"] = false;
  if (!s.bias) j["megatrain"] = {{"bias", false}};
}

}  // namespace

const HfFamily kGpt2Family = {"gpt2", "GPT2LMHeadModel", read, write};

}  // namespace megatrain
