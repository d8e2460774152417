// Qwen3, dense (transformers/models/qwen3/configuration_qwen3.py): RMS norms over each head's query and key.
#include "io/families/family.h"

namespace megatrain {
namespace {

ModelSpec read(ConfigReader& c) {
  ModelSpec s = read_decoder(c, 32768, 32);
  if (s.head_size == 0) s.head_size = 128;
  s.qk_norm = true;
  s.qkv_bias = s.output_bias = c.flag("attention_bias", false);
  read_qwen_windows(c, s);
  return s;
}

void write(const ModelSpec& s, nlohmann::ordered_json& j) {
  write_decoder(s, j);
  j["attention_bias"] = s.qkv_bias;
  write_qwen_windows(s, j);
}

}  // namespace

const HfFamily kQwen3Family = {"qwen3", "Qwen3ForCausalLM", read, write};

}  // namespace megatrain
