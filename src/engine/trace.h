#pragma once
// defines: TraceFile — measured timelines as Chrome/Perfetto JSON (open in ui.perfetto.dev).

#include <string>

#include "engine/executor.h"

namespace megatrain {

/// Collects the spans of several steps and writes them as one JSON file, one row a lane.
class TraceFile {
 public:
  void add(const Schedule& schedule, const Timeline& timeline, const std::string& label);
  void write(const std::string& path) const;
  int steps() const { return steps_; }

 private:
  std::string events_;
  double offset_ = 0;
  int steps_ = 0;
};

}  // namespace megatrain
