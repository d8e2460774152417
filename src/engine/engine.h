#pragma once
// defines: Engine — a model in training: host store, device arena, schedules, and the step.

#include <map>
#include <memory>
#include <vector>

#include "device/arena.h"
#include "engine/executor.h"
#include "optim/adamw.h"
#include "schedule/builder.h"

namespace megatrain {

/// What one step needs besides the batch.
struct StepSettings {
  AdamWConfig optimizer;
  double max_gradient_norm = 0;  ///< 0: no clipping
  uint64_t seed = 0;             ///< dropout
};

struct StepResult {
  double loss = 0;           ///< mean over the step's target tokens
  double gradient_norm = 0;  ///< global, before clipping
  int64_t target_tokens = 0;
  bool applied = true;  ///< false: loss or gradient was not finite and the update was dropped
  int bad_unit = -1;    ///< then: the last unit whose gradient is not finite, where the backward met it first
};

/// Told before and after each unit's update; before_update may wait. Of a unit that lives in host memory on
/// the host lane; of others by the caller of the step, before it starts and after it has ended.
class UpdateObserver {
 public:
  virtual ~UpdateObserver() = default;
  virtual void before_update(int unit) = 0;
  virtual void after_update(int unit) = 0;
};

/// Throws Error: without clipping such a step cannot be dropped whole.
[[noreturn]] void fail_not_finite(int64_t step, const UnitLayout& unit);

/// Trains one model on one device. The update of a step is applied just before the next step needs each
/// unit's weights, or by finish_update(); results are the same. Not thread-safe.
class Engine {
 public:
  struct Options {
    ExecOptions exec;
    bool check_schedule = true;  ///< verify every schedule before its first run
    int host_threads = 1;
    int rank = 0, world = 1;  ///< reserved for several GPUs; world is 1 so far
  };

  /// Takes the device memory and pinned host buffers. `store` outlives the engine.
  Engine(Device& device, const Model& model, StateStore& store, const StepPlan& plan, const Options& options);
  ~Engine();

  /// Forward, backward and (at the latest in the next call) the update. tokens, targets: [batch · seq_len];
  /// a negative target is ignored. `plan.batch` sequences. A packed plan takes positions: each token's place
  /// in its document; none: every sequence is one document.
  StepResult train_step(const int32_t* tokens, const int32_t* targets, const StepSettings& settings,
                        const int32_t* positions = nullptr);
  /// True when the last step's update is still to come.
  bool update_pending() const { return pending_.active; }
  /// Updates applied (or pending) so far: Adam's step, and the dropout masks' key.
  int64_t optimizer_steps() const { return optimizer_steps_; }
  /// Goes on after that many updates: the store has been filled from a checkpoint.
  void resume(int64_t optimizer_steps);
  /// null: none. Must outlive the engine's next call.
  void observe_updates(UpdateObserver* observer) { observer_ = observer; }
  /// Applies the pending update: call before reading the store (evaluation does so itself).
  void finish_update();
  /// Sum of losses over the batch's target tokens, without dropout.
  double evaluate(const int32_t* tokens, const int32_t* targets, const int32_t* positions = nullptr);
  /// The loss sum of each micro-batch of the last evaluate() (with micro-batches of one: of each sequence).
  const double* losses() const;
  /// logits [sequences, V] (host memory, valid until the next call) of one position; needs a plan with
  /// training = false and one micro-batch.
  const float* logits(const int32_t* tokens, int64_t position, const int32_t* positions = nullptr);
  /// Generation, with a plan that has a cache: `count` (at most seq_len) tokens of each sequence, [batch,
  /// count], that follow the past[b] tokens which the cache holds of sequence b. Their keys and values are
  /// kept. Returns logits [batch, V] of the last token, as logits() does. Tokens beyond a sequence's end are
  /// padding: what they leave in the cache is overwritten by the next call, if past says so.
  const float* decode(const int32_t* tokens, int64_t count, const int32_t* past);

  /// Runs a schedule of the caller's making over this engine's buffers (experiments, fault tests); returns
  /// the sum of losses. Not checked: the caller does that.
  double run_schedule(const Schedule& schedule, const ExecOptions& exec, const int32_t* tokens,
                      const int32_t* targets, const StepSettings& settings);
  /// Gradient of `unit` as the last train_step left it on the host, fp32, laid out as the unit, where its
  /// home is there. Overwritten by the next step; with update_in_backward only the last unit of each slab is
  /// still there.
  const float* host_gradient(int unit) const {
    return static_cast<const float*>(memory_[static_cast<size_t>(buffers_.host_gradient(unit))]);
  }
  const StepPlan& plan() const { return plan_; }
  int64_t vocab_size() const { return model_.spec().vocab_size; }
  const StepBuffers& buffers() const { return buffers_; }
  const Arena& arena() const { return arena_; }
  /// Timeline and schedule of the last run.
  const Timeline& timeline() const { return timeline_; }
  const Schedule& schedule() const { return *last_; }

 private:
  class Runner;
  struct PendingUpdate {
    bool active = false;
    AdamWConfig optimizer;
    double scale = 1;
  };

  void place_buffers();
  void place_buffer(const Buffer& b, size_t index);
  template <class F>
  void for_updated_elsewhere(const Schedule& schedule, F&& f) const;
  Schedule build(int kind, bool pending) const;
  const float* run_logits();
  const Schedule& cached(int kind, bool pending);
  void run(const Schedule& schedule, const StepSettings* settings);
  int64_t set_batch(const int32_t* tokens, const int32_t* targets, const int32_t* positions);
  void check_applied() const;
  double loss_sum() const;
  double squared_norm() const;

  Device& device_;
  const Model& model_;
  StateStore& store_;
  StepPlan plan_;
  Options options_;
  StepBuffers buffers_;
  Arena arena_;
  Executor executor_;
  std::vector<void*> memory_;                      // per buffer
  std::vector<std::pair<void*, int64_t>> pinned_;  // host buffers this engine owns
  int32_t* host_tokens_ = nullptr;  // tokens, then targets (then positions, spans), per micro-batch
  std::vector<bool> loaded_;        // per unit: resident buffer holds the current weights
  PendingUpdate pending_;
  UpdateObserver* observer_ = nullptr;
  int64_t optimizer_steps_ = 0, target_tokens_ = 0, logits_position_ = 0;
  int64_t decode_count_ = 0;                        // tokens of a sequence in a decode(), 0: not in one
  std::vector<std::vector<DocumentGroup>> groups_;  // per micro-batch, of a packed plan
  std::map<std::vector<int>, Schedule> schedules_;
  const Schedule* last_ = nullptr;
  Timeline timeline_;
};

}  // namespace megatrain
