#include "store/host_store.h"

#include <cmath>
#include <numbers>

#include "core/rng.h"

namespace megatrain {
namespace {

// Box-Muller on a pair of counter-based uniforms: element i depends on (seed, stream, i) only.
float normal_at(uint64_t seed, uint64_t stream, uint64_t i) {
  const double u = random_uniform(seed, stream, 2 * i), v = random_uniform(seed, stream, 2 * i + 1);
  return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v));
}

constexpr uint64_t kInitStream = uint64_t{1} << 40;  // apart from the dropout streams

}  // namespace

int64_t HostStore::bytes_needed(const Model& model, bool with_moments) {
  int64_t n = 0;
  for (const auto& u : model.units()) n += u.numel;
  return n * (kWeightBytes + (with_moments ? kMomentBytes : 0));
}

HostStore::HostStore(Device& device, const Model& model, bool with_moments, const ProgressFn& progress)
    : device_(device), model_(model), with_moments_(with_moments) {
  for (const auto& u : model.units()) {
    if (progress) progress(static_cast<double>(units_.size()) / model.unit_count());
    units_.emplace_back();
    UnitState& s = units_.back();
    s.hi = static_cast<uint16_t*>(device.allocate_pinned(u.numel * 2));
    s.lo = static_cast<uint16_t*>(device.allocate_pinned(u.numel * 2));
    if (!with_moments) continue;
    s.m = static_cast<float*>(device.allocate_pinned(u.numel * 4));
    s.v = static_cast<float*>(device.allocate_pinned(u.numel * 4));
  }
}

HostStore::~HostStore() {
  for (size_t u = 0; u < units_.size(); ++u) {
    const int64_t n = model_.units()[u].numel;
    device_.release_pinned(units_[u].hi, n * 2);
    device_.release_pinned(units_[u].lo, n * 2);
    device_.release_pinned(units_[u].m, n * 4);
    device_.release_pinned(units_[u].v, n * 4);
  }
}

void HostStore::initialize(uint64_t seed, ThreadPool& pool, const ProgressFn& progress) {
  uint64_t stream = kInitStream;
  for (size_t u = 0; u < units_.size(); ++u)
    for (const Parameter& p : model_.units()[u].parameters) {
      if (progress) progress(static_cast<double>(u) / static_cast<double>(units_.size()));
      ++stream;
      const UnitState& s = units_[u];
      pool.parallel_ranges(p.numel, 65536, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          float x = p.init == Init::ones ? 1.0f : 0.0f;
          if (p.init == Init::normal)
            x = static_cast<float>(p.init_std) * normal_at(seed, stream, static_cast<uint64_t>(i));
          const SplitFloat f = split_float(x);
          s.hi[p.offset + i] = f.hi, s.lo[p.offset + i] = f.lo;
        }
      });
    }
}

void HostStore::set_range(int unit, const Parameter& p, int64_t first, int64_t count, const float* values) {
  const UnitState& s = units_[static_cast<size_t>(unit)];
  for (int64_t i = 0, at = p.offset + first; i < count; ++i, ++at) {
    const SplitFloat f = split_float(values[i]);
    s.hi[at] = f.hi, s.lo[at] = f.lo;
  }
}

void HostStore::get_range(int unit, const Parameter& p, int64_t first, int64_t count, float* values) const {
  const UnitState& s = units_[static_cast<size_t>(unit)];
  for (int64_t i = 0, at = p.offset + first; i < count; ++i, ++at) values[i] = join_float(s.hi[at], s.lo[at]);
}

}  // namespace megatrain
