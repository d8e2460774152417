#pragma once
// defines: DropoutBlock — what the blocks of all families share: where their dropout masks are.

#include "model/ends.h"

namespace megatrain {

class DropoutBlock : public BlockTemplate {
 protected:
  explicit DropoutBlock(const ModelSpec& spec) : spec_(spec) {}
  Dropout drop(const OpContext& ctx, int64_t layer, DropoutPlace place, const MicroBatch& mb) const {
    return dropout_at(ctx, layer, place, mb.first_sequence * mb.seq_len * spec_.hidden_size);
  }
  Dropout drop_attention(const OpContext& ctx, int64_t layer, const MicroBatch& mb) const {
    return dropout_at(ctx, layer, kDropAttention,
                      mb.first_sequence * spec_.num_heads * mb.seq_len * mb.seq_len);
  }
  /// dy stays the gradient of the residual stream; d(branch) is dy behind the branch's dropout.
  static Tensor branch_gradient(const OpContext& ctx, Tensor dy, Tensor scratch, const Dropout& d) {
    if (d.probability <= 0) return dy;
    ctx.ops.dropout(ctx.stream, dy, scratch, d);
    return scratch;
  }

  const ModelSpec& spec_;
};

}  // namespace megatrain
