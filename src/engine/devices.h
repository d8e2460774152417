#pragma once
// defines: DeviceChoice, choose_device, make_device — which device a run uses and what the planner must know
// of it before it exists.

#include <memory>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace megatrain {

struct DeviceChoice {
  DeviceKind kind = DeviceKind::cpu;
  DType compute = DType::f32;
  int64_t usable_memory = 0;          ///< bytes; 0: shares the host's memory
  int64_t micro_batch_tokens = 4096;  ///< beyond this, larger matrix products gain nothing
  std::string name;                   ///< of the device
  int64_t (*workspace)(const OpShapes&) = nullptr;
};

/// device: auto | cpu | cuda; compute: auto | bf16 | fp32. Throws Error when the machine or the build lacks
/// it.
DeviceChoice choose_device(const std::string& device, const std::string& compute);
/// Why there is no CUDA device, or empty.
std::string cuda_missing();
/// Driver and libraries of the CUDA build, a line each.
std::vector<std::string> device_versions();
/// `memory_limit` in bytes; `threads` for the CPU device's compute stream.
std::unique_ptr<Device> make_device(const DeviceChoice& choice, int64_t memory_limit, int threads);

}  // namespace megatrain
