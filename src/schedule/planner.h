#pragma once
// defines: PlanRequest, MemoryPlan, plan_step — chooses how a step is cut and where everything lives, so that
// it fits and takes the least time, before any memory is taken; says in numbers why not when it does not fit,
// and what would.

#include <string>
#include <vector>

#include "schedule/simulator.h"

namespace megatrain {

struct PlanRequest {
  int64_t batch = 0, seq_len = 0;
  int64_t micro_batch = 0;         ///< 0: planner chooses
  std::string residency = "auto";  ///< auto | stream | resident | disk
  bool update_in_backward = false;
  bool training = true;
  bool packed = false;         ///< several documents in a sequence
  int64_t cache_capacity = 0;  ///< generation: tokens kept; the whole batch is one micro-batch then
  DType compute = DType::f32;
  int64_t (*workspace)(const OpShapes&) = nullptr;
  int64_t micro_batch_tokens = 4096;  ///< beyond this, larger matrix products gain nothing
  int64_t device_limit = 0;           ///< bytes; 0: what the host has left (CPU device)
  int64_t device_most = 0;            ///< what device_limit could be raised to; 0: not known
  int64_t host_available = 0;         ///< bytes of host memory that may be taken
  int64_t disk_available = 0;         ///< bytes that states may take on the disk; 0: none
  int64_t disk_reserved = 0;          ///< of what is free there, for the model and checkpoints
  bool device_shares_host = true;     ///< the CPU device's memory is host memory too
  std::vector<std::pair<std::string, int64_t>> beside;  ///< what the host holds that is no part of the step
  MachineProfile machine = built_in_profile("cpu", "CPU", 1);
  const StoreOptions* store =
      nullptr;  ///< that of a store which is there: its homes stand, its memory is taken
};

struct MemoryLine {
  std::string what;
  Place place;
  int64_t bytes;
};

struct MemoryPlan {
  StepPlan step;
  StepEstimate estimate;          ///< training only
  std::vector<MemoryLine> lines;  ///< by place
  int64_t used[kPlaceCount] = {0}, available[kPlaceCount] = {0};
  int64_t& bytes(Place p) { return used[static_cast<int>(p)]; }
  int64_t bytes(Place p) const { return used[static_cast<int>(p)]; }
  int64_t limit(Place p) const { return available[static_cast<int>(p)]; }
  /// Of the states' file: moved in one step.
  double disk_read_bytes = 0, disk_written_bytes = 0;
};

/// Searches micro-batch, waves, homes, levels of saving and resting inputs with the simulator. Throws Error
/// with needed and present figures and the nearest change that fits.
MemoryPlan plan_step(const Model& model, const PlanRequest& request);
/// The same for a plan that is given: its table and estimate.
MemoryPlan describe_plan(const Model& model, const PlanRequest& request, const StepPlan& step);
/// Device memory that a step of this request needs at least, everything streamed and one sequence at a time.
int64_t least_device_bytes(const Model& model, const PlanRequest& request);
/// The memory table as text, one line a group.
std::string memory_table(const MemoryPlan& plan);
/// "blocks: 19 of 40 with their states on the device, 21 in host memory; ..." in one or two lines.
std::string plan_text(const Model& model, const MemoryPlan& plan);

}  // namespace megatrain
