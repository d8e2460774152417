#include "cli/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/unit_file.h"
#include "checkpoint/checkpointer.h"
#include "cli/commands.h"
#include "core/error.h"
#include "core/say.h"
#include "core/units.h"

namespace megatrain {

PlanRequest training_request(const TrainConfig& c, const ModelSpec& spec) {
  PlanRequest r;
  r.batch = c.batch_size, r.seq_len = c.sequence_length;
  r.update_in_backward = c.max_gradient_norm == 0;
  if (c.checkpoint_interval >= 0)
    r.beside.emplace_back("checkpoint writers", CheckpointPolicy{}.threads * 2 * kWriterBytes);
  (void)spec;
  return r;
}

std::string estimate_text(const Model& model, const MemoryPlan& m, const MachineProfile& machine, int64_t steps) {
  const StepPlan& p = m.step;
  const StepEstimate& e = m.estimate;
  const double tokens = static_cast<double>(p.batch * p.seq_len),
               flops = model.step_flops(p.batch, p.seq_len) / std::max(e.seconds, 1e-12);
  std::string lanes;
  for (int lane = 0; lane < kLanes; ++lane)
    if (e.busy[lane] > 0)
      lanes += fmt::format("{}{} {}", lanes.empty() ? "" : ", ", name_of(static_cast<Lane>(lane)),
                           format_duration(e.busy[lane]));
  std::string out = fmt::format(
      "  predicted: {} a step ({}), {} tok/s, {:.3g} model TFLOP/s = {:.0f}% of the matrix rate; bound by {}\n",
      format_duration(e.seconds), lanes, format_count(tokens / e.seconds), flops / 1e12, 100 * flops / machine.gemm,
      e.verdict());
  out += fmt::format("  {} steps: {} (profile: {}, {})\n", steps, format_duration(e.seconds * static_cast<double>(steps)),
                     machine.name, machine.source);
  if (m.bytes(Place::disk) > 0)
    out += fmt::format(
        "  states on disk: {} read and {} written a step; written {:.3g} TB a day, {:.3g} TB in the whole run (a "
        "disk's endurance is given as TBW)\n",
        format_bytes(m.disk_read_bytes), format_bytes(m.disk_written_bytes),
        m.disk_written_bytes / e.seconds * 86400 / 1e12, m.disk_written_bytes * static_cast<double>(steps) / 1e12);
  return out;
}

}  // namespace megatrain
