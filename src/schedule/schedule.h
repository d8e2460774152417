#pragma once
// defines: Lane, TaskKind, Content, Access, Task, Buffer, Schedule, check, mark_frees — a training step
// as a value: small tasks on lanes over named buffers, with explicit waits between lanes.

#include <string>
#include <vector>

#include "core/dtype.h"
#include "store/homes.h"

namespace megatrain {

/// Tasks of one lane run in list order; lanes run beside each other. The last three are host threads.
enum class Lane : uint8_t { h2d, compute, d2h, host, disk_read, disk_write };
constexpr int kLanes = 6;
const char* name_of(Lane lane);
constexpr bool on_host(Lane lane) {
  return lane >= Lane::host;
}

/// Moves go between two places on the lane of that way: read (disk to host), load (host to device), offload
/// (device to host), write (host to disk). Their first access is where from, their second where to.
enum class TaskKind : uint8_t {
  optimize,  // host or compute, where the states live: gradient(u) -> weights(u), states(u)
  read_weights,
  load_weights,
  offload_weights,
  write_weights,
  read_states,
  write_states,
  read_gradient,
  load_gradient,  // also to go on adding in a later wave
  offload_gradient,
  write_gradient,
  load_input,  // of a block and micro-batch
  offload_input,
  load_tokens,     // h2d: tokens and targets of one micro-batch
  embed_forward,   // compute
  block_forward,   // compute
  head_loss,       // compute: loss and the head's backward
  head_eval,       // compute: loss only
  head_logits,     // compute: logits of one position
  zero_gradient,   // compute
  block_backward,  // compute: recompute and backward
  embed_backward,  // compute
  add_gradient,    // compute: tied model: gradient from the embedding += into the head's
  gradient_norm,   // compute: sum of squares of a finished gradient
  read_norm,       // d2h: that norm
  read_back        // d2h: losses or logits -> host
};
const char* name_of(TaskKind kind);

/// What a buffer holds. A read names what it expects, so that check() sees a buffer that was reused.
enum class Holds : uint8_t {
  nothing,
  weights,
  states,
  gradient,
  activation,
  activation_gradient,
  saved,
  tokens,
  result,
  scratch
};

struct Content {
  Holds kind = Holds::nothing;
  int unit = -1, micro = -1;
  int version = 0;  ///< weights, states: updates so far; gradient: micro-batches added so far
  bool operator==(const Content&) const = default;
};
std::string describe(const Content& content);

/// One buffer that a task reads (expects `before`) and/or writes (leaves `after`).
struct Access {
  int buffer = -1;
  bool reads = false, writes = false;
  Content before, after;
};

inline Access read(int buffer, Content c) {
  return {buffer, true, false, c, c};
}
inline Access write(int buffer, Content c) {
  return {buffer, false, true, {}, c};
}
inline Access update(int buffer, Content from, Content to) {
  return {buffer, true, true, from, to};
}

struct Task {
  TaskKind kind;
  Lane lane;
  int unit = -1, micro = -1;
  std::vector<Access> accesses;
  std::vector<int> waits;  ///< tasks of other lanes that must end first (earlier in the list)
  std::vector<int> frees;  ///< buffers whose content nobody reads after this task (mark_frees)
};
std::string describe(const Task& task, int index);

struct Buffer {
  std::string name;
  const char* group = "";  ///< line of the memory table it belongs to
  Place place = Place::device;
  int64_t bytes = 0;
  Content initial;          ///< what it holds before the first task
  bool persistent = false;  ///< content is used by a later schedule
  bool in_store = false;    ///< the StateStore owns it
};

struct Schedule {
  std::string name;
  std::vector<Buffer> buffers;
  std::vector<Task> tasks;
};

/// Every hazard found, one line each; empty means the schedule is safe. Independent of the builder: it
/// derives happens-before from lane order and waits alone and looks for reads before writes, wrong
/// content, overwrites in use, unordered writes, bad waits and bad indices.
std::vector<std::string> check(const Schedule& schedule);

/// Happens-before: clock(t)[lane] is the last task on `lane` that surely ended before t starts (-1: none).
class HappensBefore {
 public:
  explicit HappensBefore(const Schedule& schedule);
  /// True when task `a` surely ended before task `b` starts.
  bool before(int a, int b) const;

 private:
  std::vector<Lane> lanes_;
  std::vector<std::vector<int>> clocks_;
};

/// Fills Task::frees: the last reader of each content, where it is ordered behind all other readers.
void mark_frees(Schedule& schedule);

}  // namespace megatrain
