#pragma once
// defines: HostStore — host memory as the home of every weight and optimizer state.

#include <vector>

#include "core/progress.h"
#include "core/thread_pool.h"
#include "model/layer_template.h"

namespace megatrain {

/// One unit's state. 12 bytes a parameter: fp32 master in two 16-bit planes and two fp32 moments.
struct UnitState {
  uint16_t* hi = nullptr;  ///< bf16 weight, what streams
  uint16_t* lo = nullptr;  ///< the other half of the fp32 master
  float* m = nullptr;      ///< first moment, null without optimizer state
  float* v = nullptr;      ///< second moment
};

/// Owns one page-aligned pinned block per unit and plane, exactly sized. Not thread-safe: during a step
/// the schedule orders every access.
class HostStore {
 public:
  static constexpr int64_t kWeightBytes = 4, kMomentBytes = 8;  ///< per parameter
  /// Bytes the store of `model` takes.
  static int64_t bytes_needed(const Model& model, bool with_moments);

  /// Takes the memory (zeroed). Without moments it serves evaluation and generation.
  HostStore(Device& device, const Model& model, bool with_moments, const ProgressFn& progress = {});
  ~HostStore();
  HostStore(const HostStore&) = delete;
  HostStore& operator=(const HostStore&) = delete;

  const UnitState& unit(int u) const { return units_[static_cast<size_t>(u)]; }
  bool has_moments() const { return with_moments_; }
  int64_t bytes() const { return bytes_needed(model_, with_moments_); }

  /// N(0, std) and constants as the layout says; the same numbers for any thread count.
  void initialize(uint64_t seed, ThreadPool& pool, const ProgressFn& progress = {});
  /// Copies a parameter in from, or out to, fp32: all of it, or elements [first, first + count).
  void set_parameter(int unit, const Parameter& p, const float* values) {
    set_range(unit, p, 0, p.numel, values);
  }
  void get_parameter(int unit, const Parameter& p, float* values) const {
    get_range(unit, p, 0, p.numel, values);
  }
  void set_range(int unit, const Parameter& p, int64_t first, int64_t count, const float* values);
  void get_range(int unit, const Parameter& p, int64_t first, int64_t count, float* values) const;

 private:
  Device& device_;
  const Model& model_;
  bool with_moments_;
  std::vector<UnitState> units_;
};

}  // namespace megatrain
