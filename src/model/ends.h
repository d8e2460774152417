#pragma once
// defines: TokenEmbedding, LmHead, dropout_at — the two ends that all families share.

#include "model/layer_template.h"

namespace megatrain {

/// Random streams of the dropout masks: one per place, so that no two masks are alike.
enum DropoutPlace : uint64_t { kDropEmbedding = 0, kDropAttention, kDropProjection, kDropMlp, kPlaces };
Dropout dropout_at(const OpContext& ctx, int64_t layer, DropoutPlace place, int64_t first);

/// Rows of the vocabulary tables with their pad of zeros.
int64_t padded_vocabulary(const ModelSpec& spec);

/// Parameters of the ends inside their units; -1: absent. Without a position table there are rotary positions
/// and RMS norms.
struct EndIndex {
  int wte = 0, wpe = -1, ln_w = -1, ln_b = -1, head = 0;
  bool rms = false;
};

class TokenEmbedding : public EmbeddingTemplate {
 public:
  TokenEmbedding(const ModelSpec& spec, EndIndex index) : spec_(spec), p_(index) {}
  void forward(const OpContext&, const UnitView& weights, const MicroBatch&, Tensor x) const override;
  void backward(const OpContext&, const MicroBatch&, Tensor dx, const UnitView& grads) const override;

 private:
  Dropout mask(const OpContext& ctx, const MicroBatch& mb) const;
  const ModelSpec& spec_;
  EndIndex p_;
};

/// Final norm, then logits in chunks of tokens: they never exist whole.
class LmHead : public HeadTemplate {
 public:
  LmHead(const ModelSpec& spec, EndIndex index) : spec_(spec), p_(index) {}
  int64_t work_bytes(int64_t batch, int64_t seq_len, DType compute, bool backward) const override;
  void loss(const OpContext&, const UnitView& weights, const MicroBatch&, Tensor x, Tensor loss,
            const UnitView* grads) const override;
  void logits(const OpContext&, const UnitView& weights, const MicroBatch&, Tensor x, int64_t position,
              Tensor logits) const override;

 private:
  struct Saved;
  Saved carve(void* base, int64_t n, DType type, bool backward) const;
  Tensor padded(Tensor table) const;
  void norm(const OpContext&, const UnitView& weights, Tensor x, const Saved&) const;
  const ModelSpec& spec_;
  EndIndex p_;
};

}  // namespace megatrain
