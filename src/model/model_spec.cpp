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
  if (s.head_size == 0 && s.hidden_size % s.num_heads != 0)
    fail(fmt::format("num_heads: {} heads do not divide hidden_size {}; choose a divisor", s.num_heads,
                     s.hidden_size));
  if (s.num_kv_heads < 0 || s.num_heads % s.kv_heads() != 0)
    fail(fmt::format("num_kv_heads: {} key-value heads do not divide {} heads; choose a divisor",
                     s.num_kv_heads, s.num_heads));
  if (s.head_size < 0 || s.head_size > 512)
    fail(fmt::format("head_dim: {} is outside 1 to 512", s.head_size));
  if (!s.windows.empty() && static_cast<int64_t>(s.windows.size()) != s.num_layers)
    fail(fmt::format("layer_types: {} entries for {} layers", s.windows.size(), s.num_layers));
  if (!(s.rope.theta > 0) || !(s.rope.factor > 0))
    fail("rope_theta and the rope factor must be positive numbers");
  if (!(s.dropout >= 0 && s.dropout < 1)) fail(fmt::format("dropout: {} is outside [0, 1)", s.dropout));
  if (!(s.init_std > 0) || !(s.norm_eps > 0))
    fail("init_std and layer_norm_epsilon must be positive numbers");
}

namespace {
int place(UnitLayout& u, const std::string& name, std::vector<int64_t> shape, Init init, double init_std,
          int64_t padded_rows, int64_t offset) {
  Parameter p;
  p.name = name, p.shape = std::move(shape), p.init = init, p.init_std = init_std;
  p.numel = 1;
  for (int64_t n : p.shape) p.numel *= n;
  p.offset = offset;
  p.decay = p.shape.size() >= 2;
  const int64_t room = std::max(p.numel, padded_rows * (p.numel / p.shape[0]));
  u.numel = (offset + room + 63) / 64 * 64;
  u.parameters.push_back(std::move(p));
  return static_cast<int>(u.parameters.size()) - 1;
}
}  // namespace

int UnitLayout::add(const std::string& param, std::vector<int64_t> shape, Init init, double init_std,
                    int64_t padded_rows) {
  return place(*this, param, std::move(shape), init, init_std, padded_rows, numel);
}

int UnitLayout::adjoin(const std::string& param, std::vector<int64_t> shape, Init init, double init_std) {
  const Parameter& before = parameters.back();
  return place(*this, param, std::move(shape), init, init_std, 0, before.offset + before.numel);
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

Tensor UnitView::joined(int index, int64_t rows) const {
  Tensor t = at(index);
  if (t) t.shape[0] = rows;
  return t;
}

}  // namespace megatrain
