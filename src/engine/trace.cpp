#include "engine/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/file.h"

namespace megatrain {

void TraceFile::add(const Schedule& s, const Timeline& t, const std::string& label, const StepPlan& plan,
                    CostModel& costs) {
  for (size_t i = 0; i < s.tasks.size(); ++i) {
    const Task& task = s.tasks[i];
    const auto at = [&](double seconds) { return (offset_ + seconds) * 1e6; };
    const int row = static_cast<int>(task.lane) + 1;
    std::string name = name_of(task.kind);
    if (task.unit >= 0) name += fmt::format(" u{}", task.unit);
    if (task.micro >= 0) name += fmt::format(" m{}", task.micro);
    events_ += fmt::format(
        ",\n{{\"name\":\"{}\",\"cat\":\"{}\",\"ph\":\"X\",\"pid\":1,\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f}}"
        "}",
        name, label, row, at(t.spans[i].begin), (t.spans[i].end - t.spans[i].begin) * 1e6);
    for (const int w : task.waits) {
      const auto from = static_cast<size_t>(w);
      events_ += fmt::format(
          ",\n{{\"name\":\"wait\",\"cat\":\"wait\",\"ph\":\"s\",\"id\":{0},\"pid\":1,\"tid\":{1},\"ts\":{2:."
          "3f}}}"
          ",\n{{\"name\":\"wait\",\"cat\":\"wait\",\"ph\":\"f\",\"bp\":\"e\",\"id\":{0},\"pid\":1,\"tid\":{3}"
          ",\"ts\":"
          "{4:.3f}}}",
          ++arrows_, static_cast<int>(s.tasks[from].lane) + 1, at(t.spans[from].end), row,
          at(t.spans[i].begin));
    }
  }
  add_counters(s, t, plan, costs);
  const Timeline expected = simulate(s, plan, costs);
  predicted_ += expected.seconds, measured_ += t.seconds;
  for (size_t i = 0; i < s.tasks.size(); ++i)
    for (const int kind : {static_cast<int>(s.tasks[i].kind), -1}) {
      Row& r = rows_[{static_cast<int>(s.tasks[i].lane), kind}];
      r.predicted += expected.spans[i].end - expected.spans[i].begin;
      r.measured += t.spans[i].end - t.spans[i].begin, ++r.tasks;
    }
  offset_ += t.seconds;
  ++steps_;
}

void TraceFile::counter(const char* name, double seconds, double value) {
  events_ +=
      fmt::format(",\n{{\"name\":\"{}\",\"ph\":\"C\",\"pid\":1,\"ts\":{:.3f},\"args\":{{\"value\":{:.4g}}}}}",
                  name, (offset_ + seconds) * 1e6, value);
}

void TraceFile::add_counters(const Schedule& s, const Timeline& t, const StepPlan& plan, CostModel& costs) {
  std::vector<std::pair<double, double>>
      changes;  // bytes of device buffers whose content somebody still reads
  double always[kPlaceCount] = {0};
  for (const Buffer& b : s.buffers)
    if (b.persistent || b.place != Place::device)
      always[static_cast<int>(b.place)] += static_cast<double>(b.bytes);
  std::vector<bool> live(s.buffers.size(), false);
  for (size_t i = 0; i < s.tasks.size(); ++i) {
    const Task& task = s.tasks[i];
    const double length = t.spans[i].end - t.spans[i].begin, bytes = costs.cost(plan, task).bytes;
    if (task.lane != Lane::compute && task.lane != Lane::host && bytes > 1e4 && length > 0) {
      const std::string name = std::string(name_of(task.lane)) + " GB/s";
      counter(name.c_str(), t.spans[i].begin, bytes / length / 1e9), counter(name.c_str(), t.spans[i].end, 0);
    }
    for (const Access& a : task.accesses) {
      const auto b = static_cast<size_t>(a.buffer);
      if (!a.writes || live[b] || s.buffers[b].persistent || s.buffers[b].place != Place::device) continue;
      live[b] = true, changes.emplace_back(t.spans[i].begin, static_cast<double>(s.buffers[b].bytes));
    }
    for (const int f : task.frees) {
      const auto b = static_cast<size_t>(f);
      if (!live[b]) continue;
      live[b] = false, changes.emplace_back(t.spans[i].end, -static_cast<double>(s.buffers[b].bytes));
    }
  }
  std::sort(changes.begin(), changes.end());
  counter("host GiB", 0, always[1] / (1 << 30));
  if (always[2] > 0) counter("disk GiB", 0, always[2] / (1 << 30));
  double used = always[0];
  counter("device GiB with content", 0, used / (1 << 30));
  for (const auto& [at, bytes] : changes) counter("device GiB with content", at, (used += bytes) / (1 << 30));
}

std::string TraceFile::compare_text() const {
  if (steps_ == 0) return "";
  struct Line {
    std::string name;
    Row row;
  };
  std::vector<Line> lanes, kinds;
  for (const auto& [key, row] : rows_) {
    const std::string lane = name_of(static_cast<Lane>(key.first));
    if (key.second < 0)
      lanes.push_back({lane, row});
    else if (std::max(row.predicted, row.measured) > 1e-4 * measured_)
      kinds.push_back({lane + ": " + name_of(static_cast<TaskKind>(key.second)), row});
  }
  std::sort(kinds.begin(), kinds.end(), [](const Line& a, const Line& b) {
    return std::fabs(a.row.measured - a.row.predicted) > std::fabs(b.row.measured - b.row.predicted);
  });
  const double n = steps_;
  std::string out =
      fmt::format("  {:<28}{:>12}{:>12}{:>10}\n", "a step of the trace", "predicted", "measured", "tasks");
  const auto line = [&](const std::string& name, double predicted, double measured, double tasks) {
    out += fmt::format("  {:<28}{:>9.2f} ms{:>9.2f} ms{:>10.0f}{:>+8.1f}%\n", name, predicted / n * 1e3,
                       measured / n * 1e3, tasks / n, 100 * (measured / std::max(predicted, 1e-12) - 1));
  };
  line("whole step", predicted_, measured_, 0);
  for (const Line& l : lanes) line(l.name, l.row.predicted, l.row.measured, static_cast<double>(l.row.tasks));
  for (const Line& l : kinds)
    line("  " + l.name, l.row.predicted, l.row.measured, static_cast<double>(l.row.tasks));
  return out;
}

void TraceFile::write(const std::string& path) const {
  std::string out =
      "{\"traceEvents\":[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":{\"name\":"
      "\"megatrain\"}}";
  for (int lane = 0; lane < kLanes; ++lane)
    out += fmt::format(
        ",\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":{},\"args\":{{\"name\":\"{}\"}}}}",
        lane + 1, name_of(static_cast<Lane>(lane)));
  write_file_atomically(path, out + events_ + "\n]}\n");
}

}  // namespace megatrain
