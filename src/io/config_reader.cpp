#include "io/config_reader.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <sstream>

#include "core/error.h"

namespace megatrain {
namespace {

// Fields that say nothing about the maths of a forward or backward pass: names, generation, bookkeeping.
constexpr const char* kHarmless =
    "_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path _num_labels "
    "architectures bad_words_ids begin_suppress_tokens bos_token_id decoder_start_token_id "
    "diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size eos_token_id "
    "exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id "
    "gradient_checkpointing id2label is_decoder label2id length_penalty max_length max_new_tokens "
    "min_length model_type no_repeat_ngram_size num_beam_groups num_beams num_return_sequences "
    "output_attentions output_hidden_states output_scores pad_token_id prefix problem_type "
    "remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id "
    "suppress_tokens task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p "
    "torch_dtype torchscript transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16 "
    "use_cache";

const std::set<std::string>& harmless() {
  static const std::set<std::string> names = [] {
    std::istringstream in(kHarmless);
    return std::set<std::string>(std::istream_iterator<std::string>(in), {});
  }();
  return names;
}

}  // namespace

ConfigReader::ConfigReader(const nlohmann::json& object, std::string where)
    : json_(object), where_(std::move(where)) {
  if (!object.is_object()) fail(where_ + ": a JSON object was expected");
}

void ConfigReader::refuse(const std::string& key, const std::string& why) const {
  fail(fmt::format("{}: {}: {}", where_, key, why));
}

const nlohmann::json* ConfigReader::value(const std::string& key) {
  used_.insert(key);
  const auto it = json_.find(key);
  return it == json_.end() || it->is_null() ? nullptr : &*it;
}

const nlohmann::json& ConfigReader::needed(const std::string& key) {
  const nlohmann::json* v = value(key);
  if (!v) refuse(key, "is missing, and the model cannot be built without it");
  return *v;
}

bool ConfigReader::has(const std::string& key) {
  return value(key) != nullptr;
}

std::string ConfigReader::text(const std::string& key, const std::string& absent) {
  const nlohmann::json* v = value(key);
  if (v && !v->is_string()) refuse(key, "text was expected");
  return v ? v->get<std::string>() : absent;
}

int64_t ConfigReader::integer(const std::string& key) {
  const nlohmann::json& v = needed(key);
  const bool whole = v.is_number_float() && std::fabs(v.get<double>()) < 1e15 &&
                     v.get<double>() == std::floor(v.get<double>());  // some tools write 4096.0
  if (!v.is_number_integer() && !whole) refuse(key, "a whole number was expected");
  if (v.is_number_unsigned() && v.get<uint64_t>() > uint64_t{1} << 62) refuse(key, "is too large");
  return whole ? static_cast<int64_t>(v.get<double>()) : v.get<int64_t>();
}

int64_t ConfigReader::integer(const std::string& key, int64_t absent) {
  return has(key) ? integer(key) : absent;
}

double ConfigReader::number(const std::string& key, double absent) {
  const nlohmann::json* v = value(key);
  if (v && !v->is_number()) refuse(key, "a number was expected");
  const double x = v ? v->get<double>() : absent;
  if (!std::isfinite(x)) refuse(key, "is not finite");
  return x;
}

bool ConfigReader::flag(const std::string& key, bool absent) {
  const nlohmann::json* v = value(key);
  if (v && !v->is_boolean()) refuse(key, "true or false was expected");
  return v ? v->get<bool>() : absent;
}

std::vector<std::string> ConfigReader::texts(const std::string& key) {
  std::vector<std::string> out;
  const nlohmann::json* v = value(key);
  if (!v) return out;
  if (!v->is_array()) refuse(key, "a list was expected");
  for (const auto& item : *v) {
    if (!item.is_string()) refuse(key, "a list of texts was expected");
    out.push_back(item.get<std::string>());
  }
  return out;
}

ConfigReader ConfigReader::object(const std::string& key) {
  return {needed(key), fmt::format("{}: {}", where_, key)};
}

void ConfigReader::only(const std::string& key, const nlohmann::json& supported) {
  const nlohmann::json* v = value(key);
  if (v && *v != supported)
    refuse(key, fmt::format("{} is not supported; only {} is", v->dump().substr(0, 60), supported.dump()));
}

void ConfigReader::finish() const {
  for (const auto& [key, v] : json_.items())
    if (!used_.contains(key) && !harmless().contains(key) && !v.is_null())
      refuse(key.substr(0, 80),
             "this field is not known here and may change the maths, so the model is not loaded; remove the "
             "field if it does not");
}

}  // namespace megatrain
