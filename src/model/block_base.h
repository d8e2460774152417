#pragma once
// defines: DropoutBlock — what the blocks of all families share: where their dropout masks are.

#include "model/ends.h"

namespace megatrain {

/// Hands out a block's activations: those that a level saves from the saved memory, others from scratch.
class LeveledWorkspace {
 public:
  LeveledWorkspace(void* work, const SavedActivations& saved)
      : work_(work), saved_(saved.data), level_(saved.level) {}
  /// `level`: the lowest that saves this tensor.
  Tensor take(int level, DType dtype, std::initializer_list<int64_t> shape) {
    return (level <= level_ ? saved_ : work_).take(dtype, shape);
  }
  /// Never saved.
  Tensor scratch(DType dtype, std::initializer_list<int64_t> shape) { return work_.take(dtype, shape); }
  bool saves(int level) const { return level <= level_; }
  int64_t work_used() const { return work_.used(); }
  int64_t saved_used() const { return saved_.used(); }

 private:
  Workspace work_, saved_;
  int level_;
};

/// What each level adds; the order is that of recompute saved per byte (docs/design.md).
enum SaveLevel : int { kSaveInput = 0, kSaveAttention, kSaveProjections, kSaveMlp, kSaveAll, kSaveLevels };

class DropoutBlock : public BlockTemplate {
 public:
  int levels() const override { return kSaveLevels; }

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
