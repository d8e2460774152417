#include "schedule/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/error.h"
#include "core/units.h"
#include "device/arena.h"

namespace megatrain {
namespace {

std::string gib(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

int64_t batch_staging(const StepPlan& p) {
  constexpr int64_t kReadAhead = 2 * 3 * 4;  // this batch and the next: tokens, targets, positions
  return p.batch * p.seq_len * (4 * p.ints_per_token() + (p.training ? kReadAhead : 0)) + p.batch * 4;
}

struct Footprint {
  int64_t bytes[kPlaceCount] = {0};
  int64_t at(Place p) const { return bytes[static_cast<int>(p)]; }
};

Footprint footprint(const Model& model, const PlanRequest& r, const StepPlan& p) {
  const StepBuffers b(model, p, false);
  Footprint f;
  for (const Buffer& buffer : b.list())
    if (!r.store || !buffer.in_store)
      f.bytes[static_cast<int>(buffer.place)] += buffer.in_store ? buffer.bytes : Arena::padded(buffer.bytes);
  auto& host = f.bytes[static_cast<int>(Place::host)];
  host += batch_staging(p);
  for (const auto& [what, bytes] : r.beside) host += bytes;
  return f;
}

bool fits_device(const PlanRequest& r, const Footprint& f) {
  return r.device_limit <= 0 || f.at(Place::device) <= r.device_limit;
}
bool fits_host(const PlanRequest& r, const Footprint& f) {
  return f.at(Place::host) + (r.device_shares_host ? f.at(Place::device) : 0) <= r.host_available;
}
bool fits_disk(const PlanRequest& r, const Footprint& f) {
  return f.at(Place::disk) <= r.disk_available;
}
bool fits(const PlanRequest& r, const Footprint& f) {
  return fits_device(r, f) && fits_host(r, f) && fits_disk(r, f);
}

// Largest value in [low, high] for which ok() holds; ok(low) must hold.
template <class F>
int64_t largest(int64_t low, int64_t high, F ok) {
  while (low < high) {
    const int64_t mid = low + (high - low + 1) / 2;
    if (ok(mid))
      low = mid;
    else
      high = mid - 1;
  }
  return low;
}
// Smallest for which it holds; ok(high) must hold.
template <class F>
int64_t smallest(int64_t low, int64_t high, F ok) {
  return high - largest(0, high - low, [&](int64_t k) { return ok(high - k); });
}

// In which order spare device memory is spent.
enum class Spend { levels_first, states_first, gradients_first };

/// Everything that fills memory for one micro-batch size and wave.
class Filler {
 public:
  Filler(const Model& model, const PlanRequest& r) : model_(model), r_(r) {
    for (int l = 0; l < model.block_count(); ++l) order_.push_back(model.block_unit(l));
    if (model.head_unit() != 0) order_.push_back(model.head_unit());
    order_.push_back(0);
  }

  /// Nothing where it cannot fit. `level`: of saving, for as many blocks as there is room for.
  std::optional<StepPlan> fill(StepPlan p, Spend spend, int level, bool rest_inputs) const {
    p.homes.assign(order_.size(), {}), p.levels.clear();
    p.offloaded_inputs = rest_inputs ? model_.block_count() : 0;
    if (r_.residency == "resident") keep_weights(p, model_.block_count());
    if (r_.residency == "disk" && p.training)
      p.homes.assign(order_.size(), {Place::disk, Place::disk, Place::disk});
    if (!device_holds(p)) {
      StepPlan most = p;
      most.offloaded_inputs = model_.block_count();
      if (!p.training || !device_holds(most)) return {};
      p.offloaded_inputs = static_cast<int>(smallest(0, model_.block_count(), [&](int64_t k) {
        most.offloaded_inputs = static_cast<int>(k);
        return device_holds(most);
      }));
    }
    if (r_.store) {
      p.homes = r_.store->homes;
      if (p.homes.empty()) p.homes.assign(order_.size(), {});
    }
    if (!make_room_in_host(p)) return {};
    spend_device(p, spend, level);
    if (p.homes == Homes(order_.size())) p.homes.clear();
    return p;
  }

 private:
  bool holds(const StepPlan& p) const { return fits(r_, footprint(model_, r_, p)); }
  bool device_holds(const StepPlan& p) const { return fits_device(r_, footprint(model_, r_, p)); }
  bool host_holds(const StepPlan& p) const { return fits_host(r_, footprint(model_, r_, p)); }
  // fp32 is for verification: it would keep both planes and a joined copy.
  bool may_live_on_device() const {
    return r_.compute == DType::bf16 && !r_.device_shares_host && r_.residency == "auto";
  }

  // The first `count` units of the order live on the device.
  void set_device_homes(StepPlan& p, int64_t count) const {
    for (size_t i = 0; i < order_.size(); ++i) {
      UnitHomes& h = p.homes[static_cast<size_t>(order_[i])];
      if (static_cast<int64_t>(i) < count)
        h = {Place::device, Place::device, Place::device};
      else if (h.states == Place::device)
        h = {};
    }
  }
  // The last `count` units (the ends last of all) have this on the disk, unless they live on the device.
  template <class Set>
  void set_on_disk(StepPlan& p, int64_t count, Set&& set) const {
    const auto blocks = static_cast<size_t>(model_.block_count());
    for (size_t i = 0; i < order_.size(); ++i) {
      const size_t from_last = i < blocks ? blocks - 1 - i : i;
      UnitHomes& h = p.homes[static_cast<size_t>(order_[i])];
      if (h.states != Place::device)
        set(h, static_cast<int64_t>(from_last) < count ? Place::disk : Place::host);
    }
  }

  bool make_room_in_host(StepPlan& p) const {
    if (host_holds(p)) return fits_disk(r_, footprint(model_, r_, p));
    if (r_.store) return false;
    const auto all = static_cast<int64_t>(order_.size());
    if (may_live_on_device()) {
      const auto with = [&](int64_t k) {
        StepPlan q = p;
        set_device_homes(q, k);
        return q;
      };
      const int64_t most = largest(0, all, [&](int64_t k) { return device_holds(with(k)); });
      const int64_t enough =
          host_holds(with(most)) ? smallest(0, most, [&](int64_t k) { return host_holds(with(k)); }) : most;
      p = with(enough);
      if (host_holds(p)) return true;
    }
    const auto to_disk = [&](auto set) {
      const auto with = [&](int64_t k) {
        StepPlan q = p;
        set_on_disk(q, k, set);
        return q;
      };
      const bool enough = host_holds(with(all));
      p = with(enough ? smallest(0, all, [&](int64_t k) { return host_holds(with(k)); }) : all);
      return enough && fits_disk(r_, footprint(model_, r_, p));
    };
    if (r_.disk_available <= 0) return false;
    if (p.training && to_disk([](UnitHomes& h, Place x) { h.states = x; })) return true;
    if (p.training && p.gradients_rest() && to_disk([](UnitHomes& h, Place x) { h.gradient = x; }))
      return true;
    return to_disk([](UnitHomes& h, Place x) { h.weights = x; });
  }

  void spend_device(StepPlan& p, Spend spend, int level) const {
    if (!p.training) return spend_on_copies(p);
    if (spend == Spend::levels_first) spend_on_levels(p, level);
    if (spend == Spend::gradients_first) spend_on_gradients(p), spend_on_copies(p), spend_on_levels(p, level);
    spend_on_states(p);
    spend_on_gradients(p);
    if (spend == Spend::states_first) spend_on_levels(p, level);
    spend_on_copies(p);
  }

  void spend_on_states(StepPlan& p) const {
    if (!may_live_on_device()) return;
    // What was put on the device to make room stays; what is on the disk may come back.
    const auto now = static_cast<int64_t>(std::count_if(
        p.homes.begin(), p.homes.end(), [](const UnitHomes& h) { return h.states == Place::device; }));
    const auto with = [&](int64_t k) {
      StepPlan q = p;
      for (int64_t i = now; i < k; ++i)
        q.homes[static_cast<size_t>(order_[static_cast<size_t>(i)])] = {Place::device, Place::device,
                                                                        Place::device};
      return q;
    };
    p = with(largest(now, static_cast<int64_t>(order_.size()), [&](int64_t k) { return holds(with(k)); }));
  }

  void spend_on_gradients(StepPlan& p) const {
    if (!may_live_on_device() || !p.gradients_rest()) return;
    const auto with = [&](int64_t k) {
      StepPlan q = p;
      for (int64_t i = 0; i < k; ++i)
        q.homes[static_cast<size_t>(order_[static_cast<size_t>(i)])].gradient = Place::device;
      return q;
    };
    p = with(largest(0, static_cast<int64_t>(order_.size()), [&](int64_t k) { return holds(with(k)); }));
  }

  void keep_weights(StepPlan& p, int64_t blocks) const {
    p.resident_blocks = static_cast<int>(blocks), p.resident_ends = blocks == model_.block_count();
  }
  void spend_on_copies(StepPlan& p) const {
    if (r_.residency != "auto") return;
    const auto with = [&](int64_t k) {
      StepPlan q = p;
      keep_weights(q, k);
      return q;
    };
    p = with(largest(0, model_.block_count(), [&](int64_t k) { return holds(with(k)); }));
  }

  // The last blocks first: what they save is wanted soonest.
  void spend_on_levels(StepPlan& p, int level) const {
    const int64_t layers = model_.block_count();
    int64_t done = 0;
    for (int l = level; l > 0 && done < layers; --l) {
      const auto with = [&](int64_t k) {
        StepPlan q = p;
        q.levels.resize(static_cast<size_t>(layers), 0);
        for (int64_t i = done; i < k; ++i) q.levels[static_cast<size_t>(layers - 1 - i)] = l;
        return q;
      };
      const int64_t k = largest(done, layers, [&](int64_t n) { return n == done || holds(with(n)); });
      if (k > done) p = with(k);
      done = k;
    }
  }

  const Model& model_;
  const PlanRequest& r_;
  std::vector<int> order_;  // in which units come to live on the device
};

// What its lanes move in a step, without overlap: no plan is faster than its busiest lane.
double lower_bound(const StepPlan& p, CostModel& costs) {
  const Model& model = costs.model();
  const MachineProfile& m = costs.machine();
  const auto micros = static_cast<double>(p.batch) / static_cast<double>(p.micro_batch),
             waves = static_cast<double>(p.waves());
  double compute = micros * (costs.head(p, p.micro_batch, TaskKind::head_loss).seconds +
                             costs.embedding(p, p.micro_batch, false).seconds +
                             costs.embedding(p, p.micro_batch, true).seconds),
         ops = 0, up = 0, down = 0, host = 0, read = 0, written = 0;
  for (int l = 0; l < model.block_count(); ++l) {
    const TaskCost f = costs.block(p, p.micro_batch, p.level(l), false),
                   b = costs.block(p, p.micro_batch, p.level(l), true);
    compute += micros * (f.seconds + b.seconds), ops += micros * (f.ops + b.ops);
    if (l < p.offloaded_inputs) {
      const auto bytes =
          static_cast<double>(p.batch * p.seq_len * model.spec().hidden_size * size_of(p.compute));
      up += bytes, down += bytes;
    }
  }
  const int layers = model.block_count(), first_resident = layers - p.resident_blocks;
  for (int u = 0; u < model.unit_count(); ++u) {
    const auto n = static_cast<double>(model.units()[static_cast<size_t>(u)].numel);
    const UnitHomes h = home_of(p.homes, u);
    const bool block = u > 0 && u <= layers,
               stays = h.weights == Place::device ||
                       (block ? u - 1 >= first_resident : model.spec().tied || p.resident_ends);
    const double streams = p.compute == DType::f32 ? 4 : 2,
                 loads = stays ? (h.states == Place::device ? 0 : 1) : (block ? 2 : 1) * waves;
    up += streams * n * loads;
    if (h.weights == Place::disk) read += streams * n * loads;
    if (h.gradient != Place::device || !p.gradients_rest()) up += 4 * n * (waves - 1), down += 4 * n * waves;
    if (h.gradient == Place::device && h.states != Place::device) down += 4 * n;
    if (h.states == Place::device)
      compute += 28 * n / std::max(m.device_adam, 1.0);
    else
      host += 28 * n;
    if (h.states == Place::disk) read += (12 - streams) * n, written += (12 - streams) * n;
    if (p.gradients_rest() && h.gradient == Place::disk) read += 4 * n * waves, written += 4 * n * waves;
    if (h.weights == Place::disk) written += streams * n;
  }
  return std::max({compute, ops * m.op_seconds, up / m.link_up, down / m.link_down, host / m.adam,
                   read / std::max(m.disk_read, 1.0), written / std::max(m.disk_write, 1.0)});
}

StepPlan base_plan(const PlanRequest& r) {
  StepPlan p;
  p.batch = r.batch, p.seq_len = r.seq_len, p.update_in_backward = r.update_in_backward;
  p.micro_batch = 1, p.training = r.training, p.compute = r.compute, p.workspace = r.workspace;
  p.cache_capacity = r.cache_capacity, p.packed = r.packed;
  return p;
}

// The largest micro-batch worth trying and its halves, each evened out over the batch.
std::vector<int64_t> micro_batch_sizes(const PlanRequest& r) {
  if (r.micro_batch > 0) return {r.micro_batch};
  if (!r.training && r.cache_capacity > 0) return {r.batch};
  std::vector<int64_t> out;
  for (int64_t size = std::clamp<int64_t>(r.micro_batch_tokens / r.seq_len, 1, r.batch); size > 0;
       size /= 2) {
    const int64_t count = (r.batch + size - 1) / size, even = (r.batch + count - 1) / count;
    if (out.empty() || out.back() != even) out.push_back(even);
  }
  return out;
}

std::vector<int64_t> wave_sizes(const StepPlan& p) {
  std::vector<int64_t> out;
  for (int64_t w = p.micro_batches(); w > 0; w = w == 1 ? 0 : (w + 1) / 2) out.push_back(w);
  return out;
}

struct Candidate {
  StepPlan plan;
  double bound;
};

std::vector<Candidate> candidates(const Model& model, const PlanRequest& r, CostModel& costs,
                                  bool first_only) {
  const Filler filler(model, r);
  std::vector<Candidate> out;
  StepPlan p = base_plan(r);
  const int levels = r.training ? model.block().levels() : 1;
  for (const int64_t size : micro_batch_sizes(r)) {
    p.micro_batch = size;
    for (const int64_t wave : wave_sizes(p)) {
      if (!r.training && wave != p.micro_batches()) continue;
      p.wave = wave;
      for (const bool rest : {false, true})
        for (const Spend spend : {Spend::levels_first, Spend::states_first, Spend::gradients_first})
          for (int level = levels - 1; level >= 0; --level) {
            if (rest && !r.training) continue;
            auto filled = filler.fill(p, spend, level, rest);
            if (!filled) break;  // nor with another level
            const bool reached = level == 0 || (!filled->levels.empty() && filled->levels.back() == level);
            if (!reached) continue;  // the same as with a lower one
            const double bound = r.training ? lower_bound(*filled, costs) : 0;
            out.push_back({std::move(*filled), bound});
            if (first_only || !r.training) return out;
          }
    }
  }
  return out;
}

bool has_a_plan(const Model& model, const PlanRequest& r) {
  CostModel costs(model, r.machine);
  return !candidates(model, r, costs, true).empty();
}

// What a step needs at least, everything streamed and one sequence at a time.
Footprint least(const Model& model, const PlanRequest& r) {
  StepPlan p = base_plan(r);
  p.micro_batch = r.micro_batch > 0 ? r.micro_batch : r.cache_capacity > 0 ? r.batch : 1, p.wave = 1;
  if (r.training) p.offloaded_inputs = model.block_count();
  if (r.residency == "resident") p.resident_blocks = model.block_count(), p.resident_ends = true;
  return footprint(model, r, p);
}

// The first change of one option that fits, as "set X to Y".
std::string nearest_change(const Model& model, const PlanRequest& r) {
  const auto works = [&](auto change) {
    PlanRequest q = r;
    change(q);
    return has_a_plan(model, q);
  };
  if (r.residency != "auto" && works([](PlanRequest& q) { q.residency = "auto"; }))
    return "set residency to auto";
  if (r.micro_batch > 0 && works([](PlanRequest& q) { q.micro_batch = 0; })) return "set micro_batch to 0";
  if (r.training && !r.update_in_backward && works([](PlanRequest& q) { q.update_in_backward = true; }))
    return "set max_gradient_norm to 0, so that no gradient waits for a norm";
  constexpr int64_t kMiB = int64_t{1} << 20;
  const int64_t most = r.device_most > 0 ? r.device_most / kMiB : r.device_limit / kMiB * 64 + 64;
  const auto with_limit = [&](int64_t n) {
    return works([&](PlanRequest& q) { q.device_limit = n * kMiB; });
  };
  if (r.device_limit > 0 && most > r.device_limit / kMiB && with_limit(most))
    return fmt::format("set memory_limit to {}MiB", smallest(r.device_limit / kMiB, most, with_limit));
  for (int64_t t = r.seq_len / 2; t > 0; t /= 2)
    if (works([&](PlanRequest& q) { q.seq_len = t; })) return fmt::format("set sequence_length to {}", t);
  if (works([](PlanRequest& q) { q.disk_available = int64_t{1} << 50; })) {
    const int64_t gib_needed = smallest(0, int64_t{1} << 20, [&](int64_t n) {
      return works([&](PlanRequest& q) { q.disk_available = n << 30; });
    });
    return fmt::format("set state_dir to a directory with {} GiB free", gib_needed);
  }
  ModelSpec spec = model.spec();
  const int64_t layers = largest(0, spec.num_layers, [&](int64_t n) {
    if (n == 0) return true;
    spec.num_layers = n;
    if (!spec.windows.empty()) spec.windows.resize(static_cast<size_t>(n));
    return has_a_plan(*make_model(spec), r);
  });
  if (layers > 1) return fmt::format("set num_layers to {}, or use a machine with more RAM", layers);
  const int64_t far = int64_t{1} << 24;
  return with_limit(far) ? fmt::format("use a device with {}MiB of memory free", smallest(0, far, with_limit))
                         : "use a machine with more memory";
}

[[noreturn]] void refuse(const Model& model, const PlanRequest& r) {
  const Footprint f = least(model, r);
  const bool device_short = !fits_device(r, f);
  if (device_short && r.cache_capacity > 0)
    fail(fmt::format(
        "not enough device memory: {} needed to generate {} sequences of up to {} tokens, {} allowed; "
        "raise memory_limit, ask for fewer tokens, or give fewer prompts at a time",
        gib(f.at(Place::device)), r.batch, r.cache_capacity, gib(r.device_limit)));
  const std::string change = nearest_change(model, r);
  if (device_short)
    fail(fmt::format(
        "not enough device memory: {} needed even with micro-batches of {} x {} tokens, {} allowed; {}",
        gib(f.at(Place::device)), std::max<int64_t>(r.micro_batch, 1), r.seq_len, gib(r.device_limit),
        change));
  int64_t n = 0;
  for (const UnitLayout& u : model.units()) n += u.numel;
  fail(
      fmt::format("not enough host memory: {} parameters need {} (master weights {}, Adam moments {}, "
                  "gradients {}, the rest a "
                  "step's); {} is available{}{}; {}",
                  format_count(static_cast<double>(model.parameter_count())),
                  gib(f.at(Place::host) + (r.device_shares_host ? f.at(Place::device) : 0)), gib(n * 4),
                  gib(r.training ? n * 8 : 0), gib(r.training && !r.update_in_backward ? n * 4 : 0),
                  gib(r.host_available),
                  r.device_shares_host ? "" : fmt::format(", {} on the device", gib(r.device_limit)),
                  r.disk_available > 0 ? fmt::format(", {} of disk", gib(r.disk_available)) : "", change));
}

double on_disk(const Model& model, const StepPlan& p, bool written) {
  const StepBuffers b(model, p);
  CostModel costs(model, {});
  double n = 0;
  const Schedule s = steady_step(model, p, b);
  for (const Task& t : s.tasks)
    if (t.lane == (written ? Lane::disk_write : Lane::disk_read)) n += costs.cost(p, t).bytes;
  return n;
}

}  // namespace

MemoryPlan describe_plan(const Model& model, const PlanRequest& r, const StepPlan& p) {
  MemoryPlan m;
  m.step = p;
  const StepBuffers b(model, p, false);
  for (const Place place : {Place::device, Place::host, Place::disk})
    for (const Buffer& buffer : b.list()) {
      if (buffer.place != place || buffer.bytes == 0 || (r.store && buffer.in_store)) continue;
      const int64_t bytes = buffer.in_store ? buffer.bytes : Arena::padded(buffer.bytes);
      auto it = std::find_if(m.lines.begin(), m.lines.end(),
                             [&](auto& l) { return l.what == buffer.group && l.place == place; });
      if (it == m.lines.end())
        m.lines.push_back({buffer.group, place, bytes});
      else
        it->bytes += bytes;
    }
  m.lines.push_back({"batches", Place::host, batch_staging(p)});
  for (const auto& [what, bytes] : r.beside) m.lines.push_back({what, Place::host, bytes});
  for (const MemoryLine& l : m.lines) m.bytes(l.place) += l.bytes;
  const int64_t device = r.device_limit > 0 ? r.device_limit : r.host_available - m.bytes(Place::host);
  m.available[0] = device, m.available[1] = r.host_available, m.available[2] = r.disk_available;
  if (!p.training) return m;
  CostModel costs(model, r.machine);
  m.estimate = simulate_step(p, costs);
  if (m.bytes(Place::disk) > 0)
    m.disk_read_bytes = on_disk(model, p, false), m.disk_written_bytes = on_disk(model, p, true);
  return m;
}

int64_t least_device_bytes(const Model& model, const PlanRequest& r) {
  return least(model, r).at(Place::device);
}

MemoryPlan plan_step(const Model& model, const PlanRequest& r) {
  if (r.micro_batch > r.batch)
    fail(fmt::format("micro_batch: {} is more than batch_size {}; lower it or leave it at 0", r.micro_batch,
                     r.batch));
  CostModel costs(model, r.machine);
  std::vector<Candidate> all = candidates(model, r, costs, false);
  if (all.empty()) refuse(model, r);
  std::stable_sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.bound < b.bound; });
  constexpr int kMostSimulated = 60;
  const Candidate* best = &all[0];
  double seconds = 0;
  int simulated = 0;
  for (const Candidate& c : all) {
    if (!r.training || simulated == kMostSimulated || (simulated > 0 && c.bound >= seconds)) break;
    const double t = simulate_step(c.plan, costs).seconds;
    // A hair's breadth is not worth more waves or more memory: earlier candidates have fewer.
    if (simulated++ == 0 || t < 0.998 * seconds) best = &c, seconds = t;
  }
  return describe_plan(model, r, best->plan);
}

std::string memory_table(const MemoryPlan& m) {
  static const char* const titles[] = {"device memory", "host memory", "disk"};
  std::string out;
  for (const Place place : {Place::device, Place::host, Place::disk}) {
    if (place == Place::disk && m.bytes(place) == 0) continue;
    out += fmt::format("  {:<34}{:>14}   of {}\n", titles[static_cast<int>(place)], gib(m.bytes(place)),
                       gib(m.limit(place)));
    for (const auto& l : m.lines)
      if (l.place == place && l.bytes > 0) out += fmt::format("    {:<32}{:>14}\n", l.what, gib(l.bytes));
  }
  return out;
}

std::string plan_text(const Model& model, const MemoryPlan& m) {
  const StepPlan& p = m.step;
  const int blocks = model.block_count();
  std::string out = fmt::format("{} sequences x {} tokens a step, {} micro-batch{} of {}, {} wave{}", p.batch,
                                p.seq_len, p.micro_batches(), p.micro_batches() == 1 ? "" : "es",
                                p.micro_batch, p.waves(), p.waves() == 1 ? "" : "s");
  if (!p.training) return out;
  int states[kPlaceCount] = {0}, streamed = 0, gradients[kPlaceCount] = {0}, saved[16] = {0};
  for (int l = 0; l < blocks; ++l) {
    const UnitHomes h = home_of(p.homes, model.block_unit(l));
    ++states[static_cast<int>(h.states)], ++gradients[static_cast<int>(h.gradient)], ++saved[p.level(l)];
    streamed += h.weights != Place::device && l < blocks - p.resident_blocks;
  }
  const auto list = [](const int(&n)[kPlaceCount]) {
    std::string s;
    for (int i = 0; i < kPlaceCount; ++i)
      if (n[i] > 0)
        s += fmt::format("{}{} {}", s.empty() ? "" : ", ", n[i],
                         i == 0   ? "on the device"
                         : i == 1 ? "in host memory"
                                  : "on disk");
    return s;
  };
  out += fmt::format("\n  of {} blocks: states {}; weights of {} streamed", blocks, list(states), streamed);
  if (p.gradients_rest()) out += "; gradients wait " + list(gradients);
  std::string levels;
  for (int l = model.block().levels() - 1; l >= 0; --l)
    if (saved[l] > 0) levels += fmt::format("{}{} at level {}", levels.empty() ? "" : ", ", saved[l], l);
  out += fmt::format("\n  activations saved (0: block inputs, {}: everything): {}",
                     model.block().levels() - 1, levels);
  if (p.offloaded_inputs > 0)
    out += fmt::format("; inputs of {} blocks rest in host memory", p.offloaded_inputs);
  return out;
}

}  // namespace megatrain
