#include "schedule/simulator.h"

#include <algorithm>
#include <limits>

namespace megatrain {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// One pass over the list, lane by lane, in fluid time: rates change when a task starts or ends.
class Simulation {
 public:
  Simulation(const Schedule& s, const StepPlan& plan, CostModel& costs, double pieces)
      : s_(s), m_(costs.machine()), ends_(s.tasks.size(), kNever), issued_(s.tasks.size()) {
    double issue = m_.step_seconds / 2;
    for (size_t i = 0; i < s.tasks.size(); ++i) {
      const TaskCost c = costs.cost(plan, s.tasks[i], pieces);
      work_.push_back(s.tasks[i].lane == Lane::compute ? c.seconds : c.bytes);
      issue += m_.task_seconds * (s.tasks[i].micro >= 0 ? std::max(pieces, 1.0) : 1) + m_.op_seconds * c.ops;
      issued_[i] = issue;
      queue_[static_cast<size_t>(s.tasks[i].lane)].push_back(i);
    }
  }

  Timeline run() {
    Timeline t;
    t.spans.resize(s_.tasks.size());
    for (;;) {
      start_tasks(t);
      const double dt = next_change();
      if (dt == kNever) break;
      advance(dt, t);
    }
    t.seconds = now_ + m_.step_seconds / 2;
    return t;
  }

 private:
  bool ready(size_t task) const {
    if (issued_[task] > now_ + 1e-12) return false;
    return std::all_of(s_.tasks[task].waits.begin(), s_.tasks[task].waits.end(),
                       [&](int w) { return ends_[static_cast<size_t>(w)] <= now_; });
  }

  void start_tasks(Timeline& t) {
    for (bool started = true; started;) {
      started = false;
      for (size_t lane = 0; lane < kLanes; ++lane) {
        if (running_[lane] || head_[lane] == queue_[lane].size()) continue;
        const size_t task = queue_[lane][head_[lane]];
        if (!ready(task)) continue;
        t.spans[task].begin = now_;
        running_[lane] = true, left_[lane] = work_[task];
        if (left_[lane] <= 0) end(lane, t), started = true;
      }
    }
  }

  void end(size_t lane, Timeline& t) {
    const size_t task = queue_[lane][head_[lane]++];
    running_[lane] = false;
    ends_[task] = t.spans[task].end = now_;
  }

  double rate(size_t lane) const {
    const auto on = [&](Lane l) { return running_[static_cast<size_t>(l)]; };
    const bool both = on(Lane::h2d) && on(Lane::d2h), disks = on(Lane::disk_read) && on(Lane::disk_write);
    switch (static_cast<Lane>(lane)) {
      case Lane::compute:
        return 1;
      case Lane::h2d:
      case Lane::d2h: {
        const double alone = static_cast<Lane>(lane) == Lane::h2d ? m_.link_up : m_.link_down;
        const double free = both ? std::min(alone, m_.link_both) : alone;
        return on(Lane::host) ? std::min(free, both ? m_.link_busy : 2 * m_.link_busy) : free;
      }
      case Lane::host: {
        const double way = (m_.adam - m_.adam_busy) / 2;  // what each way of the link takes
        return m_.adam - way * (on(Lane::h2d) + on(Lane::d2h));
      }
      default: {
        const double alone = static_cast<Lane>(lane) == Lane::disk_read ? m_.disk_read : m_.disk_write;
        return disks ? std::min(alone, m_.disk_both) : alone;
      }
    }
  }

  double next_change() {
    double dt = kNever;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if (running_[lane]) dt = std::min(dt, left_[lane] / std::max(rate(lane), 1e-9));
      if (!running_[lane] && head_[lane] < queue_[lane].size()) {
        const double issue = issued_[queue_[lane][head_[lane]]] - now_;
        if (issue > 1e-12) dt = std::min(dt, issue);
      }
    }
    return dt;
  }

  void advance(double dt, Timeline& t) {
    double rates[kLanes];
    for (size_t lane = 0; lane < kLanes; ++lane) rates[lane] = running_[lane] ? rate(lane) : 0;
    now_ += dt;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if (!running_[lane]) continue;
      left_[lane] -= rates[lane] * dt;
      if (left_[lane] <= rates[lane] * 1e-10) end(lane, t);
    }
  }

  const Schedule& s_;
  const MachineProfile& m_;
  std::vector<double> ends_, issued_, work_;
  std::vector<size_t> queue_[kLanes];
  size_t head_[kLanes] = {0};
  bool running_[kLanes] = {false};
  double left_[kLanes] = {0}, now_ = 0;
};

// Waves of one task each.
StepPlan coarse(const StepPlan& plan, int64_t waves) {
  StepPlan p = plan;
  p.micro_batch = std::min(plan.batch, plan.micro_batch * plan.wave_size());
  p.wave = 1;
  p.batch = std::min(plan.batch, p.micro_batch * waves);
  return p;
}

StepEstimate simulate_waves(const StepPlan& plan, CostModel& costs, int64_t waves) {
  const StepPlan rough = coarse(plan, waves);
  const StepBuffers buffers(costs.model(), rough);
  const Schedule s = steady_step(costs.model(), rough, buffers);
  // A task of the rough plan stands for this many micro-batches of the real one.
  const double pieces = static_cast<double>(plan.wave_size());
  StepPlan priced = rough;
  priced.micro_batch = plan.micro_batch, priced.batch = plan.micro_batch * rough.micro_batches();
  const Timeline t = simulate(s, priced, costs, pieces);
  StepEstimate e;
  e.seconds = t.seconds;
  for (int lane = 0; lane < kLanes; ++lane) e.busy[lane] = t.busy(s, static_cast<Lane>(lane));
  return e;
}

}  // namespace

Timeline simulate(const Schedule& schedule, const StepPlan& plan, CostModel& costs, double pieces) {
  return Simulation(schedule, plan, costs, pieces).run();
}

Schedule steady_step(const Model& model, const StepPlan& plan, const StepBuffers& buffers) {
  StartState start{!plan.update_in_backward, std::vector<bool>(static_cast<size_t>(model.unit_count()))};
  for (int u = 0; u < model.unit_count(); ++u)
    start.loaded[static_cast<size_t>(u)] =
        buffers.resident(u) && (!plan.update_in_backward || buffers.at_home(u));
  return build_train_step(model, plan, buffers, start);
}

StepEstimate simulate_step(const StepPlan& plan, CostModel& costs) {
  constexpr int64_t kMost = 3;
  // A last micro-batch or wave may be smaller: time goes with the tokens.
  const double share = static_cast<double>(plan.batch) /
                       static_cast<double>(plan.micro_batch * plan.wave_size() * plan.waves());
  StepEstimate e = simulate_waves(plan, costs, std::min(kMost, plan.waves()));
  if (plan.waves() > kMost) {
    const StepEstimate fewer = simulate_waves(plan, costs, kMost - 1);
    const auto more = static_cast<double>(plan.waves() - kMost);
    e.seconds += more * (e.seconds - fewer.seconds);
    for (int lane = 0; lane < kLanes; ++lane) e.busy[lane] += more * (e.busy[lane] - fewer.busy[lane]);
  }
  const double lost = e.busy[static_cast<int>(Lane::compute)] * (1 - share);
  e.seconds -= lost, e.busy[static_cast<int>(Lane::compute)] -= lost;
  return e;
}

std::string StepEstimate::verdict() const {
  static const char* const names[] = {"the link", "compute", "the link", "the optimizer (host memory)",
                                      "the disk", "the disk"};
  return names[std::max_element(busy, busy + kLanes) - busy];
}

}  // namespace megatrain
