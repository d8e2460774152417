#pragma once
// defines: training_request, estimate_text — what `plan` and `train` share.

#include "cli/config.h"
#include "cli/session.h"

namespace megatrain {

MachineOptions machine_of(const TrainConfig& config);
/// What a config asks of the planner, without the machine.
PlanRequest training_request(const TrainConfig& config, const ModelSpec& spec);
/// The prediction in two or three lines: step time by lane, tokens a second, share of the matrix rate,
/// verdict, time of the run; where states live on disk, what that wears.
std::string estimate_text(const Model& model, const MemoryPlan& plan, const MachineProfile& machine,
                          int64_t steps);

}  // namespace megatrain
