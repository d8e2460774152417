// Llama 2, 3, 3.1, 3.2, 3.3 (transformers/models/llama/configuration_llama.py).
#include "io/families/family.h"

namespace megatrain {
namespace {

ModelSpec read(ConfigReader& c) {
  ModelSpec s = read_decoder(c, 2048, 0);
  s.qkv_bias = s.output_bias = c.flag("attention_bias", false);
  s.mlp_bias = c.flag("mlp_bias", false);
  return s;
}

void write(const ModelSpec& s, nlohmann::ordered_json& j) {
  write_decoder(s, j);
  j["attention_bias"] = s.qkv_bias, j["mlp_bias"] = s.mlp_bias;
}

}  // namespace

const HfFamily kLlamaFamily = {"llama", "LlamaForCausalLM", read, write};

}  // namespace megatrain
