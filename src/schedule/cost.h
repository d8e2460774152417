#pragma once
// defines: TaskCost, CostModel — what each task of a schedule takes on a machine. Templates are asked by
// running them over an Ops that adds up times instead of computing: a new family needs nothing.

#include <map>
#include <tuple>

#include "schedule/builder.h"
#include "schedule/machine.h"

namespace megatrain {

struct TaskCost {
  double seconds = 0;  ///< of its lane alone: compute
  double bytes = 0;    ///< that its lane moves, at the rate that other lanes leave it
  double ops = 0;      ///< operations that the host issues for it
};

class CostModel {
 public:
  CostModel(const Model& model, const MachineProfile& machine) : model_(model), machine_(machine) {}
  /// `pieces`: micro-batches that the task stands for (coarse schedules: see simulate_step).
  TaskCost cost(const StepPlan& plan, const Task& task, double pieces = 1);
  /// One block of one micro-batch.
  TaskCost block(const StepPlan& plan, int64_t sequences, int level, bool backward);
  TaskCost head(const StepPlan& plan, int64_t sequences, TaskKind kind);
  TaskCost embedding(const StepPlan& plan, int64_t sequences, bool backward);
  const MachineProfile& machine() const { return machine_; }
  const Model& model() const { return model_; }

 private:
  TaskCost compute(const StepPlan& plan, const Task& task);
  using Key = std::tuple<int, int64_t, int64_t, int, DType>;
  TaskCost cached(const Key& key, const StepPlan& plan, int64_t sequences, int level);
  const Model& model_;
  const MachineProfile& machine_;
  std::map<Key, TaskCost> cache_;
};

}  // namespace megatrain
