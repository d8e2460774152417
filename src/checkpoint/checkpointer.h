#pragma once
// defines: Checkpointer, load_checkpoint — a run's state to disk while training goes on, and back.

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "checkpoint/manifest.h"
#include "engine/engine.h"

namespace megatrain {

struct CheckpointPolicy {
  std::string directory;        ///< <out_dir>/checkpoints
  int64_t keep = 2, every = 0;  ///< see prune_checkpoints
  int threads = 4;              ///< writers, each with kWriterBytes of memory
};

/// Writes straight from the store, unit by unit, in the order in which updates will come: no copy is made. A
/// unit's next update waits until that unit is on disk (copy-before-write without the copy), so training
/// stalls only where the disk is slower than a step. Files lie under a temporary name until all are synced
/// and the manifest is written; then the directory is renamed.
class Checkpointer : public UpdateObserver {
 public:
  struct Report {
    int64_t step = 0, bytes = 0;
    double seconds = 0, stalled = 0;  ///< stalled: what updates waited
    std::string error;                ///< empty: the checkpoint is whole
  };

  Checkpointer(const Model& model, const StateStore& store, CheckpointPolicy policy);
  /// What is being written is given up.
  ~Checkpointer() override;

  /// Begins a checkpoint of the state after the last step. `pending`: its update is still to come (it will be
  /// waited for, unit by unit). Waits for an earlier checkpoint first, so a step, or finish_update(), must
  /// have come since that was begun. Throws Error when the disk lacks room.
  void start(Manifest manifest, bool pending);
  /// The result of the last one, once, when it is done; `wait` for it if asked.
  std::optional<Report> finished(bool wait);

  void before_update(int unit) override;
  void after_update(int unit) override;

 private:
  enum class Phase { idle, awaiting, ready, written };
  void write();                                 // the coordinating thread
  void write_units(std::exception_ptr& error);  // each writer
  int next_unit();
  void commit();
  void join();

  const Model& model_;
  const StateStore& store_;
  CheckpointPolicy policy_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Phase> phase_;
  std::vector<int> order_;
  size_t next_ = 0;
  bool stop_ = false, done_ = true;
  double stalled_ = 0;
  Manifest manifest_;
  std::string temporary_;
  std::optional<Report> report_;
  std::thread thread_;
};

/// Bytes that one checkpoint of this model takes.
int64_t checkpoint_bytes(const Model& model);
/// Fills the store from a checkpoint, checking every hash. Throws Error naming the file that is damaged.
void load_checkpoint(const CheckpointEntry& entry, const Model& model, StateStore& store, int threads,
                     const ProgressFn& progress);
/// Throws Error when the checkpoint's units are not the model's.
void check_same_model(const CheckpointEntry& entry, const Model& model);

}  // namespace megatrain
