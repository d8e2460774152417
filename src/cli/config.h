#pragma once
// defines: TrainConfig, for_each_field, load_config, set_field, config_table.
// One line below is one option: the struct's member, its YAML key, its --flag, its help and its row in the
// printed table. Add a line, use the member: nothing else to edit.

#include <cstdint>
#include <string>
#include <vector>

#include "model/model_spec.h"

namespace megatrain {

// FIELD(type, name, default, choices or "", help). `SECTION(text)` starts a group in help and table.
// clang-format off
#define MEGATRAIN_TRAIN_OPTIONS(SECTION, FIELD) \
  SECTION("model") \
  FIELD(std::string, family, "gpt2", "gpt2|llama|qwen2|qwen3|mistral", "architecture") \
  FIELD(int64_t, vocab_size, 0, "", "tokens in the vocabulary; 0: as the data's tokenizer says") \
  FIELD(int64_t, hidden_size, 768, "", "width of the residual stream") \
  FIELD(int64_t, num_layers, 12, "", "transformer blocks") \
  FIELD(int64_t, num_heads, 12, "", "attention heads; must divide hidden_size") \
  FIELD(int64_t, num_kv_heads, 0, "", "key-value heads (grouped attention), not for gpt2; 0: as many as num_heads") \
  FIELD(int64_t, head_dim, 0, "", "width of a head, not for gpt2; 0: hidden_size / num_heads") \
  FIELD(int64_t, intermediate_size, 0, "", "width of the MLP; 0: 4 x hidden_size (gpt2), 8/3 x hidden_size rounded up to 64") \
  FIELD(int64_t, max_position_embeddings, 0, "", "longest sequence; 0: sequence_length") \
  FIELD(double, rope_theta, 10000.0, "", "base of the rotary positions, not for gpt2") \
  FIELD(int64_t, sliding_window, 0, "", "attention window of every layer (mistral); 0: none") \
  FIELD(bool, bias, true, "", "gpt2: biases in linear layers and layer norms") \
  FIELD(std::string, activation, "gelu", "gelu|gelu_new", "gpt2: gelu: exact (erf); gelu_new: tanh, as OpenAI's") \
  FIELD(bool, tie_word_embeddings, true, "", "head shares the token embedding") \
  FIELD(double, dropout, 0.0, "", "probability, on embeddings, attention and both residual branches") \
  FIELD(double, init_std, 0.02, "", "std of initial weights; residual projections get it / sqrt(2 layers)") \
  FIELD(double, layer_norm_epsilon, 1e-5, "", "of layer norms and RMS norms") \
  FIELD(std::string, init_from, "", "", "Hugging Face model directory to start from; its shape wins") \
  FIELD(bool, allow_nonfinite_weights, false, "", "import NaN and infinite weights too") \
  SECTION("data") \
  FIELD(std::string, train_data, "", "", "training tokens: a nanoGPT .bin (uint16) or a .mtbin, from prepare; several: a list, each with =weight if rows are not to be shared by size") \
  FIELD(std::string, val_data, "", "", "validation tokens, one or several; empty: none") \
  FIELD(int64_t, sequence_length, 1024, "", "tokens of one sequence") \
  FIELD(int64_t, batch_size, 8, "", "sequences of one optimizer step") \
  FIELD(std::string, packing, "auto", "auto|stream|pack|pad", "stream: windows over the text; pack: whole documents side by side, kept apart in attention; pad: one a row; auto: pack for fine-tuning sets, else stream") \
  FIELD(std::string, truncation, "right", "right|left|split|drop", "documents longer than sequence_length: which side is cut off, or in pieces, or left out") \
  FIELD(std::string, sampling, "epoch", "epoch|random|sequential", "epoch: every row once, shuffled; random: nanoGPT's random offsets; sequential: in file order") \
  SECTION("optimization") \
  FIELD(int64_t, num_steps, 1000, "", "optimizer steps") \
  FIELD(double, learning_rate, 6e-4, "", "") \
  FIELD(std::string, lr_schedule, "cosine", "cosine|cosine_nanogpt|linear|constant", "cosine: gigaGPT's warm-up; cosine_nanogpt: nanoGPT's") \
  FIELD(int64_t, warmup_steps, 0, "", "") \
  FIELD(int64_t, decay_steps, -1, "", "steps from the end of the warm-up to min_learning_rate; -1: the rest of the run") \
  FIELD(double, min_learning_rate, -1.0, "", "-1: a tenth of learning_rate") \
  FIELD(double, weight_decay, 0.1, "", "decoupled, on parameters of dimension >= 2") \
  FIELD(double, adam_beta1, 0.9, "", "") \
  FIELD(double, adam_beta2, 0.95, "", "") \
  FIELD(double, adam_epsilon, 1e-8, "", "") \
  FIELD(double, max_gradient_norm, 1.0, "", "clip to this global norm; 0: no clipping, updates overlap the backward") \
  FIELD(int64_t, max_skipped_steps, 10, "", "steps in a row that may be dropped for a loss or gradient that is not finite") \
  FIELD(int64_t, seed, 1337, "", "initial weights, data order, dropout") \
  SECTION("memory") \
  FIELD(std::string, device, "auto", "auto|cpu|cuda", "where to compute; auto: cuda if there is one") \
  FIELD(std::string, compute, "auto", "auto|bf16|fp32", "auto: bf16 on cuda, fp32 on cpu; fp32 on cuda is for verification") \
  FIELD(int64_t, threads, 0, "", "threads; 0: all cores") \
  FIELD(std::string, memory_limit, "auto", "", "device memory to use, e.g. 512MiB; auto: what is there") \
  FIELD(std::string, host_memory, "auto", "", "host memory to use, e.g. 100GiB; auto: nine tenths of what is free") \
  FIELD(std::string, disk, "auto", "", "disk that states may take where memory is short; 0: none; auto: what is free") \
  FIELD(std::string, state_dir, "", "", "directory for states on disk, on a local one; empty: out_dir/states") \
  FIELD(std::string, machine, "", "", "machine profile to plan by; empty: what 'megatrain doctor' wrote, else built in") \
  FIELD(int64_t, micro_batch, 0, "", "sequences computed at a time; 0: planner chooses") \
  FIELD(std::string, residency, "auto", "auto|stream|resident|disk", "auto: everything where it makes the quickest step; stream: nothing stays on the device; resident: all weights do; disk: states, weights and gradients live on disk") \
  FIELD(bool, serialize, false, "", "run one task at a time (debug); same bits") \
  FIELD(bool, poison, false, "", "fill freed buffers with NaN (debug); same bits") \
  SECTION("checkpoints") \
  FIELD(bool, resume, false, "", "go on from the newest whole checkpoint in out_dir; start if there is none") \
  FIELD(std::string, resume_from, "", "", "directory of the checkpoint to go on from, instead of the newest") \
  FIELD(bool, resume_changed_data, false, "", "go on although the data, or its order, is not what it was") \
  FIELD(bool, overwrite, false, "", "delete the checkpoints of an earlier run in out_dir") \
  FIELD(int64_t, checkpoint_interval, 0, "", "steps between checkpoints; 0: by time, and when interrupted; -1: never") \
  FIELD(double, checkpoint_minutes, 30.0, "", "minutes between checkpoints; 0: not by time") \
  FIELD(int64_t, keep_checkpoints, 2, "", "newest checkpoints to keep") \
  FIELD(int64_t, keep_checkpoint_every, 0, "", "keep those at multiples of this many steps too; 0: none") \
  SECTION("output") \
  FIELD(std::string, out_dir, "out", "", "model, metrics and TensorBoard events go there") \
  FIELD(int64_t, log_interval, 10, "", "steps between progress lines") \
  FIELD(int64_t, eval_interval, 0, "", "steps between validations; 0: only at the end") \
  FIELD(int64_t, eval_batches, 20, "", "batches of one validation; 0: the whole set") \
  FIELD(int64_t, save_interval, 0, "", "steps between saves of the model; 0: only at the end") \
  FIELD(std::string, save_dtype, "auto", "auto|fp32|bf16|fp16", "weights of the saved model; auto: as init_from has them, else fp32") \
  FIELD(std::string, sample_prompt, "", "", "text to continue after training; empty: no sample") \
  FIELD(int64_t, sample_tokens, 200, "", "length of that sample") \
  FIELD(std::string, trace, "", "", "file for a Chrome/Perfetto timeline of the last steps") \
  FIELD(int64_t, trace_steps, 3, "", "steps in the timeline")
// clang-format on

struct TrainConfig {
#define MT_SECTION(text)
#define MT_FIELD(type, name, default_value, choices, help) type name = default_value;
  MEGATRAIN_TRAIN_OPTIONS(MT_SECTION, MT_FIELD)
#undef MT_SECTION
#undef MT_FIELD
};

struct FieldInfo {
  const char* section;
  const char* name;
  const char* choices;
  const char* help;
};

/// Calls f(FieldInfo, member) for every option in order.
template <class Config, class F>
void for_each_field(Config& config, F&& f) {
  const char* section = "";
#define MT_SECTION(text) section = text;
#define MT_FIELD(type, name, default_value, choices, help) \
  f(FieldInfo{section, #name, choices, help}, config.name);
  MEGATRAIN_TRAIN_OPTIONS(MT_SECTION, MT_FIELD)
#undef MT_SECTION
#undef MT_FIELD
}

/// Reads a flat YAML map. Unknown keys and wrong types are refused with the nearest valid name.
TrainConfig load_config(const std::string& path);
/// Other names under which people look for an option (model is init_from, gpu_memory is memory_limit); "" if
/// none.
std::string alias_of(const std::string& name);
/// Sets one option from text, by its name or its alias; `where` starts the error ("config.yaml", "--flag").
void set_field(TrainConfig& config, const std::string& name, const std::string& value,
               const std::string& where);
/// The sets that train_data or val_data name: "a.bin", or "a.bin=0.7, b.mtbin=0.3". Weights are given for
/// all or for none (0).
struct DataSet {
  std::string path;
  double weight = 0;
};
std::vector<DataSet> data_sets(const std::string& option, const std::string& value);
/// Range checks that need no file or memory.
void validate(const TrainConfig& config);
/// The model the config asks for, given the data's vocabulary (0: unknown).
ModelSpec model_spec(const TrainConfig& config, int64_t data_vocab_size);
/// All options, one line each, those that differ from the default marked.
std::string config_table(const TrainConfig& config);
/// The resolved options as YAML, fit for load_config.
std::string config_yaml(const TrainConfig& config);
/// The candidate closest to `name` by edit distance.
std::string nearest(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace megatrain
