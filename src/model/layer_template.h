#pragma once
// defines: EmbeddingTemplate, BlockTemplate, HeadTemplate, Model — stateless layer maths. Weights are an
// argument: one template serves every layer of its kind, whatever was streamed in (MegaTrain, §3).

#include <memory>

#include "model/model_spec.h"

namespace megatrain {

/// One micro-batch on the device. Sequences are numbered within the optimizer step, so that dropout
/// masks do not depend on how the step was cut into micro-batches.
struct MicroBatch {
  int64_t batch = 0, seq_len = 0;
  int64_t first_sequence = 0;
  Tensor tokens;     ///< int32 [B·T]
  Tensor targets;    ///< int32 [B·T], negative = ignored
  Tensor positions;  ///< int32 [B·T], empty: the place in the sequence
  Tensor spans;      ///< packing: the documents' places and lengths, see PackedDocuments
  const std::vector<DocumentGroup>* groups = nullptr;
  Tensor past;  ///< generation: int32 [B], tokens that the cache already holds
  int64_t tokens_count() const { return batch * seq_len; }
  PackedDocuments documents() const { return {positions, spans, groups}; }
};

/// Keys and values that one block has seen: [B, capacity, 2·K·D].
struct KvCache {
  Tensor data;
  int64_t capacity = 0;
};

/// Everything a template needs besides weights and activations.
struct OpContext {
  Ops& ops;
  Stream& stream;
  DType compute = DType::f32;
  void* work = nullptr;       ///< scratch, at least work_bytes()
  uint64_t dropout_seed = 0;  ///< differs every step
  double dropout = 0;         ///< 0 in evaluation
  float loss_scale = 1;       ///< 1 / target tokens of the whole step
};

/// Bump allocator over scratch. With a null base it only measures, so that the size and the carving are
/// one piece of code.
class Workspace {
 public:
  explicit Workspace(void* base) : base_(static_cast<char*>(base)) {}
  Tensor take(DType dtype, std::initializer_list<int64_t> shape) {
    Tensor t(base_ ? base_ + used_ : nullptr, dtype, shape);
    used_ += (t.bytes() + 255) / 256 * 256;
    return t;
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

class EmbeddingTemplate {
 public:
  virtual ~EmbeddingTemplate() = default;
  /// x [N, C] is written.
  virtual void forward(const OpContext&, const UnitView& weights, const MicroBatch&, Tensor x) const = 0;
  /// Adds into `grads`.
  virtual void backward(const OpContext&, const MicroBatch&, Tensor dx, const UnitView& grads) const = 0;
};

/// What one micro-batch's forward keeps for its backward beside the block's input.
struct SavedActivations {
  int level = 0;
  void* data = nullptr;  ///< at least saved_bytes() of the level
};

class BlockTemplate {
 public:
  virtual ~BlockTemplate() = default;
  /// Levels of saving, 0 (the block's input only) to levels() - 1 (everything): each keeps what the one below
  /// keeps and more, so that the backward recomputes less. The same bits at every level.
  virtual int levels() const = 0;
  /// Bytes that a micro-batch saves at a level, beside the block's input.
  virtual int64_t saved_bytes(int level, int64_t batch, int64_t seq_len, DType compute) const = 0;
  virtual int64_t work_bytes(int64_t batch, int64_t seq_len, DType compute, bool backward,
                             int level) const = 0;
  /// y [N, C] is written from x [N, C]; `layer` numbers the block (dropout, windows). With a cache, keys and
  /// values are kept in it and the tokens attend to all that it holds (generation).
  virtual void forward(const OpContext&, int64_t layer, const UnitView& weights, const MicroBatch&, Tensor x,
                       Tensor y, const SavedActivations& saved, const KvCache* cache = nullptr) const = 0;
  /// Recomputes from x what was not saved; `dy` [N, C] becomes dx in place; adds into `grads`. What was saved
  /// is scratch afterwards.
  virtual void backward(const OpContext&, int64_t layer, const UnitView& weights, const MicroBatch&, Tensor x,
                        Tensor dy, const UnitView& grads, const SavedActivations& saved) const = 0;
  /// Multiply-adds times two of one forward, attention included.
  virtual double forward_flops(int64_t batch, int64_t seq_len) const = 0;
};

class HeadTemplate {
 public:
  virtual ~HeadTemplate() = default;
  virtual int64_t work_bytes(int64_t batch, int64_t seq_len, DType compute, bool backward) const = 0;
  /// Final norm, logits in token chunks, loss. `loss` (one fp64) gets the sum over target tokens. With
  /// `grads`, x becomes d(loss_scale · loss)/dx in place and gradients are added.
  virtual void loss(const OpContext&, const UnitView& weights, const MicroBatch&, Tensor x, Tensor loss,
                    const UnitView* grads) const = 0;
  /// logits [B, V] fp32 of position `position` of each sequence.
  virtual void logits(const OpContext&, const UnitView& weights, const MicroBatch&, Tensor x,
                      int64_t position, Tensor logits) const = 0;
};

/// A model family bound to a spec: the units that stream, in forward order, and one template per kind.
/// Unit 0 is the embedding; then one unit per block; then the head, unless it is tied (then its
/// parameters, the final norm's included, lie in unit 0, and head_unit() is 0).
class Model {
 public:
  virtual ~Model() = default;
  const ModelSpec& spec() const { return spec_; }
  const std::vector<UnitLayout>& units() const { return units_; }
  int unit_count() const { return static_cast<int>(units_.size()); }
  int block_count() const { return static_cast<int>(spec_.num_layers); }
  int block_unit(int layer) const { return 1 + layer; }
  int head_unit() const { return spec_.tied ? 0 : 1 + block_count(); }
  int64_t parameter_count() const;
  /// Largest block of any kind, in elements.
  int64_t max_block_numel() const;
  int64_t max_end_numel() const;  ///< embedding or head
  /// Floating-point operations per step, forward + backward, without recompute (6N + attention).
  double step_flops(int64_t batch, int64_t seq_len) const;

  const EmbeddingTemplate& embedding() const { return *embedding_; }
  const BlockTemplate& block() const { return *block_; }
  const HeadTemplate& head() const { return *head_; }

 protected:
  explicit Model(ModelSpec spec) : spec_(std::move(spec)) {}
  ModelSpec spec_;
  std::vector<UnitLayout> units_;
  std::unique_ptr<EmbeddingTemplate> embedding_;
  std::unique_ptr<BlockTemplate> block_;
  std::unique_ptr<HeadTemplate> head_;
};

/// Makes the model of spec.family. Throws Error for an unknown family or an impossible spec.
std::unique_ptr<Model> make_model(const ModelSpec& spec);

}  // namespace megatrain
