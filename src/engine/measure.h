#pragma once
// defines: measure_machine — the rates of this machine, for the planner and for `megatrain doctor`.

#include <functional>
#include <string>

#include "engine/devices.h"
#include "schedule/machine.h"

namespace megatrain {

struct MeasureOptions {
  int threads = 1;
  std::string disk_directory;                        ///< empty: the disk is not measured
  int64_t disk_bytes = int64_t{2} << 30;             ///< written and read there
  std::function<void(const std::string&)> progress;  ///< told what is measured next
};

/// Half a minute on a GPU. Takes a few GiB of device and host memory; products and attention run on random
/// data. Throws Error when the device cannot be used.
MachineProfile measure_machine(const DeviceChoice& choice, const MeasureOptions& options);

}  // namespace megatrain
