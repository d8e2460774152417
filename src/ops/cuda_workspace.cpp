#include "ops/cuda_workspace.h"

#include <algorithm>

namespace megatrain {
namespace {

constexpr int64_t kPadGoal = int64_t{256} << 20;  // copies of padded sequences

int64_t packed_bytes(const AttentionShape& s) {
  const int64_t rows = padded_length(s.seq_len), one = attention_head_bytes(s, rows) * s.group();
  // Enough for all rows at once when lengths, and their number, round up to powers of two.
  const int64_t all = 4 * s.batch * s.num_heads * attention_head_bytes(s, rows);
  return std::max(one, std::min(kAttentionWorkspaceGoal, all)) + kAttentionSlack + kRaggedBytes;
}

int64_t whole_bytes(const AttentionShape& s) {
  const int64_t rows = padded_length(s.seq_len);
  const AttentionPieces p(s);
  return p.batch * p.heads * attention_head_bytes(s, rows) + kAttentionSlack +
         (rows != s.seq_len ? AttentionPadding(s, true).bytes() : 0);
}

}  // namespace

bool cudnn_supports(DType type, const AttentionShape& s, double dropout) {
  return type == DType::bf16 && dropout == 0 && s.head_dim % 8 == 0 && s.head_dim <= 128;
}

int64_t padded_length(int64_t t) {
  return (t + 127) / 128 * 128;
}

int64_t attention_head_bytes(const AttentionShape& s, int64_t rows) {
  return rows * rows * 2 + rows * s.head_dim * (s.group() > 1 ? 12 : 4);
}

AttentionPadding::AttentionPadding(const AttentionShape& s, bool backward) {
  const int64_t rows = padded_length(s.seq_len), copies = backward ? 2 : 1;
  sequence_bytes = copies * rows * (s.qkv_width() + s.q_width()) * 2 + rows * s.num_heads * 4 * copies + 1024;
  sequences = std::clamp<int64_t>(kPadGoal / sequence_bytes, 1, s.batch);
}

AttentionPieces::AttentionPieces(const AttentionShape& s) {
  const int64_t rows = padded_length(s.seq_len), head = rows * rows * 2, sequence = head * s.num_heads;
  const bool whole = sequence <= kAttentionWorkspaceGoal;
  batch = whole ? std::min(s.batch, kAttentionWorkspaceGoal / sequence) : 1;
  heads = whole ? s.num_heads
                : std::clamp(kAttentionWorkspaceGoal / (head * s.group()), int64_t{1}, s.num_kv_heads) *
                      s.group();
}

int64_t cuda_workspace_bytes(const OpShapes& s) {
  const bool cudnn = cudnn_supports(s.compute, s.attention, s.dropout);
  const int64_t attention = !cudnn ? 0 : s.packed ? packed_bytes(s.attention) : whole_bytes(s.attention);
  return kGemmWorkspaceBytes + kCudaScratchBytes + attention;
}

}  // namespace megatrain
