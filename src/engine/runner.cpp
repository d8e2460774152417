#include "engine/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "device/cpu/cpu_stream.h"

namespace megatrain {

void Engine::Runner::operator()(const Task& t, Stream& s) {
  switch (t.kind) {
    case TaskKind::optimize:
      return optimize(t, s);
    case TaskKind::load_tokens:
      return load_tokens(t.micro, s);
    case TaskKind::read_norm:
    case TaskKind::read_back:
      return read_result(t, s);
    default:
      return t.lane == Lane::compute ? compute(t, s) : move(t, s);
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

void Engine::Runner::optimize(const Task& t, Stream& s) {
  const bool now = updates_now();
  const AdamWConfig& config = now ? settings_->optimizer : e_.pending_.optimizer;
  const double scale = now ? 1.0 : e_.pending_.scale;
  const int64_t step = e_.optimizer_steps_ + (now ? 1 : 0);
  if (t.lane == Lane::compute) return optimize_on_device(t.unit, config, step, scale, s);
  optimize_on_host(t.unit, config, step, scale, s);
}

// A unit's planes in two blocks of memory, laid out as the store lays them out.
UnitState Engine::Runner::planes(int u, int weights_buffer, int states_buffer) const {
  UnitState s;
  const auto at = [&](Plane p) -> void* {
    for (const auto& [buffer, group] :
         {std::pair{weights_buffer, Group::weights}, {states_buffer, Group::states}}) {
      const int64_t offset = e_.store_.layout(u, group).offset[static_cast<int>(p)];
      if (offset >= 0) return static_cast<char*>(memory(buffer)) + offset;
    }
    return nullptr;
  };
  s.hi = static_cast<uint16_t*>(at(Plane::hi)), s.lo = static_cast<uint16_t*>(at(Plane::lo));
  s.m = static_cast<float*>(at(Plane::m)), s.v = static_cast<float*>(at(Plane::v));
  return s;
}

void Engine::Runner::optimize_on_host(int u, const AdamWConfig& config, int64_t step, double scale,
                                      Stream& s) {
  const UnitState state = planes(u, e_.buffers_.host_weights(u), e_.buffers_.host_states(u));
  const auto* grad = static_cast<const float*>(memory(e_.buffers_.host_gradient(u)));
  const double* norm =
      updates_now() ? static_cast<double*>(memory(e_.buffers_.host_results())) + host_slot(u, -1) : nullptr;
  const UnitLayout* layout = &e_.model_.units()[static_cast<size_t>(u)];
  UpdateObserver* observer = e_.store_.in_host(u) ? e_.observer_ : nullptr;
  static_cast<CpuStream&>(s).enqueue([=](ThreadPool& pool) {
    if (observer) observer->before_update(u);
    if (norm && !std::isfinite(*norm)) fail_not_finite(step, *layout);
    adamw_update_unit(pool, *layout, state, grad, config, step, scale);
    if (observer) observer->after_update(u);
  });
}

void Engine::Runner::optimize_on_device(int u, const AdamWConfig& config, int64_t step, double scale,
                                        Stream& s) {
  const UnitState state = planes(u, e_.buffers_.home_weights(u), e_.buffers_.home_states(u));
  const auto* grad = static_cast<const float*>(memory(e_.buffers_.gradient(u)));
  for (const Parameter& p : e_.model_.units()[static_cast<size_t>(u)].parameters) {
    AdamWArgs a;
    a.hi = state.hi + p.offset, a.lo = state.lo + p.offset, a.m = state.m + p.offset,
    a.v = state.v + p.offset;
    a.gradient = grad + p.offset, a.count = p.numel, a.step = adamw_step(config, step, scale, p.decay);
    a.squared_norm = updates_now() ? static_cast<double*>(memory(e_.buffers_.norm(u))) : nullptr;
    e_.device_.ops().adamw(s, a);
  }
}

// From the place of the first access to that of the second.
void Engine::Runner::move(const Task& t, Stream& s) {
  const int from = t.accesses[0].buffer, to = t.accesses[1].buffer;
  if (t.lane == Lane::disk_read || t.lane == Lane::disk_write) return move_disk(t, s);
  if (t.kind == TaskKind::load_weights && e_.plan_.compute == DType::f32 && to == e_.buffers_.weights(t.unit))
    return join_planes(t.unit, from, s);
  const int64_t numel = e_.model_.units()[static_cast<size_t>(t.unit)].numel;
  int64_t bytes = 0;
  if (t.accesses[0].before.kind == Holds::activation) bytes = activation(t.unit - 1, t.micro).bytes();
  if (t.accesses[0].before.kind == Holds::weights) bytes = e_.store_.layout(t.unit, Group::weights).bytes;
  if (t.accesses[0].before.kind == Holds::gradient) bytes = numel * 4;
  if (to == e_.buffers_.weights(t.unit)) bytes = std::min(bytes, numel * size_of(e_.plan_.compute));
  e_.device_.copy(s, memory(to), memory(from), bytes);
}

// Plane by plane: so the pieces that checksums are kept of are those that a checkpoint reads.
void Engine::Runner::move_disk(const Task& t, Stream& s) {
  const Holds what = t.accesses[0].before.kind;
  const Group group = what == Holds::weights  ? Group::weights
                      : what == Holds::states ? Group::states
                                              : Group::gradient;
  const bool reads = t.lane == Lane::disk_read;
  auto* data = static_cast<char*>(memory(t.accesses[reads ? 1 : 0].buffer));
  const int64_t offset = e_.store_.file_offset(t.unit, group),
                n = e_.model_.units()[static_cast<size_t>(t.unit)].numel;
  StateFile* file = e_.store_.file();
  const auto enqueue = [&](int64_t at, int64_t bytes) {
    static_cast<CpuStream&>(s).enqueue([=](ThreadPool&) {
      if (reads)
        file->read_block(offset + at, data + at, bytes);
      else
        file->write_block(offset + at, data + at, bytes);
    });
  };
  if (group == Group::gradient) return enqueue(0, n * 4);
  const GroupLayout layout = e_.store_.layout(t.unit, group);
  for (int p = 0; p < kPlanes; ++p)
    if (layout.offset[p] >= 0) enqueue(layout.offset[p], n * bytes_of(static_cast<Plane>(p)));
}

// fp32 mode: both planes cross the link and are joined on the device, a staging buffer at a time; those that
// are on the device already are joined where they are.
void Engine::Runner::join_planes(int u, int from, Stream& s) {
  const int64_t n = e_.model_.units()[static_cast<size_t>(u)].numel;
  const GroupLayout layout = e_.store_.layout(u, Group::weights);
  auto* block = static_cast<char*>(memory(from));
  auto* hi = reinterpret_cast<uint16_t*>(block + layout.offset[static_cast<int>(Plane::hi)]);
  auto* lo = reinterpret_cast<uint16_t*>(block + layout.offset[static_cast<int>(Plane::lo)]);
  auto* out = static_cast<float*>(memory(e_.buffers_.weights(u)));
  if (e_.buffers_.list()[static_cast<size_t>(from)].place == Place::device)
    return e_.device_.ops().join_planes(s, hi, lo, Tensor(out, DType::f32, {n}));
  const auto staging = static_cast<size_t>(e_.buffers_.staging());
  auto* planes = static_cast<uint16_t*>(memory(e_.buffers_.staging()));
  const int64_t piece = e_.buffers_.list()[staging].bytes / 4;
  for (int64_t at = 0; at < n; at += piece) {
    const int64_t count = std::min(piece, n - at);
    e_.device_.copy(s, planes, hi + at, count * 2);
    e_.device_.copy(s, planes + piece, lo + at, count * 2);
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
  const int u = t.unit;
  switch (t.kind) {
    case TaskKind::embed_forward:
      return model.embedding().forward(ctx, weights(u), micro_batch(t.micro), activation(0, t.micro));
    case TaskKind::block_forward:
    case TaskKind::block_backward:
      return block(t, s);
    case TaskKind::head_loss:
    case TaskKind::head_eval:
    case TaskKind::head_logits:
      return head(t, s);
    case TaskKind::zero_gradient:
      return ctx.ops.fill_bytes(s, gradient(u).data, 0, gradient(u).layout->numel * 4);
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

void Engine::Runner::block(const Task& t, Stream& s) {
  const OpContext ctx = context(s);
  const BlockTemplate& block = e_.model_.block();
  const int u = t.unit, layer = u - 1, buffer = e_.buffers_.saved(layer, t.micro);
  const bool saves =
      std::any_of(t.accesses.begin(), t.accesses.end(), [&](auto& a) { return a.buffer == buffer; });
  const SavedActivations saved =
      saves ? SavedActivations{e_.plan_.level(layer), memory(buffer)} : SavedActivations{};
  const Tensor x = activation(layer, t.micro);
  if (t.kind == TaskKind::block_backward)
    return block.backward(ctx, layer, weights(u), micro_batch(t.micro), x, top(t.micro), gradient(u), saved);
  const bool decoding = e_.decode_count_ > 0;
  const KvCache kept = decoding ? cache(layer) : KvCache{};
  block.forward(ctx, layer, weights(u), micro_batch(t.micro), x, activation(layer + 1, t.micro), saved,
                decoding ? &kept : nullptr);
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

// A norm, the losses or logits.
void Engine::Runner::read_result(const Task& t, Stream& s) {
  auto* results = static_cast<double*>(memory(e_.buffers_.host_results()));
  const int from = t.accesses.front().buffer;
  const bool logits = from == e_.buffers_.logits();
  const int64_t slot =
      logits ? e_.plan_.micro_batches() + e_.model_.unit_count() : host_slot(t.unit, t.micro);
  e_.device_.copy(s, results + slot, memory(from), e_.buffers_.list()[static_cast<size_t>(from)].bytes);
}

}  // namespace megatrain
