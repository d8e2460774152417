#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "engine/documents.h"
#include "engine/runner.h"

namespace megatrain {
namespace {
enum Kind { kTrain, kUpdate, kEvaluate, kLogits };
}

void fail_not_finite(int64_t step, const UnitLayout& unit) {
  fail(fmt::format(
      "step {}: the gradient of {} is not finite; earlier units may already be updated, so the run "
      "stops (set max_gradient_norm to skip such steps instead)",
      step, unit.name));
}

Engine::Engine(Device& device, const Model& model, StateStore& store, const StepPlan& plan,
               const Options& options)
    : device_(device),
      model_(model),
      store_(store),
      plan_(plan),
      options_(options),
      buffers_(model, plan),
      arena_(device, "device memory", buffers_.bytes(Place::device),
             "use a smaller micro_batch, batch_size or sequence_length, or raise memory_limit"),
      executor_(device, options.host_threads) {
  if (options.world != 1) throw std::logic_error("several ranks are not implemented yet");
  const StoreOptions wanted = plan.store_options();
  if (wanted.homes != store.options().homes ||
      (!wanted.homes.empty() && (wanted.compute != store.options().compute ||
                                 (plan.training && wanted.gradients != store.options().gradients))))
    throw std::logic_error("the store was made for other homes than the plan's");
  place_buffers();
  for (int u = 0; u < model.unit_count(); ++u) loaded_.push_back(buffers_.at_home(u));
}

Engine::~Engine() {
  if (store_.file()) store_.file()->register_memory({});
  for (auto& [data, bytes] : pinned_) device_.release_pinned(data, bytes);
}

// A weights buffer of the device is listed behind its homes, so that memory_ has those by then.
void Engine::place_buffer(const Buffer& b, size_t index) {
  if (b.in_store) return;  // its memory is the store's
  if (b.place == Place::device) {
    memory_[index] = arena_.take(b.name, b.bytes);
  } else if (b.bytes > 0) {
    pinned_.emplace_back(device_.allocate_pinned(b.bytes), b.bytes);
    memory_[index] = pinned_.back().first;
  }
}

void Engine::place_buffers() {
  const auto& list = buffers_.list();
  memory_.assign(list.size(), nullptr);
  for (size_t i = 0; i < list.size(); ++i) place_buffer(list[i], i);
  for (int u = 0; u < model_.unit_count(); ++u) {
    memory_[static_cast<size_t>(buffers_.home_weights(u))] = store_.block(u, Group::weights);
    memory_[static_cast<size_t>(buffers_.home_states(u))] = store_.block(u, Group::states);
  }
  arena_.seal();
  if (const int w = buffers_.workspace(); w >= 0)
    device_.ops().set_workspace(memory_[static_cast<size_t>(w)], list[static_cast<size_t>(w)].bytes);
  const int64_t tokens = plan_.batch * plan_.seq_len * 4 * plan_.ints_per_token() + plan_.batch * 4;
  pinned_.emplace_back(device_.allocate_pinned(tokens), tokens);
  host_tokens_ = static_cast<int32_t*>(pinned_.back().first);
  if (!store_.file()) return;
  std::vector<std::pair<void*, int64_t>> slabs;
  for (size_t i = 0; i < list.size(); ++i)
    if (list[i].group == std::string("slabs")) slabs.emplace_back(memory_[i], list[i].bytes);
  store_.file()->register_memory(slabs);
}

Schedule Engine::build(int kind, bool pending) const {
  const StartState start{pending, loaded_};
  switch (kind) {
    case kTrain:
      return build_train_step(model_, plan_, buffers_, start);
    case kUpdate:
      return build_update(model_, plan_, buffers_);
    case kEvaluate:
      return build_forward(model_, plan_, buffers_, start, ForwardGoal::loss);
    default:
      return build_forward(model_, plan_, buffers_, start, ForwardGoal::logits);
  }
}

// A schedule depends on its kind, on a pending update and on which resident buffers are up to date.
const Schedule& Engine::cached(int kind, bool pending) {
  std::vector<int> key = {kind, pending};
  for (bool l : loaded_) key.push_back(l);
  auto it = schedules_.find(key);
  if (it == schedules_.end()) {
    Schedule s = build(kind, pending);
    if (options_.check_schedule) {
      const auto hazards = check(s);
      if (!hazards.empty())
        throw std::logic_error(
            fmt::format("{}: {} hazards, the first: {}", s.name, hazards.size(), hazards[0]));
    }
    it = schedules_.emplace(std::move(key), std::move(s)).first;
  }
  return it->second;
}

// Units whose state is not all in host memory: their updates end elsewhere than on the host lane.
template <class F>
void Engine::for_updated_elsewhere(const Schedule& s, F&& f) const {
  if (!observer_) return;
  for (const Task& t : s.tasks)
    if (t.kind == TaskKind::optimize && !store_.in_host(t.unit)) f(t.unit);
}

void Engine::run(const Schedule& s, const StepSettings* settings) {
  last_ = &s;
  for_updated_elsewhere(s, [&](int u) { observer_->before_update(u); });
  executor_.run(s, memory_, Runner(*this, settings), options_.exec, &timeline_);
  for_updated_elsewhere(s, [&](int u) { observer_->after_update(u); });
  const bool update_only = s.name == "update";
  for (int u = 0; u < model_.unit_count(); ++u) {
    const bool current = !update_only && !(settings && plan_.update_in_backward);
    loaded_[static_cast<size_t>(u)] = buffers_.resident(u) && (current || buffers_.at_home(u));
  }
}

int64_t Engine::set_batch(const int32_t* tokens, const int32_t* targets, const int32_t* positions) {
  int64_t count = 0;
  groups_.resize(static_cast<size_t>(plan_.micro_batches()));
  for (int64_t m = 0, at = 0; m < plan_.micro_batches(); ++m) {
    const int64_t n = plan_.sequences_of(m) * plan_.seq_len;
    int32_t* out = host_tokens_ + plan_.ints_per_token() * at;
    std::memcpy(out, tokens + at, static_cast<size_t>(n) * 4);
    std::memcpy(out + n, targets + at, static_cast<size_t>(n) * 4);
    if (plan_.packed) {
      for (int64_t i = 0; i < n; ++i)
        out[2 * n + i] = positions ? positions[at + i] : static_cast<int32_t>(i % plan_.seq_len);
      groups_[static_cast<size_t>(m)] = find_documents(out + 2 * n, n, plan_.seq_len, out + 3 * n);
    }
    for (int64_t i = at; i < at + n; ++i) count += targets[i] >= 0;
    at += n;
  }
  return count;
}

double Engine::loss_sum() const {
  const auto* r = static_cast<const double*>(memory_[static_cast<size_t>(buffers_.host_results())]);
  return std::accumulate(r, r + plan_.micro_batches(), 0.0);
}

double Engine::squared_norm() const {
  const auto* r = static_cast<const double*>(memory_[static_cast<size_t>(buffers_.host_results())]) +
                  plan_.micro_batches();
  return std::accumulate(r, r + model_.unit_count(), 0.0);
}

StepResult Engine::train_step(const int32_t* tokens, const int32_t* targets, const StepSettings& settings,
                              const int32_t* positions) {
  StepResult result;
  result.target_tokens = target_tokens_ = set_batch(tokens, targets, positions);
  if (target_tokens_ == 0) fail("this step has no target token: every label is masked; check the data");
  run(cached(kTrain, pending_.active), &settings);
  result.loss = loss_sum() / static_cast<double>(target_tokens_);
  result.gradient_norm = std::sqrt(squared_norm());
  pending_.active = false;
  if (plan_.update_in_backward) {
    check_applied();
    ++optimizer_steps_;
    return result;
  }
  // A step that is not finite changes nothing: its gradients are simply never applied.
  result.applied = std::isfinite(result.loss) && std::isfinite(result.gradient_norm);
  if (!result.applied) {
    const auto* norms = static_cast<const double*>(memory_[static_cast<size_t>(buffers_.host_results())]) +
                        plan_.micro_batches();
    for (int u = 0; u < model_.unit_count(); ++u)
      if (!std::isfinite(norms[u])) result.bad_unit = u;
    return result;
  }
  const double limit = settings.max_gradient_norm;
  pending_ = {true, settings.optimizer,
              limit > 0 && result.gradient_norm > limit ? limit / (result.gradient_norm + 1e-6) : 1.0};
  ++optimizer_steps_;
  return result;
}

// Without clipping, units are updated as their gradients come. On the device one that is not finite is left
// as it was, like this.
void Engine::check_applied() const {
  const auto* norms = losses() + plan_.micro_batches();
  for (int u = 0; u < model_.unit_count(); ++u)
    if (!std::isfinite(norms[u]))
      fail_not_finite(optimizer_steps_ + 1, model_.units()[static_cast<size_t>(u)]);
}

double Engine::run_schedule(const Schedule& schedule, const ExecOptions& exec, const int32_t* tokens,
                            const int32_t* targets, const StepSettings& settings) {
  target_tokens_ = set_batch(tokens, targets, nullptr);
  executor_.run(schedule, memory_, Runner(*this, &settings), exec, &timeline_);
  return loss_sum();
}

void Engine::resume(int64_t optimizer_steps) {
  optimizer_steps_ = optimizer_steps;
  pending_ = {};
  for (int u = 0; u < model_.unit_count(); ++u) loaded_[static_cast<size_t>(u)] = buffers_.at_home(u);
}

void Engine::finish_update() {
  if (!pending_.active) return;
  run(cached(kUpdate, true), nullptr);
  pending_.active = false;
}

double Engine::evaluate(const int32_t* tokens, const int32_t* targets, const int32_t* positions) {
  finish_update();
  set_batch(tokens, targets, positions);
  run(cached(kEvaluate, false), nullptr);
  return loss_sum();
}

const float* Engine::logits(const int32_t* tokens, int64_t position, const int32_t* positions) {
  logits_position_ = position;
  const std::vector<int32_t> no_targets(static_cast<size_t>(plan_.batch * plan_.seq_len), -1);
  set_batch(tokens, no_targets.data(), positions);
  return run_logits();
}

const float* Engine::decode(const int32_t* tokens, int64_t count, const int32_t* past) {
  const int64_t b = plan_.batch, n = b * count;
  if (plan_.cache_capacity == 0 || count < 1 || count > plan_.seq_len)
    throw std::logic_error("decode: no cache, or more tokens than planned");
  // tokens, then positions, then past, as load_tokens and micro_batch() expect them
  std::memcpy(host_tokens_, tokens, static_cast<size_t>(n) * 4);
  for (int64_t i = 0; i < n; ++i)  // padding may run over the end
    host_tokens_[n + i] =
        static_cast<int32_t>(std::min(past[i / count] + i % count, plan_.cache_capacity - 1));
  std::memcpy(host_tokens_ + 2 * n, past, static_cast<size_t>(b) * 4);
  logits_position_ = count - 1;
  decode_count_ = count;
  const float* logits = run_logits();
  decode_count_ = 0;
  return logits;
}

const double* Engine::losses() const {
  return static_cast<const double*>(memory_[static_cast<size_t>(buffers_.host_results())]);
}

const float* Engine::run_logits() {
  run(cached(kLogits, false), nullptr);
  const auto* r = static_cast<const double*>(memory_[static_cast<size_t>(buffers_.host_results())]);
  return reinterpret_cast<const float*>(r + plan_.micro_batches() + model_.unit_count());
}

}  // namespace megatrain
