#pragma once
// defines: test_choice, test_device — the device the engine's tests run on: CPU, or CUDA when
// MT_TEST_DEVICE=cuda (fp32, so that the same tolerances hold) or cuda-bf16.

#include <cstdlib>
#include <string>

#include "engine/devices.h"

namespace megatrain {

inline const DeviceChoice& test_choice() {
  static const DeviceChoice choice = [] {
    const char* name = std::getenv("MT_TEST_DEVICE");
    const std::string device = name ? name : "cpu";
    return choose_device(device.substr(0, device.find('-')), device == "cuda-bf16" ? "bf16" : "fp32");
  }();
  return choice;
}

inline bool test_in_bf16() {
  return test_choice().compute == DType::bf16;
}

inline std::unique_ptr<Device> test_device(int threads = 2) {
  return make_device(test_choice(), int64_t{1} << 30, threads);
}

}  // namespace megatrain
