#pragma once
// defines: CudaOps — the Ops of the CUDA device: cuBLASLt products, cuDNN attention, own kernels for the
// rest.

#include <memory>

#include "ops/cuda_workspace.h"
#include "ops/ops.h"

namespace megatrain {

class CudaGemm;
class CudnnAttention;

class CudaOps : public Ops {
 public:
  CudaOps();
  ~CudaOps() override;
  void set_workspace(void* data, int64_t bytes) override;
  void gemm(Stream&, const GemmArgs&) override;
  void column_sum(Stream&, Tensor x, Tensor out) override;
  void layer_norm(Stream&, const LayerNormArgs&) override;
  void layer_norm_backward(Stream&, const LayerNormBackwardArgs&) override;
  void attention(Stream&, const AttentionArgs&) override;
  void attention_backward(Stream&, const AttentionBackwardArgs&) override;
  void attention_cached(Stream&, const CachedAttentionArgs&) override;
  void rope(Stream&, const RopeArgs&) override;
  void rope_backward(Stream&, const RopeBackwardArgs&) override;
  void activation(Stream&, Activation, Tensor x, Tensor y) override;
  void activation_backward(Stream&, Activation, Tensor x, Tensor dy) override;
  void swiglu(Stream&, Tensor gate_up, Tensor y) override;
  void swiglu_backward(Stream&, Tensor gate_up, Tensor dy) override;
  void residual_add(Stream&, Tensor x, Tensor branch, Tensor y, const Dropout&) override;
  void dropout(Stream&, Tensor in, Tensor out, const Dropout&) override;
  void embedding(Stream&, const EmbeddingArgs&) override;
  void embedding_backward(Stream&, const EmbeddingBackwardArgs&) override;
  void cross_entropy(Stream&, const CrossEntropyArgs&) override;
  void sum(Stream&, Tensor x, Tensor out, bool squared) override;
  void adamw(Stream&, const AdamWArgs&) override;
  void fill_bytes(Stream&, void* data, int value, int64_t bytes) override;
  void join_planes(Stream&, const uint16_t* hi, const uint16_t* lo, Tensor weights) override;

 private:
  // One workspace, used by the compute stream only: cuBLAS, reductions and sorting, then attention.
  char* library_workspace() const { return workspace_; }
  char* scratch() const;
  char* attention_workspace() const;
  int64_t attention_bytes() const;

  std::unique_ptr<CudaGemm> gemm_;
  std::unique_ptr<CudnnAttention> attention_;
  char* workspace_ = nullptr;
  int64_t workspace_bytes_ = 0;
};

}  // namespace megatrain
