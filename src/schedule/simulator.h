#pragma once
// defines: simulate, simulate_step, StepEstimate — when each task of a schedule would run on a machine.

#include "schedule/cost.h"
#include "schedule/timeline.h"

namespace megatrain {

/// Lanes in list order, tasks start when what they wait for has ended and the host has issued them; lanes
/// that share the link, host memory or the disk slow each other down as the profile says. `pieces` as in
/// CostModel.
Timeline simulate(const Schedule& schedule, const StepPlan& plan, CostModel& costs, double pieces = 1);

/// Seconds of one training step in the middle of a run.
struct StepEstimate {
  double seconds = 0;
  double busy[kLanes] = {0};
  /// What bounds it: "compute", "link", "optimizer" (host memory), "disk".
  std::string verdict() const;
};

/// Micro-batches of a wave are taken as one task and waves beyond a few as repetitions, so that it takes
/// milliseconds for any model and batch.
StepEstimate simulate_step(const StepPlan& plan, CostModel& costs);
/// The schedule of a step in the middle of a run: an update is pending, resident weights are current or not
/// as the plan leaves them.
Schedule steady_step(const Model& model, const StepPlan& plan, const StepBuffers& buffers);

}  // namespace megatrain
