#include "engine/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>

#include "core/error.h"
#include "core/rng.h"
#include "ops/ops.h"

#ifdef MT_WITH_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

namespace megatrain {
namespace {

/// Names a task for profilers while it is issued (Nsight shows it beside the kernels).
class ProfilerRange {
 public:
#ifdef MT_WITH_CUDA
  explicit ProfilerRange(const std::string& name) {
    nvtxRangePushA(name.c_str());
  }
  ~ProfilerRange() {
    nvtxRangePop();
  }
#else
  explicit ProfilerRange(const std::string& /*name*/) {}
  ~ProfilerRange() = default;
#endif
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

}  // namespace

Executor::Executor(Device& device, int host_threads) : device_(device) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto l = static_cast<Lane>(lane);
    if (on_host(l))
      streams_[lane] = std::make_unique<CpuStream>(name_of(l), l == Lane::host ? host_threads : 1);
    else
      streams_[lane] = device.new_stream(name_of(static_cast<Lane>(lane)));
  }
}

// Events and time stamps are made before the first task runs: nothing is allocated inside a step.
void Executor::prepare(const Schedule& s) {
  event_of_.assign(s.tasks.size(), nullptr);
  stamp_of_.assign(s.tasks.size(), 0);
  int stamps[kLanes] = {0};
  std::vector<bool> waited(s.tasks.size(), false);
  for (const Task& t : s.tasks)
    for (int w : t.waits) waited[static_cast<size_t>(w)] = true;
  size_t device_used = 0, host_used = 0;
  for (size_t i = 0; i < s.tasks.size(); ++i) {
    const bool host = on_host(s.tasks[i].lane);
    int& stamp = stamps[static_cast<size_t>(s.tasks[i].lane)];
    stamp_of_[i] = stamp;
    stamp += 2;
    if (!waited[i]) continue;
    if (host && host_used == host_events_.size()) host_events_.push_back(device_.new_host_event());
    if (!host && device_used == device_events_.size()) device_events_.push_back(device_.new_event());
    event_of_[i] = host ? host_events_[host_used++].get() : device_events_[device_used++].get();
  }
  for (size_t lane = 0; lane < kLanes; ++lane) streams_[lane]->reserve_stamps(stamps[lane]);
}

void Executor::dispatch(const Schedule& s, const std::vector<void*>& buffers, const TaskRunner& runner,
                        const ExecOptions& options) {
  for (size_t i = 0; i < s.tasks.size(); ++i) {
    try {
      issue(s, i, buffers, runner, options);
    } catch (const Error& e) {
      fail(fmt::format("{}, {}: {}", s.name, describe(s.tasks[i], static_cast<int>(i)), e.what()));
    }
  }
}

namespace {

// A quarter of the tasks, up to 0.2 ms: lanes meet in other orders than they would.
void pause_at_random(Stream& q, uint64_t seed, size_t task) {
  auto* lane = dynamic_cast<CpuStream*>(&q);
  const uint32_t r = random_u32(seed, 77, task);
  if (!lane || r % 4 != 0) return;
  lane->enqueue([r](ThreadPool&) { std::this_thread::sleep_for(std::chrono::microseconds((r >> 8) % 200)); });
}

}  // namespace

void Executor::issue(const Schedule& s, size_t i, const std::vector<void*>& buffers, const TaskRunner& runner,
                     const ExecOptions& options) {
  const Task& t = s.tasks[i];
  Stream& q = stream(t.lane);
  for (int w : t.waits) q.wait(*event_of_[static_cast<size_t>(w)]);
  if (options.jitter != 0) pause_at_random(q, options.jitter, i);
  const ProfilerRange range(describe(t, static_cast<int>(i)));
  q.stamp(stamp_of_[i]);
  runner(t, q);
  if (options.poison && !on_host(t.lane))
    for (int b : t.frees)
      if (s.buffers[static_cast<size_t>(b)].bytes > 0)
        device_.ops().fill_bytes(q, buffers[static_cast<size_t>(b)], 0xff,
                                 s.buffers[static_cast<size_t>(b)].bytes);
  q.stamp(stamp_of_[i] + 1);
  if (event_of_[i]) q.record(*event_of_[i]);
  if (options.serialize) q.synchronize();
}

void Executor::synchronize() {
  std::exception_ptr first;
  // Against the flow of data: meeting a producer first and then its consumer would order the two by accident
  // and hide a missing wait from ThreadSanitizer.
  for (int lane = kLanes - 1; lane >= 0; --lane) {
    try {
      streams_[lane]->synchronize();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void Executor::collect(const Schedule& s, Timeline* out) const {
  out->spans.resize(s.tasks.size());
  double start = std::numeric_limits<double>::infinity(), end = 0;
  for (size_t i = 0; i < s.tasks.size(); ++i) {
    const Stream& q = *streams_[static_cast<size_t>(s.tasks[i].lane)];
    out->spans[i] = {q.stamp_seconds(stamp_of_[i]), q.stamp_seconds(stamp_of_[i] + 1)};
    start = std::min(start, out->spans[i].begin);
    end = std::max(end, out->spans[i].end);
  }
  for (auto& span : out->spans) span.begin -= start, span.end -= start;
  out->seconds = s.tasks.empty() ? 0 : end - start;
}

void Executor::run(const Schedule& s, const std::vector<void*>& buffers, const TaskRunner& runner,
                   const ExecOptions& options, Timeline* timeline) {
  prepare(s);
  const uint64_t open = gate_.next_ticket();
  for (auto& q : streams_)
    if (options.gate && dynamic_cast<CpuStream*>(q.get())) q->wait(gate_);
  std::exception_ptr error;
  try {
    dispatch(s, buffers, runner, options);
  } catch (...) {  // what is queued still refers to memory of ours: let it end first
    error = std::current_exception();
  }
  gate_.signal(open);
  if (error) {
    try {
      synchronize();
    } catch (...) {
    }
    std::rethrow_exception(error);
  }
  synchronize();
  if (timeline) collect(s, timeline);
}

}  // namespace megatrain
