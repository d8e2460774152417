#include "schedule/schedule.h"

#include <fmt/format.h>

#include <algorithm>

namespace megatrain {

const char* name_of(Lane lane) {
  static const char* const names[] = {"H2D", "compute", "D2H", "host", "disk read", "disk write"};
  return names[static_cast<size_t>(lane)];
}

const char* name_of(TaskKind kind) {
  static const char* const names[] = {
      "optimize",       "read_weights",   "load_weights",  "offload_weights", "write_weights",
      "read_states",    "write_states",   "read_gradient", "load_gradient",   "offload_gradient",
      "write_gradient", "load_input",     "offload_input", "load_tokens",     "embed_forward",
      "block_forward",  "head_loss",      "head_eval",     "head_logits",     "zero_gradient",
      "block_backward", "embed_backward", "add_gradient",  "gradient_norm",   "read_norm",
      "read_back"};
  return names[static_cast<size_t>(kind)];
}

std::string describe(const Content& c) {
  static const char* const names[] = {
      "nothing",           "weights", "states",   "gradient", "activation", "activation gradient",
      "saved activations", "tokens",  "a result", "scratch"};
  std::string s = names[static_cast<size_t>(c.kind)];
  if (c.unit >= 0) s += fmt::format(" of unit {}", c.unit);
  if (c.micro >= 0) s += fmt::format(", micro-batch {}", c.micro);
  if (c.kind == Holds::weights || c.kind == Holds::states || c.kind == Holds::gradient)
    s += fmt::format(" v{}", c.version);
  return s;
}

std::string describe(const Task& t, int index) {
  std::string s = fmt::format("task {} {}", index, name_of(t.kind));
  if (t.unit >= 0) s += fmt::format(" unit {}", t.unit);
  if (t.micro >= 0) s += fmt::format(" micro-batch {}", t.micro);
  return s;
}

HappensBefore::HappensBefore(const Schedule& s) {
  std::vector<int> last(kLanes, -1);
  for (int i = 0; i < static_cast<int>(s.tasks.size()); ++i) {
    const Task& t = s.tasks[static_cast<size_t>(i)];
    const auto lane = static_cast<size_t>(t.lane);
    std::vector<int> clock(kLanes, -1);
    auto join = [&](int before) {
      const auto b = static_cast<size_t>(before);
      for (size_t l = 0; l < kLanes; ++l) clock[l] = std::max(clock[l], clocks_[b][l]);
      auto& own = clock[static_cast<size_t>(lanes_[b])];
      own = std::max(own, before);
    };
    if (last[lane] >= 0) join(last[lane]);
    for (int w : t.waits)
      if (w >= 0 && w < i) join(w);
    lanes_.push_back(t.lane);
    clocks_.push_back(std::move(clock));
    last[lane] = i;
  }
}

bool HappensBefore::before(int a, int b) const {
  return clocks_[static_cast<size_t>(b)][static_cast<size_t>(lanes_[static_cast<size_t>(a)])] >= a;
}

namespace {

// Follows one buffer through the list: last writer, readers since, content.
struct Life {
  int writer = -1;
  std::vector<int> readers;
  Content content;
};

class Checker {
 public:
  explicit Checker(const Schedule& s) : s_(s), hb_(s) {
    for (const auto& b : s.buffers) lives_.push_back({-1, {}, b.initial});
  }

  std::vector<std::string> run() {
    for (int i = 0; i < static_cast<int>(s_.tasks.size()); ++i) {
      const Task& t = s_.tasks[static_cast<size_t>(i)];
      check_waits(t, i);
      for (const Access& a : t.accesses) {
        if (a.buffer < 0 || a.buffer >= static_cast<int>(lives_.size()))
          report(i, fmt::format("names buffer {}, which does not exist", a.buffer));
        else
          check_access(a, i);
      }
    }
    return std::move(found_);
  }

 private:
  void report(int i, const std::string& what) {
    found_.push_back(describe(s_.tasks[static_cast<size_t>(i)], i) + ": " + what);
  }

  void check_waits(const Task& t, int i) {
    for (int w : t.waits) {
      if (w < 0 || w >= static_cast<int>(s_.tasks.size()))
        report(i, fmt::format("waits for task {}, which does not exist", w));
      else if (w >= i)
        report(i, fmt::format("waits for the later {}: a deadlock",
                              describe(s_.tasks[static_cast<size_t>(w)], w)));
    }
  }

  void ordered(int earlier, int i, const Access& a, const char* hazard) {
    if (earlier < 0 || earlier == i || hb_.before(earlier, i)) return;
    report(i, fmt::format("{} '{}' without waiting for {}", hazard,
                          s_.buffers[static_cast<size_t>(a.buffer)].name,
                          describe(s_.tasks[static_cast<size_t>(earlier)], earlier)));
  }

  void check_access(const Access& a, int i) {
    Life& life = lives_[static_cast<size_t>(a.buffer)];
    const std::string& name = s_.buffers[static_cast<size_t>(a.buffer)].name;
    if (a.reads) {
      ordered(life.writer, i, a, "reads");
      if (life.content.kind == Holds::nothing)
        report(i, fmt::format("reads '{}' before anything was written there", name));
      else if (!(life.content == a.before))
        report(i, fmt::format("expects {} in '{}', which holds {}", describe(a.before), name,
                              describe(life.content)));
      if (!a.writes) life.readers.push_back(i);
    }
    if (!a.writes) return;
    ordered(life.writer, i, a, "overwrites");
    for (int r : life.readers) ordered(r, i, a, "overwrites, in use,");
    life = {i, {}, a.after};
  }

  const Schedule& s_;
  HappensBefore hb_;
  std::vector<Life> lives_;
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> check(const Schedule& schedule) {
  return Checker(schedule).run();
}

void mark_frees(Schedule& s) {
  const HappensBefore hb(s);
  std::vector<std::vector<int>> users(s.buffers.size());  // since the last overwrite, in list order
  auto end_of_life = [&](size_t buffer) {
    auto& u = users[buffer];
    if (u.empty()) return;
    const int last = u.back();
    const bool ordered =
        std::all_of(u.begin(), u.end(), [&](int t) { return t == last || hb.before(t, last); });
    if (ordered) s.tasks[static_cast<size_t>(last)].frees.push_back(static_cast<int>(buffer));
    u.clear();
  };
  for (auto& t : s.tasks) t.frees.clear();
  for (int i = 0; i < static_cast<int>(s.tasks.size()); ++i)
    for (const Access& a : s.tasks[static_cast<size_t>(i)].accesses) {
      const auto b = static_cast<size_t>(a.buffer);
      if (s.buffers[b].place != Place::device) continue;
      if (a.writes && !a.reads) end_of_life(b);
      users[b].push_back(i);
    }
  for (size_t b = 0; b < s.buffers.size(); ++b)
    if (s.buffers[b].place == Place::device && !s.buffers[b].persistent) end_of_life(b);
}

}  // namespace megatrain
