#pragma once
// defines: RopeTable, make_rope_table — frequencies of rotary positions, stretched as the spec says.

#include <vector>

#include "model/model_spec.h"

namespace megatrain {

struct RopeTable {
  std::vector<float> inv_freq;  ///< [head_dim / 2]
  float factor = 1;             ///< multiplies cos and sin
};

/// Follows transformers' modeling_rope_utils.py. `seq_len` matters to the dynamic type only. Throws Error for
/// an unknown type.
RopeTable make_rope_table(const ModelSpec& spec, int64_t seq_len);

}  // namespace megatrain
