#pragma once
// defines: Ops and one argument struct per op — the layer maths, called through a Stream.
// CpuOps (ops/cpu) and CudaOps (ops/cuda) implement it. Shapes: N = B·T tokens, C = hidden_size,
// F = intermediate_size, V = vocab_size, H = num_heads, K = num_kv_heads, D = head_dim. All results are
// deterministic: no atomics, and reductions in an order that does not depend on the number of threads.

#include <vector>

#include "core/tensor.h"
#include "device/device.h"
#include "ops/adamw_step.h"

namespace megatrain {

enum class Activation { gelu, gelu_tanh };

/// C = op(A)·op(B) [+ bias] [+ C]. Row-major; a leading dimension of 0 means shape[1].
struct GemmArgs {
  Tensor a, b, c;
  bool trans_a = false, trans_b = false;
  bool accumulate = false;  ///< adds to C instead of overwriting it
  Tensor bias;              ///< optional [N], added to every row of C
  int64_t lda = 0, ldb = 0, ldc = 0;
};
/// Throws std::logic_error when the shapes do not agree.
void check_shapes(const GemmArgs& args);

/// Layer norm over the last dimension (Ba et al. 2016), or RMS norm (Zhang & Sennrich 2019: nothing is
/// subtracted) where `mean` is empty. x, y [N, C]; weight, bias [C] (bias optional); mean, rstd [N] fp32 are
/// saved for the backward.
struct LayerNormArgs {
  Tensor x, weight, bias, y, mean, rstd;
  float eps = 1e-5f;
};
/// dweight and dbias are added to. dx is added to when `accumulate`, else written; dx may be x.
struct LayerNormBackwardArgs {
  Tensor x, weight, mean, rstd, dy, dx, dweight, dbias;
  bool accumulate = false;
};

/// Names one dropout mask. Element i of a tensor is kept when Philox(seed, stream)[first + i] says so:
/// the recompute makes the same mask, and so does any split into micro-batches.
struct Dropout {
  float probability = 0;
  uint64_t seed = 0, stream = 0, first = 0;
};

/// Causal self-attention. qkv [B, T, (H + 2·K)·D]: the queries of all heads, then the keys, then the values
/// of the K key-value heads; query head h uses key-value head h / (H / K) (Ainslie et al. 2023).
struct AttentionShape {
  int64_t batch = 0, seq_len = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t window = 0;  ///< > 0: a query sees its last `window` keys, its own included (Mistral)
  int64_t q_width() const { return num_heads * head_dim; }
  int64_t kv_width() const { return num_kv_heads * head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
  int64_t group() const { return num_heads / num_kv_heads; }
};

/// Documents [first, first + count) of PackedDocuments::spans, none longer than `longest`.
struct DocumentGroup {
  int64_t first = 0, count = 0, longest = 0;
};

/// Several documents in one sequence (packing): a token sees its own document only.
struct PackedDocuments {
  Tensor positions;  ///< int32 [N]: place in the document; empty: every sequence is one document
  Tensor spans;      ///< int32 [2, N]: first token of each document, then its length; longest first
  const std::vector<DocumentGroup>* groups = nullptr;  ///< on the host
};

/// Flash style: no T×T matrix (Dao 2022). out [B, T, H·D], lse [B, H, T] fp32 (log-sum-exp of each row).
/// Dropout element: ((sequence·H + head)·T + query)·T + key.
struct AttentionArgs {
  Tensor qkv, out, lse;
  AttentionShape shape;
  Dropout dropout;
  PackedDocuments documents = {};
};
/// dqkv is written. `delta` [B, H, T] fp32 is scratch.
struct AttentionBackwardArgs {
  Tensor qkv, out, lse, dout, dqkv, delta;
  AttentionShape shape;
  Dropout dropout;
  PackedDocuments documents = {};
};
/// Forward with a cache (generation): the T new keys and values of sequence b are stored at rows past[b]...
/// of cache [B, capacity, 2·K·D]; its queries see everything stored so far. past int32 [B].
struct CachedAttentionArgs {
  Tensor qkv, cache, past, out;
  AttentionShape shape;
  int64_t capacity = 0;
};

/// Rotary positions (Su et al. 2021; pairs are (i, i + D/2) as in Llama) on the queries and keys of a packed
/// qkv; values pass. With q_norm and k_norm [D], each head's row first goes through an RMS norm (Qwen3).
/// `out` may be `in`. positions int32 [N], empty: n mod T. inv_freq [D/2] lies on the host and outlives the
/// stream's work. cos and sin are multiplied by `factor` (YaRN).
struct RopeArgs {
  Tensor in, out, positions, q_norm, k_norm;
  AttentionShape shape;
  const float* inv_freq = nullptr;
  float factor = 1, eps = 1e-6f;
};
/// `grad` (of out) becomes the gradient of in, in place; dq_norm and dk_norm fp32 are added to. `in` is read
/// only with norms.
struct RopeBackwardArgs {
  Tensor grad, in, positions, q_norm, k_norm, dq_norm, dk_norm;
  AttentionShape shape;
  const float* inv_freq = nullptr;
  float factor = 1, eps = 1e-6f;
};

/// out[n] = token_table[tokens[n]] + position_table[positions[n]] (optional), then dropout. out [N, C].
/// positions int32 [N], empty: n mod T.
struct EmbeddingArgs {
  Tensor tokens, token_table, position_table, out;
  int64_t seq_len = 0;
  Dropout dropout;
  Tensor positions;
};
/// dtoken_table [V, C] and dposition_table [P, C] (optional) are added to, in a fixed order.
struct EmbeddingBackwardArgs {
  Tensor tokens, dout, dtoken_table, dposition_table;
  int64_t seq_len = 0;
  Dropout dropout;
  Tensor positions = {};  ///< int32 [N], empty: n mod T
};

/// losses[n] = -log softmax(logits[n])[targets[n]], 0 where the target is negative (ignored).
/// With `backward`, logits become scale · d(loss)/d(logits) in place.
struct CrossEntropyArgs {
  Tensor logits, targets, losses;
  float scale = 1;
  bool backward = true;
  int64_t stride =
      0;  ///< elements from row to row of the logits; 0: V; the backward fills the pad with zeros
};

/// One AdamW update of `count` elements in place: the same bits as on the host. Nothing is done where
/// `squared_norm` (one fp64, on the device; optional) is not finite.
struct AdamWArgs {
  uint16_t *hi = nullptr, *lo = nullptr;
  float *m = nullptr, *v = nullptr;
  const float* gradient = nullptr;
  int64_t count = 0;
  AdamWStep step;
  const double* squared_norm = nullptr;
};

/// What a device needs to size its workspace.
struct OpShapes {
  AttentionShape attention;
  DType compute = DType::f32;
  double dropout = 0;
  bool packed = false;
};

class Ops {
 public:
  virtual ~Ops() = default;
  /// Memory for libraries, reductions and sorting, used by the compute stream only. The CPU needs none.
  virtual void set_workspace(void* /*data*/, int64_t /*bytes*/) {}
  virtual void gemm(Stream&, const GemmArgs&) = 0;
  /// out[c] += sum over rows of x[:, c].
  virtual void column_sum(Stream&, Tensor x, Tensor out) = 0;
  virtual void layer_norm(Stream&, const LayerNormArgs&) = 0;
  virtual void layer_norm_backward(Stream&, const LayerNormBackwardArgs&) = 0;
  virtual void attention(Stream&, const AttentionArgs&) = 0;
  virtual void attention_backward(Stream&, const AttentionBackwardArgs&) = 0;
  virtual void attention_cached(Stream&, const CachedAttentionArgs&) = 0;
  virtual void rope(Stream&, const RopeArgs&) = 0;
  virtual void rope_backward(Stream&, const RopeBackwardArgs&) = 0;
  virtual void activation(Stream&, Activation, Tensor x, Tensor y) = 0;
  /// dy becomes dx in place.
  virtual void activation_backward(Stream&, Activation, Tensor x, Tensor dy) = 0;
  /// SwiGLU (Shazeer 2020): y [N, F] = silu(gate)·up, gate and up side by side in gate_up [N, 2F].
  virtual void swiglu(Stream&, Tensor gate_up, Tensor y) = 0;
  /// gate_up becomes its own gradient, from dy [N, F].
  virtual void swiglu_backward(Stream&, Tensor gate_up, Tensor dy) = 0;
  /// y = x + dropout(branch); y may be x or branch.
  virtual void residual_add(Stream&, Tensor x, Tensor branch, Tensor y, const Dropout&) = 0;
  /// out = dropout(in) (the backward of residual_add towards its branch).
  virtual void dropout(Stream&, Tensor in, Tensor out, const Dropout&) = 0;
  virtual void embedding(Stream&, const EmbeddingArgs&) = 0;
  virtual void embedding_backward(Stream&, const EmbeddingBackwardArgs&) = 0;
  virtual void cross_entropy(Stream&, const CrossEntropyArgs&) = 0;
  /// out (one fp64) = sum of x, or of x² when `squared`, in a fixed order.
  virtual void sum(Stream&, Tensor x, Tensor out, bool squared) = 0;
  virtual void adamw(Stream&, const AdamWArgs&) = 0;
  virtual void fill_bytes(Stream&, void* data, int value, int64_t bytes) = 0;
  /// weights[i] = join_float(hi[i], lo[i]) as fp32 (core/dtype.h).
  virtual void join_planes(Stream&, const uint16_t* hi, const uint16_t* lo, Tensor weights) = 0;
};

}  // namespace megatrain
