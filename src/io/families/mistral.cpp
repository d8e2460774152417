// Mistral (transformers/models/mistral/configuration_mistral.py): one attention window for all layers.
#include "io/families/family.h"

namespace megatrain {
namespace {

ModelSpec read(ConfigReader& c) {
  ModelSpec s = read_decoder(c, 131072, 8);
  // null means no window; a config that does not say has the class's default.
  const int64_t window = c.integer("sliding_window", c.mentions("sliding_window") ? 0 : 4096);
  if (window < 0) c.refuse("sliding_window", "must not be negative");
  if (s.num_layers > 100000) c.refuse("num_hidden_layers", "is not a usable size");
  if (window > 0 && s.num_layers > 0) s.windows.assign(static_cast<size_t>(s.num_layers), window);
  return s;
}

void write(const ModelSpec& s, nlohmann::ordered_json& j) {
  write_decoder(s, j);
  if (s.window(0) > 0)
    j["sliding_window"] = s.window(0);
  else
    j["sliding_window"] = nullptr;
}

}  // namespace

const HfFamily kMistralFamily = {"mistral", "MistralForCausalLM", read, write};

}  // namespace megatrain
