#pragma once
// defines: ModelSpec, Parameter, UnitLayout, UnitView — what a model is, and where its parameters lie.

#include <string>
#include <vector>

#include "core/tensor.h"
#include "ops/ops.h"

namespace megatrain {

/// Rotary positions and how they stretch beyond the length trained at (transformers' rope_parameters).
struct RopeSpec {
  std::string type = "default";  ///< default | linear | dynamic | yarn | llama3
  double theta = 10000, factor = 1;
  int64_t original_max_position_embeddings = 0;      ///< yarn, llama3
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3
  double beta_fast = 32, beta_slow = 1;              ///< yarn
  double attention_factor = 0;                       ///< yarn; 0: from factor and the two below
  double mscale = 0, mscale_all_dim = 0;             ///< yarn
  bool truncate = true;                              ///< yarn
};

/// The architecture, in the field's terms. Filled from a config file or from a config.json.
struct ModelSpec {
  std::string family = "gpt2";  ///< model_type of the Hugging Face config
  int64_t vocab_size = 0, hidden_size = 0, num_layers = 0, num_heads = 0;
  int64_t intermediate_size = 0;
  int64_t max_position_embeddings = 0;
  double norm_eps = 1e-5;
  Activation activation = Activation::gelu;
  bool bias = true;
  bool tied = true;  ///< the head multiplies by the token embedding
  double dropout = 0;
  double init_std = 0.02;

  // Families of the Llama kind (model/decoder.cpp).
  int64_t num_kv_heads = 0;  ///< 0: num_heads
  int64_t head_size = 0;     ///< 0: hidden_size / num_heads
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  bool qk_norm = false;          ///< RMS norm over each head's query and key (Qwen3)
  std::vector<int64_t> windows;  ///< attention window of each block, 0: none; empty: none anywhere
  RopeSpec rope;

  int64_t head_dim() const { return head_size > 0 ? head_size : hidden_size / num_heads; }
  int64_t kv_heads() const { return num_kv_heads > 0 ? num_kv_heads : num_heads; }
  int64_t window(int64_t layer) const { return windows.empty() ? 0 : windows[static_cast<size_t>(layer)]; }
  /// Attention of a micro-batch in block `layer`.
  AttentionShape attention(int64_t batch, int64_t seq_len, int64_t layer) const {
    return {batch, seq_len, num_heads, kv_heads(), head_dim(), window(layer)};
  }
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
  /// products have aligned sizes). Returns the parameter's index.
  int add(const std::string& name, std::vector<int64_t> shape, Init init, double init_std = 0,
          int64_t padded_rows = 0);
  /// Lies directly behind the parameter before, so that both can be multiplied as one (UnitView::joined).
  int adjoin(const std::string& name, std::vector<int64_t> shape, Init init, double init_std = 0);
  int64_t parameter_count() const;  ///< without padding
};

/// A unit's block at some address (weights or gradients), addressed by parameter index.
struct UnitView {
  const UnitLayout* layout = nullptr;
  void* data = nullptr;
  DType dtype = DType::f32;
  /// Parameter `index`, as its own shape ([n] or [rows, columns]).
  Tensor at(int index) const;
  /// Parameter `index` and those adjoined to it, seen as one of `rows` rows (or elements).
  Tensor joined(int index, int64_t rows) const;
};

}  // namespace megatrain
