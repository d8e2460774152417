#include "ops/cuda/gemm.h"

#include <fmt/format.h>

#include "core/error.h"
#include "device/cuda/cuda_check.h"
#include "ops/cuda/cuda_ops.h"

namespace megatrain {
namespace {

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail(fmt::format("cuBLASLt: {}: {}", call, cublasLtGetStatusString(status)));
}
#define MT_CUBLAS(call) check((call), #call)

cudaDataType_t type_of(DType t) {
  return t == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

// Row-major C = op(A)·op(B) is column-major Cᵀ = op(B)ᵀ·op(A)ᵀ: B comes first and keeps its flag.
struct Dimensions {
  int64_t m, n, k, lda, ldb, ldc;
  explicit Dimensions(const GemmArgs& g)
      : m(g.c.shape[0]),
        n(g.c.shape[1]),
        k(g.a.shape[g.trans_a ? 0 : 1]),
        lda(g.lda > 0 ? g.lda : g.a.shape[1]),
        ldb(g.ldb > 0 ? g.ldb : g.b.shape[1]),
        ldc(g.ldc > 0 ? g.ldc : n) {}
};

}  // namespace

CudaGemm::CudaGemm() {
  MT_CUBLAS(cublasLtCreate(&handle_));
}

CudaGemm::~CudaGemm() {
  for (auto& [key, p] : plans_) {
    cublasLtMatmulDescDestroy(p.matmul);
    for (auto l : {p.x, p.y, p.d}) cublasLtMatrixLayoutDestroy(l);
  }
  cublasLtDestroy(handle_);
}

CudaGemm::Plan CudaGemm::make_plan(const GemmArgs& g) {
  const Dimensions d(g);
  Plan p;
  const cublasOperation_t op_x = g.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                          op_y = g.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  MT_CUBLAS(cublasLtMatmulDescCreate(&p.matmul, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  MT_CUBLAS(cublasLtMatmulDescSetAttribute(p.matmul, CUBLASLT_MATMUL_DESC_TRANSA, &op_x, sizeof op_x));
  MT_CUBLAS(cublasLtMatmulDescSetAttribute(p.matmul, CUBLASLT_MATMUL_DESC_TRANSB, &op_y, sizeof op_y));
  if (g.bias) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const cudaDataType_t bias_type = type_of(g.bias.dtype);
    MT_CUBLAS(
        cublasLtMatmulDescSetAttribute(p.matmul, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    MT_CUBLAS(cublasLtMatmulDescSetAttribute(p.matmul, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type,
                                             sizeof bias_type));
  }
  const auto rows = [](bool t, int64_t a, int64_t b) { return static_cast<uint64_t>(t ? b : a); };
  MT_CUBLAS(cublasLtMatrixLayoutCreate(&p.x, type_of(g.b.dtype), rows(g.trans_b, d.n, d.k),
                                       rows(g.trans_b, d.k, d.n), d.ldb));
  MT_CUBLAS(cublasLtMatrixLayoutCreate(&p.y, type_of(g.a.dtype), rows(g.trans_a, d.k, d.m),
                                       rows(g.trans_a, d.m, d.k), d.lda));
  MT_CUBLAS(cublasLtMatrixLayoutCreate(&p.d, type_of(g.c.dtype), static_cast<uint64_t>(d.n),
                                       static_cast<uint64_t>(d.m), d.ldc));
  cublasLtMatmulPreference_t preference = nullptr;
  MT_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
  const auto bytes = static_cast<size_t>(kWorkspaceBytes);
  MT_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                                 sizeof bytes));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, p.matmul, p.x, p.y, p.d, p.d, preference, 1, &found, &count);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0)
    fail(fmt::format("cuBLASLt: no algorithm for a product of {} x {} x {} ({})", d.m, d.n, d.k,
                     cublasLtGetStatusString(status)));
  p.algorithm = found.algo;
  return p;
}

const CudaGemm::Plan& CudaGemm::plan(const GemmArgs& g) {
  const Dimensions d(g);
  const Key key{d.m,
                d.n,
                d.k,
                d.lda,
                d.ldb,
                d.ldc,
                g.trans_a * 2 + g.trans_b,
                static_cast<int>(g.a.dtype) * 16 + static_cast<int>(g.b.dtype),
                static_cast<int>(g.c.dtype),
                static_cast<bool>(g.bias) * 2 + g.accumulate};
  auto it = plans_.find(key);
  if (it == plans_.end()) it = plans_.emplace(key, make_plan(g)).first;
  return it->second;
}

void CudaGemm::run(cudaStream_t stream, const GemmArgs& g, void* workspace) {
  const Plan& p = plan(g);
  if (g.bias) {
    const void* bias = g.bias.data;
    MT_CUBLAS(
        cublasLtMatmulDescSetAttribute(p.matmul, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
  }
  const float alpha = 1, beta = g.accumulate ? 1.0f : 0.0f;
  MT_CUBLAS(cublasLtMatmul(handle_, p.matmul, &alpha, g.b.data, p.x, g.a.data, p.y, &beta, g.c.data, p.d,
                           g.c.data, p.d, &p.algorithm, workspace, static_cast<size_t>(kWorkspaceBytes),
                           stream));
}

void CudaOps::gemm(Stream& s, const GemmArgs& g) {
  check_shapes(g);
  gemm_->run(cuda_stream(s), g, library_workspace());
}

}  // namespace megatrain
