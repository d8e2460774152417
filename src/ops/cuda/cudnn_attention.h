#pragma once
// defines: CudnnAttention — scaled dot-product attention by cuDNN 9, in one translation unit (its headers
// take most of a minute to compile).

#include <cuda_runtime.h>

#include <memory>

#include "ops/ops.h"

namespace megatrain {

/// Fills lengths [padded] and offsets [3][padded + 1] (elements of qkv, out and stats rows) of documents
/// [first, first + count); those up to `padded` are empty and lie at `end` (in attention.cu).
struct RaggedOffsets {
  const int32_t *spans_first, *spans_length;
  int64_t first, count, padded, end;
  int64_t widths[3];
  int32_t* lengths;
  int64_t* offsets;
};
void make_ragged_offsets(cudaStream_t stream, const RaggedOffsets& args);

class CudnnAttention {
 public:
  CudnnAttention();
  ~CudnnAttention();
  /// bf16, no dropout, head_dim a multiple of 8 up to 128 (cudnn_supports). Sequences are padded with zeros
  /// to a multiple of 128 (cuDNN 9's Hopper backward gives NaN for some masks at T mod 128 = 64): later keys
  /// are masked by causality, and rows without gradient add nothing. Workspace (cuda_workspace_bytes) for
  /// whole sequences where that is at most 1 GiB, else for as many heads as fit; at least one group. The
  /// deterministic backward before cuDNN 9.25 materialises dP: 2 bytes · heads · T².
  void forward(cudaStream_t stream, const AttentionArgs& args, void* workspace, int64_t bytes);
  void backward(cudaStream_t stream, const AttentionBackwardArgs& args, void* workspace, int64_t bytes);

 private:
  void forward_padded(cudaStream_t stream, const AttentionArgs& args, char* workspace, int64_t bytes);
  void forward_packed(cudaStream_t stream, const AttentionArgs& args, char* workspace, int64_t bytes);
  void backward_packed(cudaStream_t stream, const AttentionBackwardArgs& args, char* workspace,
                       int64_t bytes);
  void backward_padded(cudaStream_t stream, const AttentionBackwardArgs& args, char* workspace,
                       int64_t bytes);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megatrain
