#pragma once
// defines: cuda_workspace_bytes and the sizes behind it — host arithmetic only, so that a machine with a GPU
// is planned on one without.

#include "ops/ops.h"

namespace megatrain {

/// Of cuBLASLt; for reductions and sorting.
constexpr int64_t kGemmWorkspaceBytes = int64_t{64} << 20, kCudaScratchBytes = int64_t{96} << 20;
/// Workspace that CudaOps needs for a micro-batch of these shapes (StepPlan::workspace).
int64_t cuda_workspace_bytes(const OpShapes& shapes);

/// cuDNN attention (ops/cuda/cudnn_attention.h).
constexpr int64_t kAttentionWorkspaceGoal = int64_t{1} << 30;
constexpr int64_t kAttentionSlack = int64_t{32} << 20;  ///< dQ accumulators and the like
constexpr int64_t kRaggedBytes = int64_t{256} << 10;    ///< offsets of packed documents
bool cudnn_supports(DType type, const AttentionShape& shape, double dropout);
int64_t padded_length(int64_t seq_len);
/// dP of a head, then fp32 dQ and (with grouped heads) dK and dV of every query head.
int64_t attention_head_bytes(const AttentionShape& shape, int64_t rows);

/// Sequences that are padded at a time, and the bytes of one of them.
struct AttentionPadding {
  int64_t sequences, sequence_bytes;
  AttentionPadding(const AttentionShape& shape, bool backward);
  int64_t bytes() const { return sequences * sequence_bytes; }
};

/// Pieces of the backward: whole sequences, or groups of heads of one, so that dP fits the workspace.
struct AttentionPieces {
  int64_t batch, heads;
  explicit AttentionPieces(const AttentionShape& shape);
};

}  // namespace megatrain
