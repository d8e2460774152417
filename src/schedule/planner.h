#pragma once
// defines: PlanRequest, MemoryPlan, plan_step — chooses how a step is cut so that it fits, before any
// memory is taken, and says in numbers why not when it does not.

#include <string>
#include <vector>

#include "schedule/builder.h"

namespace megatrain {

struct PlanRequest {
  int64_t batch = 0, seq_len = 0;
  int64_t micro_batch = 0;         ///< 0: planner chooses
  std::string residency = "auto";  ///< auto | stream | resident
  bool update_in_backward = false;
  bool training = true;
  bool packed = false;         ///< several documents in a sequence
  int64_t cache_capacity = 0;  ///< generation: tokens kept; the whole batch is one micro-batch then
  DType compute = DType::f32;
  int64_t (*workspace)(const OpShapes&) = nullptr;
  int64_t micro_batch_tokens = 4096;  ///< beyond this, larger matrix products gain nothing
  double flops_per_link_byte = 10;    ///< what the device computes while the link moves a byte
  int64_t device_limit = 0;           ///< bytes; 0: what the host has left (CPU device)
  int64_t host_available = 0;         ///< bytes of host memory that may be taken
  bool device_shares_host = true;     ///< the CPU device's memory is host memory too
  std::vector<std::pair<std::string, int64_t>> beside;  ///< what the host holds that is no part of the step
};

struct MemoryLine {
  std::string what;
  Place place;
  int64_t bytes;
};

struct MemoryPlan {
  StepPlan step;
  std::vector<MemoryLine> lines;  ///< device groups, then host groups
  int64_t device_bytes = 0, device_limit = 0, host_bytes = 0, host_available = 0;
};

/// The micro-batch that makes the quickest step (larger ones compute faster, but leave room for fewer of them
/// in a wave, and every wave streams all weights again), the largest wave and residency that fit. Throws
/// Error with needed and present figures.
MemoryPlan plan_step(const Model& model, const PlanRequest& request);
/// The memory table as text, one line a group.
std::string memory_table(const MemoryPlan& plan);

}  // namespace megatrain
