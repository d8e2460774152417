#pragma once
// defines: StateStore — the home of every weight and optimizer state: device, host memory or disk.

#include <memory>
#include <string>
#include <vector>

#include "core/progress.h"
#include "core/thread_pool.h"
#include "device/arena.h"
#include "model/layer_template.h"
#include "store/homes.h"
#include "store/state_file.h"

namespace megatrain {

/// One unit's planes, wherever they live (null on disk). 12 bytes a parameter: fp32 master in two 16-bit
/// planes and two fp32 moments.
struct UnitState {
  uint16_t* hi = nullptr;  ///< bf16 weight, what streams
  uint16_t* lo = nullptr;  ///< the other half of the fp32 master; null where only bf16 weights are kept
  float* m = nullptr;      ///< first moment, null without optimizer state
  float* v = nullptr;      ///< second moment
};

/// What of a unit moves together: the planes of one group lie behind each other, each at a page's start.
enum class Group : uint8_t { weights, states, gradient };

/// Where the planes of one unit's group lie in their block; -1: not in this group.
struct GroupLayout {
  int64_t offset[kPlanes] = {-1, -1, -1, -1};
  int64_t bytes = 0;
};

struct StoreOptions {
  bool moments = true;         ///< false: evaluation and generation
  bool low_half = true;        ///< keep `lo`: false where only bf16 weights are wanted
  DType compute = DType::f32;  ///< fp32: lo streams with hi
  Homes homes;
  bool gradients = false;   ///< gradients whose home is the disk get room in the file
  std::string state_dir;    ///< directory of the state file; only asked for with homes on disk
  std::string state_owner;  ///< tells this run's file from others in the directory
};

GroupLayout group_layout(const UnitLayout& unit, Group group, const StoreOptions& options);

/// Owns the memory, named. Not thread-safe within a unit: during a step the schedule orders every access.
class StateStore {
 public:
  /// Takes the memory (zeroed).
  StateStore(Device& device, const Model& model, StoreOptions options, const ProgressFn& progress = {});
  StateStore(Device& device, const Model& model, bool moments, const ProgressFn& progress = {})
      : StateStore(device, model, moments_only(moments), progress) {}
  ~StateStore();
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;

  /// Bytes that the store of `model` takes in a place.
  static int64_t bytes_needed(const Model& model, const StoreOptions& options, Place place);
  static int64_t bytes_needed(const Model& model, bool moments) {
    return bytes_needed(model, moments_only(moments), Place::host);
  }
  int64_t bytes() const;  ///< in all places

  const StoreOptions& options() const { return options_; }
  UnitHomes homes(int unit) const { return home_of(options_.homes, unit); }
  /// Everything of this unit lives in host memory.
  bool in_host(int unit) const { return homes(unit) == UnitHomes{}; }
  bool has_moments() const { return options_.moments; }
  const UnitState& unit(int u) const { return units_[static_cast<size_t>(u)]; }
  /// Start of a group's block (null on disk), and its place in the file.
  void* block(int unit, Group group) const { return blocks_[index(unit, group)].data; }
  int64_t file_offset(int unit, Group group) const { return blocks_[index(unit, group)].file_offset; }
  GroupLayout layout(int unit, Group group) const {
    return group_layout(model_.units()[static_cast<size_t>(unit)], group, options_);
  }
  StateFile* file() const { return file_.get(); }

  /// Moves bytes of a plane, wherever it lives, at once. Different planes or units by any threads.
  void read(int unit, Plane plane, int64_t first, void* out, int64_t bytes) const;
  void write(int unit, Plane plane, int64_t first, const void* data, int64_t bytes);
  /// The plane's bytes if they lie in host memory, else null.
  char* host_address(int unit, Plane plane) const;

  /// N(0, std) and constants as the layout says; the same numbers for any thread count and homes.
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
  struct Block {
    Place place = Place::host;
    void* data = nullptr;
    int64_t bytes = 0, file_offset = -1;
  };
  static StoreOptions moments_only(bool moments) {
    StoreOptions o;
    o.moments = moments;
    return o;
  }
  static size_t index(int unit, Group group) {
    return static_cast<size_t>(unit) * 3 + static_cast<size_t>(group);
  }
  void take(const ProgressFn& progress);
  void point(int unit);
  const Block& block_of(int unit, Plane plane, int64_t& offset) const;

  Device& device_;
  const Model& model_;
  StoreOptions options_;
  std::unique_ptr<Arena> arena_;  // device homes
  std::unique_ptr<StateFile> file_;
  std::vector<Block> blocks_;
  std::vector<UnitState> units_;
};

}  // namespace megatrain
