#include <algorithm>

#include "core/error.h"
#include "model/decoder.h"
#include "model/gpt2.h"
#include "model/layer_template.h"

namespace megatrain {

int64_t Model::parameter_count() const {
  int64_t n = 0;
  for (const auto& u : units_) n += u.parameter_count();
  return n;
}

int64_t Model::max_block_numel() const {
  int64_t n = 0;
  for (int l = 0; l < block_count(); ++l) n = std::max(n, units_[static_cast<size_t>(block_unit(l))].numel);
  return n;
}

int64_t Model::max_end_numel() const {
  return std::max(units_.front().numel, units_[static_cast<size_t>(head_unit())].numel);
}

double Model::step_flops(int64_t batch, int64_t seq_len) const {
  const double head = 2.0 * static_cast<double>(batch * seq_len * spec_.vocab_size * spec_.hidden_size);
  return 3 * (static_cast<double>(block_count()) * block().forward_flops(batch, seq_len) + head);
}

std::unique_ptr<Model> make_model(const ModelSpec& spec) {
  validate(spec);
  if (spec.family == "gpt2") return make_gpt2(spec);
  for (const char* decoder : {"llama", "qwen2", "qwen3", "mistral"})
    if (spec.family == decoder) return make_decoder(spec);
  fail("model family '" + spec.family + "' is not known; known: gpt2, llama, qwen2, qwen3, mistral");
}

}  // namespace megatrain
