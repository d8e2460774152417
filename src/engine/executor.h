#pragma once
// defines: Executor, TaskRunner, ExecOptions — runs a Schedule on a device's streams.

#include <functional>
#include <memory>
#include <vector>

#include "device/cpu/cpu_stream.h"
#include "schedule/timeline.h"

namespace megatrain {

/// Enqueues one task's work on its lane's stream. Must not block.
using TaskRunner = std::function<void(const Task&, Stream&)>;

struct ExecOptions {
  bool serialize = false;  ///< one task at a time: same bits as overlapped, no concurrency
  bool poison = false;     ///< fill a buffer with NaN once nobody reads its content any more
  bool gate = false;       ///< race tests: CPU lanes start only when all is queued, so that queueing itself
                           ///< orders nothing (a step of at most a queue's length)
  uint64_t jitter = 0;     ///< race tests: CPU lanes pause at random (this seed) before tasks; 0: no
};

class Executor {
 public:
  /// `host_threads`: team of the host lane (the optimizer).
  Executor(Device& device, int host_threads);

  /// Runs every task and waits for the end. `buffers[i]` is the memory of schedule.buffers[i] (poison).
  /// Throws what a task threw.
  void run(const Schedule& schedule, const std::vector<void*>& buffers, const TaskRunner& runner,
           const ExecOptions& options, Timeline* timeline);
  Stream& stream(Lane lane) { return *streams_[static_cast<size_t>(lane)]; }

 private:
  void prepare(const Schedule& schedule);
  void dispatch(const Schedule& schedule, const std::vector<void*>& buffers, const TaskRunner& runner,
                const ExecOptions& options);
  void issue(const Schedule& schedule, size_t task, const std::vector<void*>& buffers,
             const TaskRunner& runner, const ExecOptions& options);
  void synchronize();
  void collect(const Schedule& schedule, Timeline* timeline) const;

  Device& device_;
  std::unique_ptr<Stream> streams_[kLanes];
  std::vector<std::unique_ptr<Event>> device_events_;  // grown once, then reused
  std::vector<std::unique_ptr<CpuEvent>> host_events_;
  CpuEvent gate_;
  std::vector<Event*> event_of_;  // per task, null if nobody waits
  std::vector<int> stamp_of_;     // per task, within its lane
};

}  // namespace megatrain
