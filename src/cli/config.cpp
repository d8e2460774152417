#include "cli/config.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <sstream>
#include <type_traits>

#include "core/error.h"
#include "io/file.h"

namespace megatrain {
namespace {

std::string text_of(const std::string& v) {
  return v;
}
std::string text_of(bool v) {
  return v ? "true" : "false";
}
std::string text_of(int64_t v) {
  return std::to_string(v);
}
std::string text_of(double v) {
  return fmt::format("{}", v);
}

bool parse(const std::string& text, std::string& out) {
  out = text;
  return true;
}

bool parse(const std::string& text, bool& out) {
  out = text == "true" || text == "True" || text == "1" || text == "yes" || text == "on";
  return out || text == "false" || text == "False" || text == "0" || text == "no" || text == "off";
}

bool parse(std::string text, int64_t& out) {
  std::erase(text, '_');  // 1_000_000
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty();
}

bool parse(std::string text, double& out) {
  std::erase(text, '_');
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty();
}

template <class T>
const char* type_name() {
  if constexpr (std::is_same_v<T, bool>)
    return "true or false";
  else if constexpr (std::is_same_v<T, int64_t>)
    return "a whole number";
  else if constexpr (std::is_same_v<T, double>)
    return "a number";
  else
    return "text";
}

bool is_choice(const std::string& value, const std::string& choices) {
  std::istringstream in(choices);
  for (std::string c; std::getline(in, c, '|');)
    if (c == value) return true;
  return choices.empty();
}

size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

void require(bool ok, const std::string& message) {
  if (!ok) fail(message);
}

}  // namespace

std::string nearest(const std::string& name, const std::vector<std::string>& candidates) {
  return *std::min_element(candidates.begin(), candidates.end(),
                           [&](auto& a, auto& b) { return edit_distance(name, a) < edit_distance(name, b); });
}

std::string alias_of(const std::string& name) {
  if (name == "init_from") return "model";
  if (name == "out_dir") return "out";
  return name == "memory_limit" ? "gpu_memory" : "";
}

void set_field(TrainConfig& config, const std::string& name, const std::string& value,
               const std::string& where) {
  bool found = false;
  std::vector<std::string> names;
  for_each_field(config, [&](const FieldInfo& info, auto& member) {
    names.emplace_back(info.name);
    if (name != info.name && (name.empty() || name != alias_of(info.name))) return;
    found = true;
    if (!parse(value, member))
      fail(fmt::format("{}: {}: '{}' is not {}", where, name, value,
                       type_name<std::decay_t<decltype(member)>>()));
    if (!is_choice(text_of(member), info.choices))
      fail(fmt::format("{}: {}: '{}' is not one of {}", where, name, value, info.choices));
  });
  if (!found)
    fail(fmt::format("{}: unknown option '{}'; did you mean '{}'?", where, name, nearest(name, names)));
}

namespace {

std::string joined(const YAML::Node& list, const std::string& where) {
  std::string out;
  for (const auto& item : list) {
    if (!item.IsScalar()) fail(where + ": a list of paths was expected");
    out += (out.empty() ? "" : ", ") + item.as<std::string>();
  }
  return out;
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

}  // namespace

std::vector<DataSet> data_sets(const std::string& option, const std::string& value) {
  std::vector<DataSet> sets;
  std::istringstream in(value);
  for (std::string item; std::getline(in, item, ',');) {
    const size_t equals = item.rfind('=');
    DataSet set{trimmed(item.substr(0, equals))};
    if (equals != std::string::npos && (!parse(trimmed(item.substr(equals + 1)), set.weight) ||
                                        !(set.weight > 0) || !std::isfinite(set.weight)))
      fail(fmt::format("{}: '{}': the weight behind = must be a positive number", option, trimmed(item)));
    if (set.path.empty()) fail(fmt::format("{}: '{}' has an empty path", option, value));
    sets.push_back(set);
  }
  const auto weighted =
      std::count_if(sets.begin(), sets.end(), [](const DataSet& s) { return s.weight > 0; });
  if (weighted != 0 && weighted != static_cast<int64_t>(sets.size()))
    fail(fmt::format("{}: '{}': give every set a weight, or none", option, value));
  return sets;
}

TrainConfig load_config(const std::string& path) {
  YAML::Node root;
  try {
    root = YAML::Load(read_text_file(path));
  } catch (const YAML::Exception& e) {
    fail(fmt::format("{}:{}: not valid YAML: {}", path, e.mark.line + 1, e.msg));
  }
  if (!root.IsMap()) fail(path + ": a map of options was expected, e.g. 'hidden_size: 768'");
  TrainConfig config;
  std::vector<std::string> seen;
  for (const auto& entry : root) {
    const std::string where = fmt::format("{}:{}", path, entry.first.Mark().line + 1);
    if (!entry.first.IsScalar()) fail(where + ": an option's name was expected");
    const auto name = entry.first.as<std::string>();
    const bool list = entry.second.IsSequence() && (name == "train_data" || name == "val_data");
    if (!entry.second.IsScalar() && !list)
      fail(fmt::format("{}: {}: a single value was expected", where, name));
    if (std::count(seen.begin(), seen.end(), name)) fail(fmt::format("{}: {} is given twice", where, name));
    seen.push_back(name);
    set_field(config, name, list ? joined(entry.second, where) : entry.second.as<std::string>(), where);
  }
  return config;
}

void validate(const TrainConfig& c) {
  for_each_field(c, [](const FieldInfo& info, const auto& member) {
    if constexpr (std::is_same_v<std::decay_t<decltype(member)>, double>)
      require(std::isfinite(member), fmt::format("{}: {} is not a finite number", info.name, member));
  });
  require(c.sequence_length > 0, fmt::format("sequence_length: {} must be at least 1", c.sequence_length));
  require(c.batch_size > 0, fmt::format("batch_size: {} must be at least 1", c.batch_size));
  require(c.num_steps >= 0, fmt::format("num_steps: {} must not be negative", c.num_steps));
  require(c.learning_rate >= 0, fmt::format("learning_rate: {} must not be negative", c.learning_rate));
  require(c.warmup_steps >= 0, fmt::format("warmup_steps: {} must not be negative", c.warmup_steps));
  require(c.adam_beta1 >= 0 && c.adam_beta1 < 1 && c.adam_beta2 >= 0 && c.adam_beta2 < 1,
          "adam_beta1, adam_beta2: must be in [0, 1)");
  require(c.adam_epsilon > 0, "adam_epsilon: must be positive");
  require(c.weight_decay >= 0, "weight_decay: must not be negative");
  require(c.max_gradient_norm >= 0, "max_gradient_norm: must not be negative; 0 means no clipping");
  require(c.log_interval > 0, "log_interval: must be at least 1");
  require(c.micro_batch >= 0 && c.threads >= 0,
          "micro_batch, threads: must not be negative; 0 means automatic");
  require(c.eval_interval >= 0 && c.eval_batches >= 0 && c.save_interval >= 0,
          "eval_interval, eval_batches, save_interval: must not be negative");
  require(c.checkpoint_interval >= -1 && c.checkpoint_minutes >= 0 && c.keep_checkpoint_every >= 0,
          "checkpoint_interval, checkpoint_minutes, keep_checkpoint_every: must not be negative (-1: no "
          "checkpoints)");
  require(c.keep_checkpoints > 0, "keep_checkpoints: must be at least 1");
  const TrainConfig usual;
  if (c.family == "gpt2")
    require(c.num_kv_heads == 0 && c.head_dim == 0 && c.rope_theta == usual.rope_theta,
            "num_kv_heads, head_dim, rope_theta: gpt2 has none of these; set family, or leave them out");
  else
    require(c.bias == usual.bias && c.activation == usual.activation,
            fmt::format("bias, activation: are gpt2's; {} has its own, leave them out", c.family));
  require(c.sliding_window == 0 || (c.sliding_window > 0 && c.family == "mistral"),
          "sliding_window: must be positive, and family mistral");
  require(c.max_position_embeddings == 0 || c.sequence_length <= c.max_position_embeddings,
          fmt::format("sequence_length: {} tokens, but the model has {} positions (max_position_embeddings)",
                      c.sequence_length, c.max_position_embeddings));
}

ModelSpec model_spec(const TrainConfig& c, int64_t data_vocab_size) {
  ModelSpec s;
  s.family = c.family;
  s.vocab_size = c.vocab_size > 0 ? c.vocab_size : data_vocab_size;
  s.hidden_size = c.hidden_size, s.num_layers = c.num_layers, s.num_heads = c.num_heads;
  const bool gpt2 = c.family == "gpt2";
  const int64_t usual = gpt2 ? 4 * c.hidden_size : (8 * c.hidden_size / 3 + 63) / 64 * 64;
  s.intermediate_size = c.intermediate_size > 0 ? c.intermediate_size : usual;
  s.max_position_embeddings = c.max_position_embeddings > 0 ? c.max_position_embeddings : c.sequence_length;
  s.norm_eps = c.layer_norm_epsilon, s.init_std = c.init_std, s.dropout = c.dropout;
  s.activation = c.activation == "gelu" ? Activation::gelu : Activation::gelu_tanh;
  s.bias = c.bias, s.tied = c.tie_word_embeddings;
  s.num_kv_heads = c.num_kv_heads, s.head_size = c.head_dim, s.rope.theta = c.rope_theta;
  s.qkv_bias = c.family == "qwen2", s.qk_norm = c.family == "qwen3";
  if (c.sliding_window > 0 && c.num_layers > 0)
    s.windows.assign(static_cast<size_t>(c.num_layers), c.sliding_window);
  if (s.vocab_size == 0)
    fail(
        "vocab_size: not set, and the data has no tokenizer beside it that would say; set it (GPT-2: 50257)");
  return s;
}

std::string config_table(const TrainConfig& config) {
  std::string out, section;
  const TrainConfig defaults;
  std::vector<std::string> standard;
  for_each_field(defaults, [&](const FieldInfo&, const auto& m) { standard.push_back(text_of(m)); });
  size_t i = 0;
  for_each_field(config, [&](const FieldInfo& info, const auto& member) {
    if (section != info.section) out += fmt::format("  {}\n", section = info.section);
    const std::string value = text_of(member);
    out += fmt::format("  {} {:<26}{}\n", value == standard[i] ? " " : "*", info.name,
                       value.empty() ? "-" : value);
    ++i;
  });
  return out;
}

std::string config_yaml(const TrainConfig& config) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  for_each_field(config, [&](const FieldInfo& info, const auto& member) {
    out << YAML::Key << info.name << YAML::Value << text_of(member);
  });
  out << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

}  // namespace megatrain
