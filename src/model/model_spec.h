#pragma once
// defines: ModelSpec, Parameter, UnitLayout, UnitView — what a model is, and where its parameters lie.

#include <string>
#include <vector>

#include "core/tensor.h"
#include "ops/ops.h"

namespace megatrain {

/// The architecture, in the field's terms. Filled from a config file or from a config.json.
struct ModelSpec {
  std::string family = "gpt2";
  int64_t vocab_size = 0, hidden_size = 0, num_layers = 0, num_heads = 0;
  int64_t intermediate_size = 0;
  int64_t max_position_embeddings = 0;
  double norm_eps = 1e-5;
  Activation activation = Activation::gelu;
  bool bias = true;
  bool tied = true;  ///< the head multiplies by the token embedding
  double dropout = 0;
  double init_std = 0.02;

  int64_t head_dim() const { return hidden_size / num_heads; }
};

/// Refuses impossible shapes (heads not dividing width, zero sizes) with one line.
void validate(const ModelSpec& spec);

enum class Init { normal, ones, zeros };

struct Parameter {
  std::string name;  ///< as in the family's Hugging Face checkpoint
  std::vector<int64_t> shape;
  int64_t offset = 0;  ///< in elements, inside the unit's block
  int64_t numel = 0;
  bool decay = false;  ///< weight decay: dimension >= 2
  Init init = Init::zeros;
  double init_std = 0;
};

/// One unit's contiguous block: what streams in one copy. Offsets are multiples of 64 elements.
struct UnitLayout {
  std::string name;
  std::vector<Parameter> parameters;
  int64_t numel = 0;  ///< with padding: the size of the block

  /// `padded_rows`: rows to make room for; those beyond the shape stay zero (vocabulary tables, so that
  /// products have aligned sizes).
  void add(const std::string& name, std::vector<int64_t> shape, Init init, double init_std = 0,
           int64_t padded_rows = 0);
  int64_t parameter_count() const;  ///< without padding
};

/// A unit's block at some address (weights or gradients), addressed by parameter index.
struct UnitView {
  const UnitLayout* layout = nullptr;
  void* data = nullptr;
  DType dtype = DType::f32;
  /// Parameter `index`, as its own shape ([n] or [rows, columns]).
  Tensor at(int index) const;
};

}  // namespace megatrain
