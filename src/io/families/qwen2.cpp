// Qwen2 and Qwen2.5 (transformers/models/qwen2/configuration_qwen2.py): biases on query, key and value.
#include "io/families/family.h"

namespace megatrain {
namespace {

ModelSpec read(ConfigReader& c) {
  ModelSpec s = read_decoder(c, 32768, 32);
  s.qkv_bias = true;
  read_qwen_windows(c, s);
  return s;
}

void write(const ModelSpec& s, nlohmann::ordered_json& j) {
  write_decoder(s, j);
  write_qwen_windows(s, j);
}

}  // namespace

const HfFamily kQwen2Family = {"qwen2", "Qwen2ForCausalLM", read, write};

}  // namespace megatrain
