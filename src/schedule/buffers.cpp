#include <algorithm>

#include "device/arena.h"
#include "schedule/builder.h"

namespace megatrain {
namespace {

constexpr int64_t kStagingElements = int64_t{1} << 20;  // fp32 mode: planes are joined piece by piece
constexpr int kDeviceSlots = 2;                         // one in use, one on its way
constexpr int kHostSlots = 3;                           // one coming, one in use, one leaving
constexpr int kInputRows = 2;  // block inputs on the device where they rest elsewhere

}  // namespace

StoreOptions StepPlan::store_options() const {
  StoreOptions o;
  o.moments = training, o.low_half = training || compute == DType::f32;
  o.compute = compute, o.homes = homes, o.gradients = training && gradients_rest();
  return o;
}

StepBuffers::StepBuffers(const Model& model, const StepPlan& plan, bool named)
    : model_(model),
      plan_(plan),
      named_(named),
      layers_(model.block_count()),
      offloaded_(plan.training ? plan.offloaded_inputs : 0),
      wave_size_(plan.wave_size()),
      training_(plan.training) {
  add_homes();
  add_weights();
  if (plan.training) add_gradients();
  add_host_slabs();
  add_activations();
  add_results();
}

template <class Name>
int StepBuffers::add(Name&& name, const char* group, Place place, int64_t bytes) {
  Buffer b;
  if (named_) b.name = name();
  b.group = group, b.place = place, b.bytes = bytes;
  list_.push_back(std::move(b));
  return static_cast<int>(list_.size()) - 1;
}

// Sizes only: all micro-batches' buffers as one. Those of all but the last are alike.
template <class Bytes>
void StepBuffers::add_sum(int64_t count, const char* group, Place place, Bytes&& bytes_of) {
  add([] { return ""; }, group, place,
      (count - 1) * Arena::padded(bytes_of(0)) + Arena::padded(bytes_of(count - 1)));
}

// At most `slots` buffers, as large as the largest of `units`, which take them in turn.
template <class Bytes>
void StepBuffers::ring(const std::vector<int>& units, int slots, const char* what, const char* group,
                       Place place, std::vector<int>& out, Bytes&& bytes_of) {
  int64_t bytes = 0;
  for (int u : units) bytes = std::max(bytes, bytes_of(u));
  const int count = std::min(slots, static_cast<int>(units.size())), first = static_cast<int>(list_.size());
  for (int slot = 0; slot < count; ++slot)
    add([&] { return std::string(what) + ", buffer " + std::to_string(slot); }, group, place, bytes);
  for (size_t i = 0; i < units.size(); ++i)
    out[static_cast<size_t>(units[i])] = first + static_cast<int>(i) % count;
}

// Blocks and ends have rings of their own: an embedding is many times a block.
template <class Wanted, class Bytes>
void StepBuffers::rings(int slots, const char* what, const char* group, Place place, std::vector<int>& out,
                        Wanted&& wanted, Bytes&& bytes_of) {
  std::vector<int> blocks, ends;
  for (int u = 0; u < model_.unit_count(); ++u)
    if (wanted(u)) (u > 0 && u <= layers_ ? blocks : ends).push_back(u);
  ring(ends, 1, named_ ? (std::string("embedding and head: ") + what).c_str() : what, group, place, out,
       bytes_of);
  ring(blocks, slots, what, group, place, out, bytes_of);
}

void StepBuffers::add_homes() {
  const StoreOptions store = plan_.store_options();
  const auto home = [&](int u, Group g, Place place, const char* what, const char* group) {
    const UnitLayout& unit = model_.units()[static_cast<size_t>(u)];
    const int64_t bytes = group_layout(unit, g, store).bytes;
    const int b = add([&] { return std::string(name_of(place)) + " " + what + " of " + unit.name; }, group,
                      place, bytes);
    list_.back().persistent = list_.back().in_store = true;
    return b;
  };
  for (int u = 0; u < model_.unit_count(); ++u) {
    const UnitHomes h = home_of(plan_.homes, u);
    if (h.states == Place::device && h.weights != Place::device)
      throw std::logic_error("states on the device need weights there");
    home_weights_.push_back(home(u, Group::weights, h.weights, "weights", "weights"));
    home_states_.push_back(home(u, Group::states, h.states, "states", "states: lo, Adam's m and v"));
  }
}

void StepBuffers::add_weights() {
  const int64_t size = size_of(plan_.compute);
  const int units = model_.unit_count(), first_resident = layers_ - plan_.resident_blocks;
  const bool ends_own = model_.spec().tied || plan_.resident_ends;
  resident_.assign(static_cast<size_t>(units), false);
  weights_.assign(static_cast<size_t>(units), -1);
  for (int u = 0; u < units; ++u) {
    const bool end = u == 0 || u > layers_, home = home_of(plan_.homes, u).weights == Place::device;
    const bool at_home = home && plan_.compute == DType::bf16;
    resident_[static_cast<size_t>(u)] = at_home || (end ? ends_own : u - 1 >= first_resident);
    if (at_home) weights_[static_cast<size_t>(u)] = home_weights(u);
    if (at_home || !resident(u)) continue;
    const UnitLayout& unit = model_.units()[static_cast<size_t>(u)];
    weights_[static_cast<size_t>(u)] = add([&] { return "weights of " + unit.name; },
                                           "weights, resident copies", Place::device, unit.numel * size);
    list_.back().persistent = true;
  }
  rings(
      kDeviceSlots, "block weights", "weights, streamed", Place::device, weights_,
      [&](int u) { return !resident(u); },
      [&](int u) { return model_.units()[static_cast<size_t>(u)].numel * size; });
  if (plan_.compute == DType::f32)
    staging_ =
        add([] { return "plane staging"; }, "working set", Place::device,
            std::min(kStagingElements, std::max(model_.max_block_numel(), model_.max_end_numel())) * 4);
}

void StepBuffers::add_gradients() {
  const bool rest = plan_.gradients_rest();
  const auto numel = [&](int u) { return model_.units()[static_cast<size_t>(u)].numel; };
  const auto units = static_cast<size_t>(model_.unit_count());
  gradient_.assign(units, -1), home_gradient_.assign(units, -1), keeps_gradient_.assign(units, false);
  for (int u = 0; rest && u < model_.unit_count(); ++u) {
    const Place place = home_of(plan_.homes, u).gradient;
    const int b = add(
        [&] {
          return std::string(name_of(place)) + " gradient of " + model_.units()[static_cast<size_t>(u)].name;
        },
        place == Place::device ? "gradients" : "gradients, resting", place,
        place == Place::disk ? StateFile::padded(numel(u) * 4) : numel(u) * 4);
    list_.back().persistent = true, list_.back().in_store = place == Place::disk;
    home_gradient_[static_cast<size_t>(u)] = b;
    if (place == Place::device)
      gradient_[static_cast<size_t>(u)] = b, keeps_gradient_[static_cast<size_t>(u)] = true;
  }
  rings(
      kDeviceSlots, "block gradient", "gradients", Place::device, gradient_,
      [&](int u) { return gradient(u) < 0; }, [&](int u) { return numel(u) * 4; });
  if (model_.spec().tied) {  // one end: nobody else uses its buffer
    keeps_gradient_[0] = true;
    embedding_gradient_unit_ = model_.unit_count();
    gradient_.push_back(
        add([] { return "gradient of embedding, apart"; }, "gradients", Place::device, numel(0) * 4));
    keeps_gradient_.push_back(true);
  }
  norm_ = static_cast<int>(list_.size());
  for (int u = 0; u < model_.unit_count(); ++u)
    add([&] { return "norm of unit " + std::to_string(u); }, "results", Place::device, 8);
}

// Slots in host memory for what passes through it: on its way from or to the disk, or to be updated there.
void StepBuffers::add_host_slabs() {
  const auto units = static_cast<size_t>(model_.unit_count());
  host_weights_.assign(units, -1), host_states_.assign(units, -1), host_gradient_.assign(units, -1);
  const auto homes = [&](int u) { return home_of(plan_.homes, u); };
  const auto updated_here = [&](int u) { return training_ && homes(u).states != Place::device; };
  const auto bytes_of = [&](int home) { return list_[static_cast<size_t>(home)].bytes; };
  for (int u = 0; u < model_.unit_count(); ++u) {
    if (homes(u).weights == Place::host) host_weights_[static_cast<size_t>(u)] = home_weights(u);
    if (homes(u).states == Place::host) host_states_[static_cast<size_t>(u)] = home_states(u);
    if (training_ && plan_.gradients_rest() && homes(u).gradient == Place::host)
      host_gradient_[static_cast<size_t>(u)] = home_gradient(u);
  }
  rings(
      kHostSlots, "weights in passing", "slabs", Place::host, host_weights_,
      [&](int u) { return host_weights(u) < 0 && (homes(u).weights == Place::disk || updated_here(u)); },
      [&](int u) { return bytes_of(home_weights(u)); });
  rings(
      kHostSlots, "states in passing", "slabs", Place::host, host_states_,
      [&](int u) { return updated_here(u) && homes(u).states == Place::disk; },
      [&](int u) { return bytes_of(home_states(u)); });
  rings(
      kDeviceSlots, "gradient in passing", "slabs", Place::host, host_gradient_,
      [&](int u) {
        const bool passes =
            home_gradient_.empty() || home_gradient(u) < 0 || homes(u).gradient == Place::device
                ? updated_here(u)
                : true;
        return training_ && host_gradient(u) < 0 && passes;
      },
      [&](int u) { return StateFile::padded(model_.units()[static_cast<size_t>(u)].numel * 4); });
  for (Buffer& b : list_)
    if (b.place == Place::host) b.persistent = true;
}

void StepBuffers::add_activations() {
  const int64_t row = model_.spec().hidden_size * size_of(plan_.compute);
  auto tokens_of = [&](int64_t m) { return plan_.sequences_of(m) * plan_.seq_len; };
  tokens_ = static_cast<int>(list_.size());
  const auto token_bytes = [&](int64_t m) {
    return tokens_of(m) * 4 * plan_.ints_per_token() + (plan_.cache_capacity > 0 ? plan_.batch * 4 : 0);
  };
  if (!named_) add_sum(plan_.micro_batches(), "tokens", Place::device, token_bytes);
  for (int64_t m = 0; named_ && m < plan_.micro_batches(); ++m)
    add([&] { return "tokens of micro-batch " + std::to_string(m); }, "tokens", Place::device,
        token_bytes(m));
  const auto add_row = [&](const char* what, int l, const char* group, Place place, std::vector<int>& out) {
    if (!named_) return add_sum(wave_size_, group, place, [&](int64_t m) { return tokens_of(m) * row; });
    for (int64_t m = 0; m < wave_size_; ++m)
      out.push_back(add([&] { return what + std::to_string(l) + ", place " + std::to_string(m); }, group,
                        place, tokens_of(m) * row));
  };
  // Forward only needs two activations in turn; training keeps every block's input (checkpoints), or rows in
  // turn where they rest in host memory.
  const int turning = training_ ? std::min(offloaded_, kInputRows) : 2,
            kept = training_ ? layers_ + 1 - offloaded_ : 0;
  for (int l = 0; l < turning; ++l)
    add_row("block inputs, row ", l, "block inputs", Place::device, activation_);
  for (int l = 0; l < kept; ++l)
    add_row("input of block ", offloaded_ + l, "block inputs", Place::device, activation_);
  for (int l = 0; l < offloaded_; ++l)
    add_row("resting input of block ", l, "block inputs, resting", Place::host, host_activation_);
  for (int l = 0; training_ && l < layers_; ++l) {
    const int level = plan_.level(l);
    saved_row_.push_back(level > 0 ? static_cast<int>(saved_.size()) : -1);
    const auto saved_bytes = [&](int64_t m) {
      return model_.block().saved_bytes(level, plan_.sequences_of(m), plan_.seq_len, plan_.compute);
    };
    if (!named_ && level > 0) add_sum(wave_size_, "saved activations", Place::device, saved_bytes);
    for (int64_t m = 0; named_ && level > 0 && m < wave_size_; ++m)
      saved_.push_back(
          add([&] { return "saved by block " + std::to_string(l) + ", place " + std::to_string(m); },
              "saved activations", Place::device, saved_bytes(m)));
  }
}

void StepBuffers::add_results() {
  const ModelSpec& spec = model_.spec();
  const int64_t micros = plan_.micro_batches(), b = plan_.micro_batch, t = plan_.seq_len;
  loss_ = static_cast<int>(list_.size());
  if (!named_) add_sum(micros, "results", Place::device, [](int64_t) { return int64_t{8}; });
  for (int64_t m = 0; named_ && m < micros; ++m)
    add([&] { return "loss of micro-batch " + std::to_string(m); }, "results", Place::device, 8);
  int64_t work = model_.head().work_bytes(b, t, plan_.compute, training_);
  std::vector<bool> seen(static_cast<size_t>(model_.block().levels()), false);
  for (int l = 0; l < layers_; ++l) {
    if (seen[static_cast<size_t>(plan_.level(l))]) continue;
    seen[static_cast<size_t>(plan_.level(l))] = true;
    work = std::max(work, model_.block().work_bytes(b, t, plan_.compute, training_, plan_.level(l)));
  }
  if (training_)  // evaluation between steps saves nothing
    work = std::max(work, model_.block().work_bytes(b, t, plan_.compute, false, 0));
  work_ = add([] { return "work"; }, "working set", Place::device, work);
  if (plan_.workspace)
    workspace_ = add([] { return "library workspace"; }, "library workspace", Place::device,
                     plan_.workspace({spec.attention(b, t, 0), plan_.compute, training_ ? spec.dropout : 0,
                                      plan_.packed}));
  if (plan_.cache_capacity > 0) {
    cache_ = static_cast<int>(list_.size());
    const AttentionShape a = spec.attention(b, t, 0);
    for (int l = 0; l < layers_; ++l)
      add([&] { return "keys and values of block " + std::to_string(l); }, "key-value cache", Place::device,
          plan_.batch * plan_.cache_rows() * 2 * a.kv_width() * size_of(plan_.compute));
  }
  if (!training_)
    logits_ = add([] { return "logits"; }, "results", Place::device, plan_.micro_batch * spec.vocab_size * 4);
  host_results_ =
      add([] { return "host results"; }, "host results", Place::host,
          8 * (micros + model_.unit_count()) + (training_ ? 0 : plan_.micro_batch * spec.vocab_size * 4));
  list_.back().persistent = true;
}

int StepBuffers::activation(int layer, int64_t micro) const {
  int row = layer % 2;
  if (training_) {
    const int turning = std::min(offloaded_, kInputRows);
    row = layer < offloaded_ ? layer % kInputRows : turning + layer - offloaded_;
  }
  return activation_[static_cast<size_t>(row * wave_size_ + micro % wave_size_)];
}

int StepBuffers::host_activation(int layer, int64_t micro) const {
  if (layer >= offloaded_) return -1;
  return host_activation_[static_cast<size_t>(layer * wave_size_ + micro % wave_size_)];
}

int StepBuffers::saved(int layer, int64_t micro) const {
  if (!training_ || saved_row_[static_cast<size_t>(layer)] < 0) return -1;
  return saved_[static_cast<size_t>(saved_row_[static_cast<size_t>(layer)] + micro % wave_size_)];
}

int64_t StepBuffers::bytes(Place place) const {
  int64_t n = 0;
  for (const auto& b : list_)
    if (b.place == place && !b.in_store) n += Arena::padded(b.bytes);
  return n;
}

}  // namespace megatrain
