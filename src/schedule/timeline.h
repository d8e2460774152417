#pragma once
// defines: Timeline — when each task of a schedule ran, measured or simulated.

#include "schedule/schedule.h"

namespace megatrain {

/// Seconds since the schedule began.
struct Timeline {
  struct Span {
    double begin = 0, end = 0;
  };
  std::vector<Span> spans;  ///< one per task
  double seconds = 0;       ///< whole schedule
  double busy(const Schedule& schedule, Lane lane) const {
    double total = 0;
    for (size_t i = 0; i < spans.size(); ++i)
      if (schedule.tasks[i].lane == lane) total += spans[i].end - spans[i].begin;
    return total;
  }
};

}  // namespace megatrain
