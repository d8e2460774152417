// What the config.json of Llama, Qwen and Mistral have in common; rotary positions follow
// transformers/modeling_rope_utils.py (both its rope_parameters and the older rope_scaling + rope_theta).
#include <fmt/format.h>

#include "io/families/family.h"

namespace megatrain {
namespace {

void read_scaling(ConfigReader& c, const ModelSpec& s, RopeSpec& r) {
  if (r.type == "default") return;
  r.factor = c.number("factor", 1);
  if (r.type == "llama3" || r.type == "yarn")
    r.original_max_position_embeddings =
        c.integer("original_max_position_embeddings", s.max_position_embeddings);
  if (r.type == "llama3") {
    r.low_freq_factor = c.number("low_freq_factor", 1);
    r.high_freq_factor = c.number("high_freq_factor", 4);
  } else if (r.type == "yarn") {
    r.attention_factor = c.number("attention_factor", 0);
    r.beta_fast = c.number("beta_fast", 32), r.beta_slow = c.number("beta_slow", 1);
    r.mscale = c.number("mscale", 0), r.mscale_all_dim = c.number("mscale_all_dim", 0);
    r.truncate = c.flag("truncate", true);
  } else {
    c.ignore("original_max_position_embeddings");  // not used by linear and dynamic
  }
}

RopeSpec read_rope(ConfigReader& config, const ModelSpec& s) {
  RopeSpec r;
  r.theta = config.number("rope_theta", 10000);
  config.only("partial_rotary_factor", 1.0);
  const char* key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  config.ignore("rope_scaling");  // transformers 5 writes both
  if (!config.has(key)) return r;
  ConfigReader c = config.object(key);
  r.type = c.text("rope_type", c.text("type", "default"));
  r.theta = c.number("rope_theta", r.theta);
  c.ignore("type"), c.ignore("finetuned"), c.only("partial_rotary_factor", 1.0);
  const std::string supported = "default, linear, dynamic, yarn, llama3";
  bool known = false;
  for (const char* type : {"default", "linear", "dynamic", "yarn", "llama3"}) known |= r.type == type;
  if (!known) c.refuse("rope_type", fmt::format("'{}' is not supported; supported: {}", r.type, supported));
  read_scaling(c, s, r);
  c.finish();
  return r;
}

}  // namespace

ModelSpec read_decoder(ConfigReader& c, int64_t default_max_positions, int64_t default_kv_heads) {
  ModelSpec s;
  s.vocab_size = c.integer("vocab_size"), s.hidden_size = c.integer("hidden_size");
  s.num_layers = c.integer("num_hidden_layers"), s.num_heads = c.integer("num_attention_heads");
  s.intermediate_size = c.integer("intermediate_size");
  const bool silent = default_kv_heads > 0 && !c.mentions("num_key_value_heads");
  s.num_kv_heads = c.integer("num_key_value_heads", silent ? default_kv_heads : s.num_heads);
  s.head_size = c.integer("head_dim", 0);
  s.max_position_embeddings = c.integer("max_position_embeddings", default_max_positions);
  s.norm_eps = c.number("rms_norm_eps", 1e-6), s.init_std = c.number("initializer_range", 0.02);
  s.tied = c.flag("tie_word_embeddings", false);
  c.only("hidden_act", "silu"), c.only("attention_dropout", 0.0);
  c.ignore("pretraining_tp");  // a way of splitting products, not another result
  s.rope = read_rope(c, s);
  return s;
}

void write_decoder(const ModelSpec& s, nlohmann::ordered_json& j) {
  j["vocab_size"] = s.vocab_size, j["hidden_size"] = s.hidden_size;
  j["intermediate_size"] = s.intermediate_size, j["num_hidden_layers"] = s.num_layers;
  j["num_attention_heads"] = s.num_heads, j["num_key_value_heads"] = s.kv_heads();
  j["head_dim"] = s.head_dim(), j["hidden_act"] = "silu";
  j["max_position_embeddings"] = s.max_position_embeddings;
  j["rms_norm_eps"] = s.norm_eps, j["initializer_range"] = s.init_std;
  j["tie_word_embeddings"] = s.tied, j["attention_dropout"] = 0.0;
  j["rope_theta"] = s.rope.theta;  // the older form: every reader knows it
  if (s.rope.type == "default") return;
  nlohmann::ordered_json r = {{"rope_type", s.rope.type}, {"factor", s.rope.factor}};
  if (s.rope.original_max_position_embeddings > 0)
    r["original_max_position_embeddings"] = s.rope.original_max_position_embeddings;
  if (s.rope.type == "llama3")
    r["low_freq_factor"] = s.rope.low_freq_factor, r["high_freq_factor"] = s.rope.high_freq_factor;
  if (s.rope.type == "yarn") {
    r["beta_fast"] = s.rope.beta_fast, r["beta_slow"] = s.rope.beta_slow;
    if (s.rope.attention_factor > 0) r["attention_factor"] = s.rope.attention_factor;
  }
  j["rope_scaling"] = std::move(r);
}

void read_qwen_windows(ConfigReader& c, ModelSpec& s) {
  const bool use = c.flag("use_sliding_window", false);
  const int64_t window = c.integer("sliding_window", c.mentions("sliding_window") ? 0 : 4096);
  const int64_t full_layers = c.integer("max_window_layers", 28);
  const auto types = c.texts("layer_types");
  if (!types.empty() && static_cast<int64_t>(types.size()) != s.num_layers)
    c.refuse("layer_types", fmt::format("{} entries for {} layers", types.size(), s.num_layers));
  if (s.num_layers > 100000) c.refuse("num_hidden_layers", "is not a usable size");
  std::vector<int64_t> windows;
  bool any = false;
  for (int64_t l = 0; l < s.num_layers; ++l) {
    bool slides = use && window > 0 && l >= full_layers;
    if (!types.empty()) {
      const std::string& type = types[static_cast<size_t>(l)];
      slides = type == "sliding_attention";
      if (!slides && type != "full_attention") c.refuse("layer_types", "'" + type + "' is not supported");
      if (slides && !(use && window > 0))
        c.refuse("layer_types", "sliding_attention without use_sliding_window and sliding_window");
    }
    windows.push_back(slides ? window : 0);
    any |= slides;
  }
  if (any) s.windows = std::move(windows);
}

void write_qwen_windows(const ModelSpec& s, nlohmann::ordered_json& j) {
  int64_t window = 0;
  std::vector<std::string> types;
  for (int64_t l = 0; l < s.num_layers; ++l) {
    types.emplace_back(s.window(l) > 0 ? "sliding_attention" : "full_attention");
    window = std::max(window, s.window(l));
  }
  j["use_sliding_window"] = window > 0;
  if (window == 0) return;
  j["sliding_window"] = window, j["layer_types"] = types;
}

}  // namespace megatrain
