#pragma once
// defines: TrainingCheckpoints — when a run writes checkpoints, and from which one it goes on.

#include <chrono>
#include <optional>

#include "checkpoint/checkpointer.h"
#include "cli/config.h"
#include "cli/session.h"

namespace megatrain {

class TrainingCheckpoints {
 public:
  /// `data`: fingerprint of the data sets and their vocabulary. Finds the checkpoint to go on from, if the
  /// config asks for one, and refuses what does not fit it; takes no memory and writes nothing.
  TrainingCheckpoints(const TrainConfig& config, std::string data);

  /// Nothing: the run starts from the beginning.
  const std::optional<CheckpointEntry>& from() const { return from_; }
  /// Fills the store from it. When a file is damaged, the checkpoint before it is taken instead, and said so.
  void load(const Session& session);
  /// What the run will need of the disk; refuses, or gives up checkpoints by time, when it is not there.
  /// `states`: bytes that will live on the same disk.
  void check_room(const Model& model, int64_t states);
  const std::string& disk() const { return disk_; }  ///< the same as a line
  /// Opens the writer.
  void open(const Session& session);
  /// Attaches it to the engine that updates the store.
  void watch(Engine& engine) { engine.observe_updates(writer_.get()); }

  /// True when a checkpoint should follow this many steps.
  bool due(int64_t steps) const;
  /// Starts one; a failure is said on stderr and does not stop the run.
  void save(const Engine& engine, int64_t steps, int64_t skipped);
  /// Says how the last one went, when it is done; `wait` for it if asked. False: it failed.
  bool report(bool wait);
  int64_t last_step() const { return last_step_; }  ///< of the last one that was begun; -1: none
  bool enabled() const { return config_.checkpoint_interval >= 0 && writer_; }

 private:
  void choose();
  void check_fits(const CheckpointEntry& entry) const;
  void note_differences(const CheckpointEntry& entry) const;
  const TrainConfig& config_;
  std::string directory_, data_, disk_;
  std::vector<CheckpointEntry> candidates_;  // newest first
  std::optional<CheckpointEntry> from_;
  std::unique_ptr<Checkpointer> writer_;
  bool by_time_ = true;
  int64_t last_step_ = -1;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace megatrain
