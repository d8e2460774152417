#pragma once
// defines: MT_CUDA — every CUDA call is checked; the error names the call.

#include <cuda_runtime.h>

#include <string>

#include "core/error.h"
#include "device/device.h"

namespace megatrain {

inline void check_cuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // not sticky for whoever comes next
  fail(std::string("CUDA: ") + call + ": " + cudaGetErrorString(error));
}

/// The CUDA stream behind a Stream of the CUDA device.
cudaStream_t cuda_stream(Stream& stream);

}  // namespace megatrain

#define MT_CUDA(call) ::megatrain::check_cuda((call), #call)
