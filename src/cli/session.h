#pragma once
// defines: MachineOptions, Session — device, model and store of one command, put together in the order that
// refuses bad input before memory is taken.

#include <memory>
#include <optional>

#include "data/sequences.h"
#include "data/tokenizer.h"
#include "engine/devices.h"
#include "engine/engine.h"
#include "schedule/planner.h"

namespace megatrain {

/// The flags that every command shares.
struct MachineOptions {
  std::string device = "auto", compute = "auto";
  std::string memory_limit = "auto";
  std::string residency = "auto";
  int64_t threads = 0, micro_batch = 0;
  bool serialize = false, poison = false;
  std::string host_memory = "auto", disk = "0";
  std::string state_dir, machine;        ///< machine: a profile's file
  bool allow_nonfinite_weights = false;  ///< of an imported model
};

/// What the program takes beside the step: libraries, threads, their buffers.
int64_t program_bytes(DeviceKind kind, int threads);
/// The profile a command plans by: the file that is named, else what `doctor` wrote of this device, else
/// built in.
MachineProfile profile_for(const MachineOptions& machine, const DeviceChoice& choice);
/// Bytes of a state file that a killed run left in a directory: the next run takes them over.
int64_t leftover_states(const std::string& directory);
/// Disk that states may take in a directory (that need not exist yet), less `reserved` bytes.
int64_t disk_for_states(const MachineOptions& machine, int64_t reserved);

struct Session {
  DeviceChoice choice;
  int threads = 1;  ///< of the host's work: optimizer, initial weights
  std::unique_ptr<Model> model;
  MemoryPlan plan;
  MachineProfile profile;
  std::string state_dir;
  std::unique_ptr<Device> device;
  std::unique_ptr<StateStore> store;

  /// Plans only: throws when the model does not fit. Nothing is allocated yet.
  static Session plan_for(const ModelSpec& spec, PlanRequest request, const MachineOptions& machine);
  /// A plan for another use of the store that is there.
  MemoryPlan plan_again(PlanRequest request, const MachineOptions& machine) const;
  /// Takes the store's memory.
  void allocate();
  std::unique_ptr<Engine> make_engine(const MachineOptions& machine);
  /// "124.4M parameters, NVIDIA H200 in bf16, 16 threads (v4 kernels, OpenBLAS)".
  std::string summary() const;
};

/// A saved model, ready for evaluation or generation.
Session load_session(const std::string& directory, const PlanRequest& request, const MachineOptions& machine);

/// Mean loss over up to `max_batches` batches (0: all) of rows in order; a stream's last one is partial.
struct Evaluation {
  double loss = 0;
  int64_t tokens = 0;
};
Evaluation evaluate(Engine& engine, const Sequences& rows, int64_t max_batches);

/// Prints "  what: 40%" on stderr at most every two seconds.
ProgressFn show_progress(const std::string& what);

/// True once Ctrl-C (or SIGTERM, or a closed terminal's SIGHUP) came; a second Ctrl-C ends the process at
/// once.
bool interrupted();
void watch_interrupts();
/// A pipe or file that takes the output and breaks does not end the process (say, warn).
void outlive_the_log();

}  // namespace megatrain
