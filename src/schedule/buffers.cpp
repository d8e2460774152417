#include <algorithm>

#include "device/arena.h"
#include "schedule/builder.h"

namespace megatrain {
namespace {
constexpr int64_t kStagingElements = int64_t{1} << 20;  // fp32 mode: planes are joined piece by piece
}

StepBuffers::StepBuffers(const Model& model, const StepPlan& plan)
    : layers_(model.block_count()), wave_size_(plan.wave_size()), training_(plan.training) {
  add_weights(model, plan);
  if (plan.training) add_gradients(model, plan);
  add_activations(model, plan);
}

int StepBuffers::add(const std::string& name, const std::string& group, Place place, int64_t bytes) {
  Buffer b;
  b.name = name, b.group = group, b.place = place, b.bytes = bytes;
  list_.push_back(std::move(b));
  return static_cast<int>(list_.size()) - 1;
}

void StepBuffers::add_weights(const Model& model, const StepPlan& plan) {
  const int64_t size = size_of(plan.compute);
  const int units = model.unit_count(), first_resident = layers_ - plan.resident_blocks;
  resident_.assign(static_cast<size_t>(units), false);
  weights_.assign(static_cast<size_t>(units), -1);
  const bool ends_own = model.spec().tied || plan.resident_ends;
  auto own = [&](int u) {
    resident_[static_cast<size_t>(u)] = true;
    const auto& layout = model.units()[static_cast<size_t>(u)];
    weights_[static_cast<size_t>(u)] =
        add("weights of " + layout.name, "weights, resident", Place::device, layout.numel * size);
    list_.back().persistent = true;
  };
  if (ends_own) {
    own(0);
    if (!model.spec().tied) own(model.head_unit());
  } else {
    weights_[0] = weights_[static_cast<size_t>(model.head_unit())] = add(
        "weights of embedding, then head", "weights, streamed", Place::device, model.max_end_numel() * size);
  }
  int ring[2] = {-1, -1};
  for (int slot = 0; slot < std::min(2, first_resident); ++slot)
    ring[slot] = add("block weights, buffer " + std::to_string(slot), "weights, streamed", Place::device,
                     model.max_block_numel() * size);
  for (int l = 0; l < layers_; ++l) {
    if (l >= first_resident)
      own(model.block_unit(l));
    else
      weights_[static_cast<size_t>(model.block_unit(l))] = ring[l % 2];
  }
  if (plan.compute == DType::f32)
    staging_ = add("plane staging", "working set", Place::device,
                   std::min(kStagingElements, std::max(model.max_block_numel(), model.max_end_numel())) * 4);
  for (int u = 0; u < units; ++u) {
    const auto& layout = model.units()[static_cast<size_t>(u)];
    host_weights_.push_back(add("host weights of " + layout.name, "store", Place::host, 0));
    list_.back().persistent = true;
  }
}

void StepBuffers::add_gradients(const Model& model, const StepPlan& plan) {
  const int head = model.head_unit();
  gradient_.assign(static_cast<size_t>(model.unit_count()), -1);
  gradient_[0] = gradient_[static_cast<size_t>(head)] =
      add("gradient of embedding and head", "gradients", Place::device, model.max_end_numel() * 4);
  if (model.spec().tied) {
    embedding_gradient_unit_ = model.unit_count();
    gradient_.push_back(
        add("gradient of embedding, apart", "gradients", Place::device, model.units()[0].numel * 4));
  }
  // A gradient used up at once needs a slab only; one that waits for the norm or a wave, a place of its own.
  const bool slabs = plan.update_in_backward && plan.waves() == 1;
  int ring[2] = {-1, -1}, host_ring[2] = {-1, -1};
  for (int slot = 0; slot < std::min(2, layers_); ++slot) {
    ring[slot] = add("block gradient, buffer " + std::to_string(slot), "gradients", Place::device,
                     model.max_block_numel() * 4);
    if (slabs)
      host_ring[slot] = add("host block gradient, slab " + std::to_string(slot), "host gradients",
                            Place::host, model.max_block_numel() * 4);
  }
  for (int u = 0; u < model.unit_count(); ++u) {
    const auto& layout = model.units()[static_cast<size_t>(u)];
    const bool block = u > 0 && u <= layers_;
    if (block) gradient_[static_cast<size_t>(u)] = ring[(u - 1) % 2];
    host_gradient_.push_back(block && slabs ? host_ring[(u - 1) % 2]
                                            : add("host gradient of " + layout.name, "host gradients",
                                                  Place::host, layout.numel * 4));
    list_.back().persistent = true;
  }
  norm_ = static_cast<int>(list_.size());
  for (int u = 0; u < model.unit_count(); ++u)
    add("norm of unit " + std::to_string(u), "results", Place::device, 8);
}

void StepBuffers::add_activations(const Model& model, const StepPlan& plan) {
  const ModelSpec& spec = model.spec();
  const int64_t size = size_of(plan.compute), micros = plan.micro_batches();
  auto tokens_of = [&](int64_t m) { return plan.sequences_of(m) * plan.seq_len; };
  tokens_ = static_cast<int>(list_.size());
  for (int64_t m = 0; m < micros; ++m)
    add("tokens of micro-batch " + std::to_string(m), "tokens", Place::device,
        tokens_of(m) * 4 * plan.ints_per_token() + (plan.cache_capacity > 0 ? plan.batch * 4 : 0));
  loss_ = static_cast<int>(list_.size());
  for (int64_t m = 0; m < micros; ++m)
    add("loss of micro-batch " + std::to_string(m), "results", Place::device, 8);
  // Forward only needs two activations in turn; training keeps every block's input (checkpoints).
  const int kept = plan.training ? layers_ + 1 : 2;
  for (int l = 0; l < kept; ++l)
    for (int64_t m = 0; m < wave_size_; ++m)
      activation_.push_back(add("input of block " + std::to_string(l) + ", place " + std::to_string(m),
                                "block inputs (checkpoints)", Place::device,
                                tokens_of(m) * spec.hidden_size * size));
  const int64_t b = plan.micro_batch, t = plan.seq_len;
  work_ = add("work", "working set", Place::device,
              std::max(model.block().work_bytes(b, t, plan.compute, plan.training),
                       model.head().work_bytes(b, t, plan.compute, plan.training)));
  if (plan.workspace)
    workspace_ = add("library workspace", "library workspace", Place::device,
                     plan.workspace({spec.attention(b, t, 0), plan.compute, plan.training ? spec.dropout : 0,
                                     plan.packed}));
  if (plan.cache_capacity > 0) {
    cache_ = static_cast<int>(list_.size());
    const AttentionShape a = spec.attention(b, t, 0);
    for (int l = 0; l < layers_; ++l)
      add("keys and values of block " + std::to_string(l), "key-value cache", Place::device,
          plan.batch * plan.cache_rows() * 2 * a.kv_width() * size);
  }
  if (!plan.training)
    logits_ = add("logits", "results", Place::device, plan.micro_batch * spec.vocab_size * 4);
  host_results_ =
      add("host results", "host results", Place::host,
          8 * (micros + model.unit_count()) + (plan.training ? 0 : plan.micro_batch * spec.vocab_size * 4));
  list_.back().persistent = true;
}

int StepBuffers::activation(int layer, int64_t micro) const {
  const int64_t row = training_ ? layer : layer % 2;
  return activation_[static_cast<size_t>(row * wave_size_ + micro % wave_size_)];
}

bool StepBuffers::keeps_gradient(int unit) const {
  return std::count(gradient_.begin(), gradient_.end(), gradient(unit)) == 1;
}

int64_t StepBuffers::device_bytes() const {
  int64_t n = 0;
  for (const auto& b : list_)
    if (b.place == Place::device) n += Arena::padded(b.bytes);
  return n;
}

int64_t StepBuffers::host_bytes() const {
  int64_t n = 0;
  for (const auto& b : list_)
    if (b.place == Place::host) n += Arena::padded(b.bytes);
  return n;
}

}  // namespace megatrain
