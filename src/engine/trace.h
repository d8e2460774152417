#pragma once
// defines: TraceFile, compare_text — measured timelines as Chrome/Perfetto JSON (open in ui.perfetto.dev),
// and beside what was predicted.

#include <map>
#include <string>

#include "engine/executor.h"
#include "schedule/simulator.h"

namespace megatrain {

/// Collects the spans of several steps and writes them as one JSON file: one row a lane, an arrow for every
/// wait, counters for the bytes in use in each place and for what the link and the disk move.
class TraceFile {
 public:
  /// `costs` and `plan` tell how many bytes each task moved.
  void add(const Schedule& schedule, const Timeline& timeline, const std::string& label, const StepPlan& plan,
           CostModel& costs);
  void write(const std::string& path) const;
  int steps() const { return steps_; }
  /// Predicted and measured time of a step, by lane and kind of task, the largest differences first; empty
  /// without steps. Means over the steps that were added.
  std::string compare_text() const;

 private:
  struct Row {
    double predicted = 0, measured = 0;
    int64_t tasks = 0;
  };
  void add_counters(const Schedule& schedule, const Timeline& timeline, const StepPlan& plan,
                    CostModel& costs);
  void counter(const char* name, double seconds, double value);
  std::string events_;
  double offset_ = 0, predicted_ = 0, measured_ = 0;
  int steps_ = 0;
  int64_t arrows_ = 0;
  std::map<std::pair<int, int>, Row> rows_;  // lane, kind; kind -1: the whole lane
};

}  // namespace megatrain
