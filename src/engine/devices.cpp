#include "engine/devices.h"

#include "core/error.h"
#include "device/cpu/cpu_device.h"
#ifdef MT_WITH_CUDA
#include "device/cuda/cuda_device.h"
#include "ops/cuda/cuda_ops.h"
#endif

namespace megatrain {

std::string cuda_missing() {
#ifdef MT_WITH_CUDA
  return CudaDevice::unavailable();
#else
  return "this build has none: cmake --preset cuda";
#endif
}

std::vector<std::string> device_versions() {
#ifdef MT_WITH_CUDA
  return CudaDevice::versions();
#else
  return {};
#endif
}

DeviceChoice choose_device(const std::string& device, const std::string& compute) {
  DeviceChoice c;
  if (device != "cpu") {
    const std::string missing = cuda_missing();
    if (missing.empty())
      c.kind = DeviceKind::cuda;
    else if (device == "cuda")
      fail("device: cuda cannot be used (" + missing + "); set device to cpu or auto");
  }
  if (c.kind == DeviceKind::cpu) {
    c.name = "CPU";
    if (compute == "bf16") fail("compute: the CPU device computes in fp32 only; set compute to auto or fp32");
    return c;
  }
#ifdef MT_WITH_CUDA
  c.compute = compute == "fp32" ? DType::f32 : DType::bf16;
  c.usable_memory = CudaDevice::usable_memory();
  c.micro_batch_tokens = 16384;
  c.name = CudaDevice::device_name();
  c.workspace = cuda_workspace_bytes;
#endif
  return c;
}

std::unique_ptr<Device> make_device(const DeviceChoice& choice, int64_t memory_limit, int threads) {
#ifdef MT_WITH_CUDA
  if (choice.kind == DeviceKind::cuda) return std::make_unique<CudaDevice>(memory_limit);
#endif
  (void)choice;
  return std::make_unique<CpuDevice>(memory_limit, threads);
}

}  // namespace megatrain
