#pragma once
// defines: CudaGemm — cuBLASLt products, the algorithm picked once per shape.

#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "ops/cuda_workspace.h"
#include "ops/ops.h"

namespace megatrain {

class CudaGemm {
 public:
  static constexpr int64_t kWorkspaceBytes = kGemmWorkspaceBytes;
  CudaGemm();
  ~CudaGemm();
  CudaGemm(const CudaGemm&) = delete;
  CudaGemm& operator=(const CudaGemm&) = delete;
  /// bf16 or fp32 operands, fp32 accumulation, bf16 or fp32 result (fp32 with accumulate for gradients).
  void run(cudaStream_t stream, const GemmArgs& args, void* workspace);

 private:
  struct Plan {
    cublasLtMatmulDesc_t matmul = nullptr;
    cublasLtMatrixLayout_t x = nullptr, y = nullptr, d = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
  };
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int, int, int, int>;
  const Plan& plan(const GemmArgs& args);
  Plan make_plan(const GemmArgs& args);

  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, Plan> plans_;
};

}  // namespace megatrain
