#include "engine/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "device/cpu/cpu_stream.h"

namespace megatrain {

void Engine::Runner::operator()(const Task& t, Stream& s) {
  switch (t.kind) {
    case TaskKind::optimize:
      return optimize(t.unit, s);
    case TaskKind::load_weights:
      return load_weights(t.unit, s);
    case TaskKind::load_tokens:
      return load_tokens(t.micro, s);
    case TaskKind::load_gradient:
      return load_gradient(t.unit, s);
    case TaskKind::offload_gradient:
      return offload_gradient(t, s);
    case TaskKind::read_back:
      return read_back(t, s);
    default:
      return compute(t, s);
  }
}

void* Engine::Runner::memory(int buffer) const {
  return e_.memory_[static_cast<size_t>(buffer)];
}

MicroBatch Engine::Runner::micro_batch(int m) const {
  MicroBatch mb;
  mb.batch = e_.plan_.sequences_of(m), mb.seq_len = seq_len();
  mb.first_sequence = m * e_.plan_.micro_batch;
  auto* data = static_cast<int32_t*>(memory(e_.buffers_.tokens(m)));
  mb.tokens = Tensor(data, DType::i32, {mb.tokens_count()});
  mb.targets = Tensor(data + mb.tokens_count(), DType::i32, {mb.tokens_count()});
  if (e_.plan_.packed) {
    mb.positions = Tensor(data + 2 * mb.tokens_count(), DType::i32, {mb.tokens_count()});
    mb.spans = Tensor(data + 3 * mb.tokens_count(), DType::i32, {2, mb.tokens_count()});
    mb.groups = &e_.groups_[static_cast<size_t>(m)];
  }
  if (e_.decode_count_ == 0) return mb;
  mb.positions = mb.targets, mb.targets = {};
  mb.past = Tensor(data + 2 * mb.tokens_count(), DType::i32, {mb.batch});
  return mb;
}

KvCache Engine::Runner::cache(int layer) const {
  const AttentionShape a = e_.model_.spec().attention(e_.plan_.batch, seq_len(), layer);
  return {Tensor(memory(e_.buffers_.cache(layer)), e_.plan_.compute,
                 {e_.plan_.batch * e_.plan_.cache_rows(), 2 * a.kv_width()}),
          e_.plan_.cache_rows()};
}

OpContext Engine::Runner::context(Stream& s) const {
  OpContext c{e_.device_.ops(), s};
  c.compute = e_.plan_.compute;
  c.work = memory(e_.buffers_.work());
  if (settings_) {
    c.dropout = e_.model_.spec().dropout;
    c.dropout_seed = settings_->seed * 0x9E3779B97F4A7C15ull + static_cast<uint64_t>(e_.optimizer_steps_);
    c.loss_scale = 1.0f / static_cast<float>(std::max<int64_t>(e_.target_tokens_, 1));
  }
  return c;
}

UnitView Engine::Runner::weights(int u) const {
  return {&e_.model_.units()[static_cast<size_t>(u)], memory(e_.buffers_.weights(u)), e_.plan_.compute};
}

UnitView Engine::Runner::gradient(int u) const {
  const int layout = u < e_.model_.unit_count() ? u : 0;  // the tied embedding's part lies as unit 0 does
  return {&e_.model_.units()[static_cast<size_t>(layout)], memory(e_.buffers_.gradient(u)), DType::f32};
}

Tensor Engine::Runner::whole_gradient(int u) const {
  return {gradient(u).data, DType::f32, {gradient(u).layout->numel}};
}

Tensor Engine::Runner::activation(int layer, int m) const {
  return {memory(e_.buffers_.activation(layer, m)),
          e_.plan_.compute,
          {e_.plan_.sequences_of(m) * seq_len(), e_.model_.spec().hidden_size}};
}

Tensor Engine::Runner::scalar(int buffer) const {
  return {memory(buffer), DType::f64, {1}};
}

void Engine::Runner::optimize(int u, Stream& s) {
  const bool now = e_.plan_.update_in_backward && settings_;
  const AdamWConfig config = now ? settings_->optimizer : e_.pending_.optimizer;
  const double scale = now ? 1.0 : e_.pending_.scale;
  const int64_t step = e_.optimizer_steps_ + (now ? 1 : 0);
  const double* norm = static_cast<double*>(memory(e_.buffers_.host_results())) + host_slot(u, -1);
  const auto* grad = static_cast<const float*>(memory(e_.buffers_.host_gradient(u)));
  const UnitLayout* layout = &e_.model_.units()[static_cast<size_t>(u)];
  const UnitState* state = &e_.store_.unit(u);
  UpdateObserver* observer = e_.observer_;
  static_cast<CpuStream&>(s).enqueue([=](ThreadPool& pool) {
    if (observer) observer->before_update(u);
    if (now && !std::isfinite(*norm))
      fail(
          fmt::format("step {}: the gradient of {} is not finite; earlier units may already be updated, so "
                      "the run stops (set max_gradient_norm to skip such steps instead)",
                      step, layout->name));
    adamw_update_unit(pool, *layout, *state, grad, config, step, scale);
    if (observer) observer->after_update(u);
  });
}

void Engine::Runner::load_weights(int u, Stream& s) {
  if (e_.plan_.compute == DType::f32) return join_planes(u, s);
  e_.device_.copy(s, memory(e_.buffers_.weights(u)), e_.store_.unit(u).hi,
                  e_.model_.units()[static_cast<size_t>(u)].numel * 2);
}

// fp32 mode: both planes cross the link and are joined on the device, a staging buffer at a time.
void Engine::Runner::join_planes(int u, Stream& s) {
  const auto staging = static_cast<size_t>(e_.buffers_.staging());
  auto* planes = static_cast<uint16_t*>(memory(e_.buffers_.staging()));
  const int64_t piece = e_.buffers_.list()[staging].bytes / 4,
                n = e_.model_.units()[static_cast<size_t>(u)].numel;
  const UnitState& state = e_.store_.unit(u);
  auto* out = static_cast<float*>(memory(e_.buffers_.weights(u)));
  for (int64_t at = 0; at < n; at += piece) {
    const int64_t count = std::min(piece, n - at);
    e_.device_.copy(s, planes, state.hi + at, count * 2);
    e_.device_.copy(s, planes + piece, state.lo + at, count * 2);
    e_.device_.ops().join_planes(s, planes, planes + piece, Tensor(out + at, DType::f32, {count}));
  }
}

void Engine::Runner::load_tokens(int m, Stream& s) {
  const int64_t first = m * e_.plan_.micro_batch * e_.plan_.seq_len;
  e_.device_.copy(s, memory(e_.buffers_.tokens(m)), e_.host_tokens_ + e_.plan_.ints_per_token() * first,
                  e_.buffers_.list()[static_cast<size_t>(e_.buffers_.tokens(m))].bytes);
}

void Engine::Runner::compute(const Task& t, Stream& s) {
  const OpContext ctx = context(s);
  const Model& model = e_.model_;
  const int u = t.unit, layer = u - 1;
  switch (t.kind) {
    case TaskKind::embed_forward:
      return model.embedding().forward(ctx, weights(u), micro_batch(t.micro), activation(0, t.micro));
    case TaskKind::block_forward: {
      const bool decoding = e_.decode_count_ > 0;
      const KvCache kept = decoding ? cache(layer) : KvCache{};
      return model.block().forward(ctx, layer, weights(u), micro_batch(t.micro), activation(layer, t.micro),
                                   activation(layer + 1, t.micro), decoding ? &kept : nullptr);
    }
    case TaskKind::head_loss:
    case TaskKind::head_eval:
    case TaskKind::head_logits:
      return head(t, s);
    case TaskKind::zero_gradient:
      return ctx.ops.fill_bytes(s, gradient(u).data, 0, gradient(u).layout->numel * 4);
    case TaskKind::block_backward:
      return model.block().backward(ctx, layer, weights(u), micro_batch(t.micro), activation(layer, t.micro),
                                    top(t.micro), gradient(u));
    case TaskKind::embed_backward:
      return model.embedding().backward(ctx, micro_batch(t.micro), top(t.micro), gradient(u));
    case TaskKind::add_gradient: {
      const Tensor sum = whole_gradient(u);
      return ctx.ops.residual_add(s, sum, whole_gradient(e_.buffers_.embedding_gradient_unit()), sum, {});
    }
    case TaskKind::gradient_norm:
      return ctx.ops.sum(s, whole_gradient(u), scalar(e_.buffers_.norm(u)), true);
    default:
      throw std::logic_error("not a compute task");
  }
}

void Engine::Runner::head(const Task& t, Stream& s) {
  const OpContext ctx = context(s);
  const MicroBatch mb = micro_batch(t.micro);
  const HeadTemplate& head = e_.model_.head();
  if (t.kind == TaskKind::head_logits) {
    const Tensor logits(memory(e_.buffers_.logits()), DType::f32, {mb.batch, e_.model_.spec().vocab_size});
    return head.logits(ctx, weights(t.unit), mb, top(t.micro), e_.logits_position_, logits);
  }
  const bool backward = t.kind == TaskKind::head_loss;
  const UnitView grads = backward ? gradient(t.unit) : UnitView{};
  head.loss(ctx, weights(t.unit), mb, top(t.micro), scalar(e_.buffers_.loss(t.micro)),
            backward ? &grads : nullptr);
}

// host results: loss of each micro-batch, squared norm of each unit, then logits.
int64_t Engine::Runner::host_slot(int unit, int micro) const {
  return micro >= 0 ? micro : e_.plan_.micro_batches() + unit;
}

void Engine::Runner::offload_gradient(const Task& t, Stream& s) {
  const int u = t.unit;
  auto* results = static_cast<double*>(memory(e_.buffers_.host_results()));
  const bool finished = t.micro < 0;  // a sum between waves has no norm yet
  if (finished) e_.device_.copy(s, results + host_slot(u, -1), scalar(e_.buffers_.norm(u)).data, 8);
  e_.device_.copy(s, memory(e_.buffers_.host_gradient(u)), gradient(u).data,
                  e_.model_.units()[static_cast<size_t>(u)].numel * 4);
}

void Engine::Runner::load_gradient(int u, Stream& s) {
  e_.device_.copy(s, gradient(u).data, memory(e_.buffers_.host_gradient(u)),
                  e_.model_.units()[static_cast<size_t>(u)].numel * 4);
}

void Engine::Runner::read_back(const Task& t, Stream& s) {
  auto* results = static_cast<double*>(memory(e_.buffers_.host_results()));
  const int from = t.accesses.front().buffer;
  const bool logits = from == e_.buffers_.logits();
  const int64_t slot = logits ? e_.plan_.micro_batches() + e_.model_.unit_count() : host_slot(-1, t.micro);
  e_.device_.copy(s, results + slot, memory(from), e_.buffers_.list()[static_cast<size_t>(from)].bytes);
}

}  // namespace megatrain
