#include "model/model_spec.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace megatrain {

void validate(const ModelSpec& s) {
  const std::pair<const char*, int64_t> positive[] = {{"vocab_size", s.vocab_size},
                                                      {"hidden_size", s.hidden_size},
                                                      {"num_layers", s.num_layers},
                                                      {"num_heads", s.num_heads},
                                                      {"intermediate_size", s.intermediate_size},
                                                      {"max_position_embeddings", s.max_position_embeddings}};
  for (const auto& [name, value] : positive)
    if (value <= 0 || value > (int64_t{1} << 31))
      fail(fmt::format("{}: {} is not a usable size; give a positive number", name, value));
  if (s.hidden_size % s.num_heads != 0)
    fail(fmt::format("num_heads: {} heads do not divide hidden_size {}; choose a divisor", s.num_heads,
                     s.hidden_size));
  if (!(s.dropout >= 0 && s.dropout < 1)) fail(fmt::format("dropout: {} is outside [0, 1)", s.dropout));
  if (!(s.init_std > 0) || !(s.norm_eps > 0))
    fail("init_std and layer_norm_epsilon must be positive numbers");
}

void UnitLayout::add(const std::string& param, std::vector<int64_t> shape, Init init, double init_std,
                     int64_t padded_rows) {
  Parameter p;
  p.name = param, p.shape = std::move(shape), p.init = init, p.init_std = init_std;
  p.numel = 1;
  for (int64_t n : p.shape) p.numel *= n;
  p.offset = numel;
  p.decay = p.shape.size() >= 2;
  const int64_t room = std::max(p.numel, padded_rows * (p.numel / p.shape[0]));
  numel += (room + 63) / 64 * 64;
  parameters.push_back(std::move(p));
}

int64_t UnitLayout::parameter_count() const {
  int64_t n = 0;
  for (const auto& p : parameters) n += p.numel;
  return n;
}

Tensor UnitView::at(int index) const {
  if (index < 0) return {};
  const Parameter& p = layout->parameters[static_cast<size_t>(index)];
  auto* base = static_cast<char*>(data) + p.offset * size_of(dtype);
  return p.shape.size() == 1 ? Tensor(base, dtype, {p.shape[0]})
                             : Tensor(base, dtype, {p.shape[0], p.shape[1]});
}

}  // namespace megatrain
