#include "io/hf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "io/file.h"
#include "io/safetensors.h"

namespace megatrain {
namespace {

constexpr const char* kPrefix = "transformer.";

nlohmann::ordered_json config_of(const ModelSpec& s) {
  nlohmann::ordered_json j;
  j["architectures"] = {"GPT2LMHeadModel"};
  j["model_type"] = "gpt2";
  j["vocab_size"] = s.vocab_size, j["n_positions"] = s.max_position_embeddings,
  j["n_ctx"] = s.max_position_embeddings;
  j["n_embd"] = s.hidden_size, j["n_layer"] = s.num_layers, j["n_head"] = s.num_heads;
  j["n_inner"] = s.intermediate_size;
  j["activation_function"] = s.activation == Activation::gelu ? "gelu" : "gelu_new";
  j["layer_norm_epsilon"] = s.norm_eps, j["initializer_range"] = s.init_std;
  j["resid_pdrop"] = s.dropout, j["embd_pdrop"] = s.dropout, j["attn_pdrop"] = s.dropout;
  j["tie_word_embeddings"] = s.tied;
  j["scale_attn_weights"] = true, j["scale_attn_by_inverse_layer_idx"] = false;
  j["bos_token_id"] = nullptr, j["eos_token_id"] = nullptr;
  j["torch_dtype"] = "float32";
  j["megatrain"] = {{"bias", s.bias}};
  return j;
}

// Every layer's biases, for a model without: transformers' GPT-2 always has them, as zeros.
std::vector<std::pair<std::string, int64_t>> absent_biases(const ModelSpec& s) {
  std::vector<std::pair<std::string, int64_t>> out;
  if (s.bias) return out;
  const int64_t c = s.hidden_size;
  for (int64_t l = 0; l < s.num_layers; ++l)
    for (const auto& [name, n] : {std::pair{"ln_1", c},
                                  {"attn.c_attn", 3 * c},
                                  {"attn.c_proj", c},
                                  {"ln_2", c},
                                  {"mlp.c_fc", s.intermediate_size},
                                  {"mlp.c_proj", c}})
      out.emplace_back(fmt::format("transformer.h.{}.{}.bias", l, name), n);
  out.emplace_back("transformer.ln_f.bias", c);
  return out;
}

const SafetensorsEntry* find_tensor(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* e = file.find(name);
  const bool prefixed = name.rfind(kPrefix, 0) == 0;  // the original GPT-2 files have no prefix
  return e || !prefixed ? e : file.find(name.substr(std::string(kPrefix).size()));
}

// Tensors that older checkpoints carry and that hold nothing to train.
bool is_ignorable(const std::string& name, const ModelSpec& s) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         (s.tied && name == "lm_head.weight");
}

void check_zero(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* e = find_tensor(file, name);
  if (!e) return;
  std::vector<float> v(static_cast<size_t>(e->numel()));
  file.read_f32(*e, v.data());
  if (std::any_of(v.begin(), v.end(), [](float x) { return x != 0; }))
    fail(fmt::format("{}: '{}' is not zero, but the model was saved as one without biases", file.path(),
                     name));
}

}  // namespace

void save_model(const std::string& directory, const Model& model, const HostStore& store,
                const ProgressFn& progress) {
  write_file_atomically(directory + "/config.json", config_of(model.spec()).dump(2) + "\n");
  SafetensorsWriter out(directory + "/model.safetensors");
  const auto zeros = absent_biases(model.spec());
  for (const auto& u : model.units())
    for (const auto& p : u.parameters) out.declare(p.name, "F32", p.shape);
  for (const auto& [name, n] : zeros) out.declare(name, "F32", {n});
  out.begin();
  std::vector<float> values;
  for (int u = 0; u < model.unit_count(); ++u)
    for (const auto& p : model.units()[static_cast<size_t>(u)].parameters) {
      if (progress) progress(static_cast<double>(u) / model.unit_count());
      values.resize(static_cast<size_t>(p.numel));
      store.get_parameter(u, p, values.data());
      out.append(values.data(), p.numel * 4);
    }
  for (const auto& [name, n] : zeros) {
    values.assign(static_cast<size_t>(n), 0.0f);
    out.append(values.data(), n * 4);
  }
  out.finish();
}

ModelSpec read_model_spec(const std::string& directory) {
  const std::string path = directory + "/config.json";
  const auto j = nlohmann::json::parse(read_text_file(path), nullptr, false);
  if (!j.is_object()) fail(path + ": is not a JSON object");
  try {
    if (j.value("model_type", "") != "gpt2")
      fail(fmt::format("{}: model_type '{}' is not supported; supported: gpt2", path,
                       j.value("model_type", "")));
    for (const char* flag : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
      if (j.value(flag, false)) fail(fmt::format("{}: {} is not supported", path, flag));
    if (!j.value("scale_attn_weights", true)) fail(path + ": scale_attn_weights: false is not supported");
    ModelSpec s;
    s.vocab_size = j.at("vocab_size"), s.max_position_embeddings = j.at("n_positions");
    s.hidden_size = j.at("n_embd"), s.num_layers = j.at("n_layer"), s.num_heads = j.at("n_head");
    s.intermediate_size =
        j.contains("n_inner") && !j["n_inner"].is_null() ? j["n_inner"].get<int64_t>() : 4 * s.hidden_size;
    const std::string activation = j.value("activation_function", "gelu_new");
    if (activation != "gelu" && activation != "gelu_new")
      fail(fmt::format("{}: activation_function '{}' is not supported; supported: gelu, gelu_new", path,
                       activation));
    s.activation = activation == "gelu" ? Activation::gelu : Activation::gelu_tanh;
    s.norm_eps = j.value("layer_norm_epsilon", 1e-5), s.init_std = j.value("initializer_range", 0.02);
    s.dropout = j.value("resid_pdrop", 0.0);
    s.tied = j.value("tie_word_embeddings", true);
    if (j.contains("megatrain")) s.bias = j["megatrain"].value("bias", true);
    return s;
  } catch (const nlohmann::json::exception& e) {
    fail(fmt::format("{}: a needed field is missing or has the wrong type ({})", path, e.what()));
  }
}

void load_weights(const std::string& directory, const Model& model, HostStore& store,
                  const ProgressFn& progress) {
  const SafetensorsFile file(directory + "/model.safetensors");
  std::set<std::string> used;
  std::vector<float> values;
  for (int u = 0; u < model.unit_count(); ++u)
    for (const auto& p : model.units()[static_cast<size_t>(u)].parameters) {
      const SafetensorsEntry* e = find_tensor(file, p.name);
      if (!e) fail(fmt::format("{}: tensor '{}' is missing", file.path(), p.name));
      if (e->shape != p.shape)
        fail(fmt::format("{}: tensor '{}' has shape [{}], [{}] was expected", file.path(), p.name,
                         fmt::join(e->shape, ", "), fmt::join(p.shape, ", ")));
      if (progress) progress(static_cast<double>(u) / model.unit_count());
      values.resize(static_cast<size_t>(p.numel));
      file.read_f32(*e, values.data());
      store.set_parameter(u, p, values.data());
      used.insert(p.name);
    }
  for (const auto& [name, n] : absent_biases(model.spec())) check_zero(file, name), used.insert(name);
  for (const auto& [name, e] : file.entries())
    if (!used.contains(name) && !used.contains(kPrefix + name) && !is_ignorable(name, model.spec()))
      fail(fmt::format("{}: tensor '{}' does not belong to this model", file.path(), name));
}

}  // namespace megatrain
