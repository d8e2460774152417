#include "ops/cuda/cuda_ops.h"

#include "ops/cuda/cudnn_attention.h"
#include "ops/cuda/gemm.h"

namespace megatrain {

CudaOps::CudaOps() : gemm_(std::make_unique<CudaGemm>()) {}
CudaOps::~CudaOps() = default;

void CudaOps::set_workspace(void* data, int64_t bytes) {
  workspace_ = static_cast<char*>(data), workspace_bytes_ = bytes;
}

char* CudaOps::scratch() const {
  return workspace_ + CudaGemm::kWorkspaceBytes;
}
char* CudaOps::attention_workspace() const {
  return scratch() + kCudaScratchBytes;
}
int64_t CudaOps::attention_bytes() const {
  return workspace_bytes_ - CudaGemm::kWorkspaceBytes - kCudaScratchBytes;
}

}  // namespace megatrain
