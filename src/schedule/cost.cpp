#include "schedule/cost.h"

#include <algorithm>

namespace megatrain {
namespace {

class NoStream : public Stream {
  void record(Event&) override {}
  void wait(Event&) override {}
  void synchronize() override {}
  void stamp(int) override {}
  double stamp_seconds(int) const override { return 0; }
  void reserve_stamps(int) override {}
};

/// Adds up what each op would take. Bytes are those that have to move: inputs read once, outputs written
/// once.
class CostOps : public Ops {
 public:
  explicit CostOps(const MachineProfile& m) : m_(m) {}
  TaskCost total;

  void gemm(Stream&, const GemmArgs& g) override {
    const auto m = static_cast<double>(g.c.shape[0]), n = static_cast<double>(g.c.shape[1]),
               k = static_cast<double>(g.trans_a ? g.a.shape[0] : g.a.shape[1]);
    add(m_.gemm_seconds(m, n, k, g.accumulate));
  }
  void column_sum(Stream&, Tensor x, Tensor) override { moves("column_sum", bytes(x)); }
  void layer_norm(Stream&, const LayerNormArgs& a) override { moves("layer_norm", 2 * bytes(a.x)); }
  void layer_norm_backward(Stream&, const LayerNormBackwardArgs& a) override {
    moves("layer_norm_backward", (a.accumulate ? 4 : 3) * bytes(a.x));
  }
  void attention(Stream&, const AttentionArgs& a) override { attend(a.shape, a.dropout, 1, false); }
  void attention_backward(Stream&, const AttentionBackwardArgs& a) override {
    attend(a.shape, a.dropout, 2.5, true);
  }
  void attention_cached(Stream&, const CachedAttentionArgs& a) override { moves("other", bytes(a.cache)); }
  void rope(Stream&, const RopeArgs& a) override { moves("rope", 2 * turned(a.shape, a.in)); }
  void rope_backward(Stream&, const RopeBackwardArgs& a) override {
    moves(a.q_norm ? "rope_backward_norms" : "rope", (a.q_norm ? 3 : 2) * turned(a.shape, a.grad));
  }
  void activation(Stream&, Activation, Tensor x, Tensor) override { moves("activation", 2 * bytes(x)); }
  void activation_backward(Stream&, Activation, Tensor x, Tensor) override {
    moves("activation_backward", 3 * bytes(x));
  }
  void swiglu(Stream&, Tensor, Tensor y) override { moves("swiglu", 3 * bytes(y)); }
  void swiglu_backward(Stream&, Tensor, Tensor dy) override { moves("swiglu_backward", 5 * bytes(dy)); }
  void residual_add(Stream&, Tensor x, Tensor, Tensor, const Dropout&) override {
    moves("residual_add", 3 * bytes(x));
  }
  void dropout(Stream&, Tensor in, Tensor, const Dropout&) override { moves("residual_add", 2 * bytes(in)); }
  void embedding(Stream&, const EmbeddingArgs& a) override { moves("embedding", 2 * bytes(a.out)); }
  void embedding_backward(Stream&, const EmbeddingBackwardArgs& a) override {
    moves("embedding_backward", 2 * bytes(a.dout));
  }
  void cross_entropy(Stream&, const CrossEntropyArgs& a) override {
    moves("cross_entropy", (a.backward ? 2 : 1) * bytes(a.logits));
  }
  void sum(Stream&, Tensor x, Tensor, bool) override { moves("sum", bytes(x)); }
  void fill_bytes(Stream&, void*, int, int64_t n) override { moves("fill", static_cast<double>(n)); }
  void join_planes(Stream&, const uint16_t*, const uint16_t*, Tensor w) override {
    moves("other", 2 * bytes(w));
  }
  void adamw(Stream&, const AdamWArgs& a) override {
    add(28 * static_cast<double>(a.count) / std::max(m_.device_adam, 1.0));
  }

 private:
  static double bytes(const Tensor& t) { return static_cast<double>(t.bytes()); }
  static double turned(const AttentionShape& s, const Tensor& t) {
    return bytes(t) * static_cast<double>(s.q_width() + s.kv_width()) / static_cast<double>(s.qkv_width());
  }
  void moves(const char* op, double n) { add(m_.bytes_seconds(op, n)); }
  void attend(const AttentionShape& s, const Dropout&, double factor, bool backward) {
    const auto t = static_cast<double>(s.seq_len);
    const double keys = s.window > 0 ? std::min(t / 2, static_cast<double>(s.window)) : t / 2;
    const double flops = factor * 4 * static_cast<double>(s.batch * s.q_width()) * t * keys;
    add(m_.attention_seconds(flops, t, static_cast<double>(s.head_dim), backward));
  }
  void add(double seconds) { total.seconds += seconds, total.ops += 1; }
  const MachineProfile& m_;
};

// Never read: the templates only do arithmetic on addresses.
char* nowhere() {
  static char byte;
  return &byte;
}

struct Dry {
  Dry(const Model& m, const MachineProfile& machine, const StepPlan& p, int64_t sequences)
      : model(m), ops(machine) {
    ctx.compute = p.compute, ctx.work = nowhere(), ctx.dropout = p.training ? m.spec().dropout : 0;
    micro.batch = sequences, micro.seq_len = p.seq_len;
    const int64_t n = micro.tokens_count();
    micro.tokens = micro.targets = Tensor(nowhere(), DType::i32, {n});
    x = Tensor(nowhere(), p.compute, {n, m.spec().hidden_size});
  }
  UnitView view(int unit, DType type) const {
    return {&model.units()[static_cast<size_t>(unit)], nowhere(), type};
  }
  const Model& model;
  CostOps ops;
  NoStream stream;
  OpContext ctx{ops, stream};
  MicroBatch micro;
  Tensor x;
};

enum : int {
  kBlockForward,
  kBlockBackward,
  kHeadLoss,
  kHeadEval,
  kHeadLogits,
  kEmbedForward,
  kEmbedBackward
};

}  // namespace

TaskCost CostModel::cached(const Key& key, const StepPlan& plan, int64_t sequences, int level) {
  const auto it = cache_.find(key);
  if (it != cache_.end()) return it->second;
  Dry d(model_, machine_, plan, sequences);
  const DType type = plan.compute;
  const int head = model_.head_unit(), kind = std::get<0>(key);
  const UnitView head_grads = d.view(head, DType::f32);
  const SavedActivations saved{level, nowhere()};
  const Tensor loss(nowhere(), DType::f64, {1});
  switch (kind) {
    case kBlockForward:
      model_.block().forward(d.ctx, 0, d.view(1, type), d.micro, d.x, d.x, saved);
      break;
    case kBlockBackward:
      model_.block().backward(d.ctx, 0, d.view(1, type), d.micro, d.x, d.x, d.view(1, DType::f32), saved);
      break;
    case kHeadLoss:
    case kHeadEval:
      model_.head().loss(d.ctx, d.view(head, type), d.micro, d.x, loss,
                         kind == kHeadLoss ? &head_grads : nullptr);
      break;
    case kHeadLogits:
      model_.head().logits(d.ctx, d.view(head, type), d.micro, d.x, 0,
                           Tensor(nowhere(), DType::f32, {sequences, model_.spec().vocab_size}));
      break;
    case kEmbedForward:
      model_.embedding().forward(d.ctx, d.view(0, type), d.micro, d.x);
      break;
    default:
      model_.embedding().backward(d.ctx, d.micro, d.x, d.view(0, DType::f32));
  }
  cache_.emplace(key, d.ops.total);
  return d.ops.total;
}

TaskCost CostModel::block(const StepPlan& plan, int64_t sequences, int level, bool backward) {
  return cached({backward ? kBlockBackward : kBlockForward, sequences, plan.seq_len, backward ? level : 0,
                 plan.compute},
                plan, sequences, level);
}

TaskCost CostModel::head(const StepPlan& plan, int64_t sequences, TaskKind kind) {
  const int k = kind == TaskKind::head_loss   ? kHeadLoss
                : kind == TaskKind::head_eval ? kHeadEval
                                              : kHeadLogits;
  return cached({k, sequences, plan.seq_len, 0, plan.compute}, plan, sequences, 0);
}

TaskCost CostModel::embedding(const StepPlan& plan, int64_t sequences, bool backward) {
  return cached({backward ? kEmbedBackward : kEmbedForward, sequences, plan.seq_len, 0, plan.compute}, plan,
                sequences, 0);
}

TaskCost CostModel::compute(const StepPlan& plan, const Task& t) {
  const auto numel = static_cast<double>(
      model_.units()[static_cast<size_t>(std::min(t.unit, model_.unit_count() - 1))].numel);
  const int64_t sequences = t.micro >= 0 ? plan.sequences_of(t.micro) : 0;
  switch (t.kind) {
    case TaskKind::block_forward:
    case TaskKind::block_backward:
      return block(plan, sequences, plan.level(t.unit - 1), t.kind == TaskKind::block_backward);
    case TaskKind::head_loss:
    case TaskKind::head_eval:
    case TaskKind::head_logits:
      return head(plan, sequences, t.kind);
    case TaskKind::embed_forward:
    case TaskKind::embed_backward:
      return embedding(plan, sequences, t.kind == TaskKind::embed_backward);
    case TaskKind::zero_gradient:
      return {machine_.bytes_seconds("fill", 4 * numel), 0, 1};
    case TaskKind::gradient_norm:
      return {machine_.bytes_seconds("sum", 4 * numel), 0, 1};
    case TaskKind::add_gradient:
      return {machine_.bytes_seconds("residual_add", 12 * numel), 0, 1};
    case TaskKind::optimize:
      return {28 * numel / std::max(machine_.device_adam, 1.0), 0,
              static_cast<double>(model_.units()[static_cast<size_t>(t.unit)].parameters.size())};
    default:
      return {};
  }
}

TaskCost CostModel::cost(const StepPlan& plan, const Task& t, double pieces) {
  if (t.lane == Lane::compute) {
    TaskCost c = compute(plan, t);
    if (t.micro >= 0) c.seconds *= pieces, c.ops *= pieces;
    return c;
  }
  const auto numel = t.unit >= 0 ? static_cast<double>(model_.units()[static_cast<size_t>(t.unit)].numel) : 0;
  const double streams = plan.compute == DType::f32 ? 4 : 2;
  TaskCost c{0, 0, 1};
  switch (t.accesses.empty() ? Holds::nothing : t.accesses[0].before.kind) {
    case Holds::weights:
      c.bytes = streams * numel;
      break;
    case Holds::states:
      c.bytes = (12 - streams) * numel;
      break;
    case Holds::gradient:
      c.bytes = 4 * numel;
      break;
    case Holds::activation:
      c.bytes = pieces * static_cast<double>(plan.sequences_of(t.micro) * plan.seq_len *
                                             model_.spec().hidden_size * size_of(plan.compute));
      break;
    default:
      c.bytes = t.kind == TaskKind::load_tokens
                    ? pieces * static_cast<double>(plan.sequences_of(t.micro) * plan.seq_len * 4 *
                                                   plan.ints_per_token())
                    : 8;
  }
  if (t.kind == TaskKind::optimize) c.bytes = 28 * numel;
  return c;
}

}  // namespace megatrain
