#include "model/gpt2.h"

#include <algorithm>
#include <cmath>

#include "model/block_base.h"

namespace megatrain {
namespace {

// Parameters without biases are absent from the layout: their index is -1.
struct BlockIndex {
  int ln1_w, ln1_b, qkv_w, qkv_b, proj_w, proj_b, ln2_w, ln2_b, fc_w, fc_b, mlp_w, mlp_b;
};

class Gpt2Block : public DropoutBlock {
 public:
  Gpt2Block(const ModelSpec& s, BlockIndex i) : DropoutBlock(s), p_(i) {}

  int64_t work_bytes(int64_t batch, int64_t seq_len, DType compute, bool backward, int level) const override {
    return carve(nullptr, {level, nullptr}, batch, seq_len, compute, backward).work_bytes;
  }
  int64_t saved_bytes(int level, int64_t batch, int64_t seq_len, DType compute) const override {
    return carve(nullptr, {level, nullptr}, batch, seq_len, compute, true).saved_bytes;
  }

  void forward(const OpContext& ctx, int64_t layer, const UnitView& w, const MicroBatch& mb, Tensor x,
               Tensor y, const SavedActivations& saved, const KvCache* cache) const override {
    const Saved s = carve(ctx.work, saved, mb.batch, mb.seq_len, ctx.compute, false);
    compute(ctx, layer, w, mb, x, s, cache, kSaveInput);
    ctx.ops.gemm(ctx.stream, {s.act, w.at(p_.mlp_w), s.branch, false, false, false, w.at(p_.mlp_b)});
    ctx.ops.residual_add(ctx.stream, s.x_mid, s.branch, y, drop(ctx, layer, kDropMlp, mb));
  }

  void backward(const OpContext& ctx, int64_t layer, const UnitView& w, const MicroBatch& mb, Tensor x,
                Tensor dy, const UnitView& g, const SavedActivations& saved) const override {
    const Saved s = carve(ctx.work, saved, mb.batch, mb.seq_len, ctx.compute, true);
    compute(ctx, layer, w, mb, x, s, nullptr, saved.level);
    mlp_backward(ctx, layer, w, mb, s, dy, g);
    attention_backward(ctx, layer, w, mb, s, x, dy, g);
  }

  double forward_flops(int64_t batch, int64_t seq_len) const override {
    const double n = static_cast<double>(batch * seq_len), c = static_cast<double>(spec_.hidden_size);
    const double f = static_cast<double>(spec_.intermediate_size);
    return 2 * n * c * (4 * c + 2 * f) + 2 * n * c * static_cast<double>(seq_len);  // causal: half of T×T
  }

 private:
  // One micro-batch's activations of one block, and the backward's scratch.
  struct Saved {
    Tensor ln1, mean1, rstd1, qkv, attn, lse, x_mid, ln2, mean2, rstd2, fc, act, branch;
    Tensor delta;  // backward only: [B, H, T]
    int64_t work_bytes, saved_bytes;
  };

  Saved carve(void* work, const SavedActivations& saved, int64_t b, int64_t t, DType type,
              bool backward) const {
    const int64_t n = b * t, c = spec_.hidden_size, f = spec_.intermediate_size;
    LeveledWorkspace ws(work, saved);
    Saved s;
    s.ln1 = ws.take(kSaveAll, type, {n, c});
    s.mean1 = ws.take(kSaveAll, DType::f32, {n}), s.rstd1 = ws.take(kSaveAll, DType::f32, {n});
    s.qkv = ws.take(kSaveProjections, type, {n, 3 * c}), s.attn = ws.take(kSaveAttention, type, {n, c});
    s.lse = ws.take(kSaveAttention, DType::f32, {b, spec_.num_heads, t});
    s.x_mid = ws.take(kSaveProjections, type, {n, c}), s.ln2 = ws.take(kSaveAll, type, {n, c});
    s.mean2 = ws.take(kSaveAll, DType::f32, {n}), s.rstd2 = ws.take(kSaveAll, DType::f32, {n});
    s.fc = ws.take(kSaveMlp, type, {n, std::max(f, 3 * c)}), s.fc.shape[1] = f;  // later dqkv
    s.act = ws.take(kSaveAll, type, {n, f}), s.branch = ws.scratch(type, {n, c});
    if (backward) s.delta = ws.scratch(DType::f32, {b, spec_.num_heads, t});
    s.work_bytes = ws.work_used(), s.saved_bytes = ws.saved_used();
    return s;
  }

  // The forward up to the MLP's activation, without what `level` has kept.
  void compute(const OpContext& ctx, int64_t layer, const UnitView& w, const MicroBatch& mb, Tensor x,
               const Saved& s, const KvCache* cache, int level) const {
    Ops& o = ctx.ops;
    Stream& q = ctx.stream;
    const auto eps = static_cast<float>(spec_.norm_eps);
    if (level < kSaveAll) o.layer_norm(q, {x, w.at(p_.ln1_w), w.at(p_.ln1_b), s.ln1, s.mean1, s.rstd1, eps});
    if (level < kSaveProjections)
      o.gemm(q, {s.ln1, w.at(p_.qkv_w), s.qkv, false, false, false, w.at(p_.qkv_b)});
    const AttentionShape shape = spec_.attention(mb.batch, mb.seq_len, layer);
    if (cache)
      o.attention_cached(q, {s.qkv, cache->data, mb.past, s.attn, shape, cache->capacity});
    else if (level < kSaveAttention)
      o.attention(q, {s.qkv, s.attn, s.lse, shape, drop_attention(ctx, layer, mb), mb.documents()});
    if (level < kSaveProjections) {
      o.gemm(q, {s.attn, w.at(p_.proj_w), s.branch, false, false, false, w.at(p_.proj_b)});
      o.residual_add(q, x, s.branch, s.x_mid, drop(ctx, layer, kDropProjection, mb));
    }
    if (level < kSaveAll)
      o.layer_norm(q, {s.x_mid, w.at(p_.ln2_w), w.at(p_.ln2_b), s.ln2, s.mean2, s.rstd2, eps});
    if (level < kSaveMlp) o.gemm(q, {s.ln2, w.at(p_.fc_w), s.fc, false, false, false, w.at(p_.fc_b)});
    if (level < kSaveAll) o.activation(q, spec_.activation, s.fc, s.act);
  }

  // Gradients of y = x·W + b: adds dW and db, and writes dx when asked for.
  void linear_backward(const OpContext& ctx, Tensor x, Tensor dy, const UnitView& w, const UnitView& g,
                       int weight, int bias, Tensor dx) const {
    ctx.ops.gemm(ctx.stream, {x, dy, g.at(weight), true, false, true, {}});
    if (bias >= 0) ctx.ops.column_sum(ctx.stream, dy, g.at(bias));
    if (dx) ctx.ops.gemm(ctx.stream, {dy, w.at(weight), dx, false, true, false, {}});
  }

  void mlp_backward(const OpContext& ctx, int64_t layer, const UnitView& w, const MicroBatch& mb,
                    const Saved& s, Tensor dy, const UnitView& g) const {
    const Tensor dbranch = branch_gradient(ctx, dy, s.branch, drop(ctx, layer, kDropMlp, mb));
    const Tensor dfc = s.act;  // once its weight gradient is taken
    linear_backward(ctx, s.act, dbranch, w, g, p_.mlp_w, p_.mlp_b, dfc);
    ctx.ops.activation_backward(ctx.stream, spec_.activation, s.fc, dfc);
    linear_backward(ctx, s.ln2, dfc, w, g, p_.fc_w, p_.fc_b, s.branch);
    ctx.ops.layer_norm_backward(ctx.stream, {s.x_mid, w.at(p_.ln2_w), s.mean2, s.rstd2, s.branch, dy,
                                             g.at(p_.ln2_w), g.at(p_.ln2_b), true});
  }

  void attention_backward(const OpContext& ctx, int64_t layer, const UnitView& w, const MicroBatch& mb,
                          const Saved& s, Tensor x, Tensor dy, const UnitView& g) const {
    const Tensor dbranch = branch_gradient(ctx, dy, s.branch, drop(ctx, layer, kDropProjection, mb));
    const Tensor dattn = s.ln2;  // ln2 is no longer needed
    const Tensor dqkv(s.fc.data, s.fc.dtype, {s.qkv.shape[0], s.qkv.shape[1]});
    linear_backward(ctx, s.attn, dbranch, w, g, p_.proj_w, p_.proj_b, dattn);
    ctx.ops.attention_backward(
        ctx.stream, {s.qkv, s.attn, s.lse, dattn, dqkv, s.delta, spec_.attention(mb.batch, mb.seq_len, layer),
                     drop_attention(ctx, layer, mb), mb.documents()});
    linear_backward(ctx, s.ln1, dqkv, w, g, p_.qkv_w, p_.qkv_b, s.branch);
    ctx.ops.layer_norm_backward(ctx.stream, {x, w.at(p_.ln1_w), s.mean1, s.rstd1, s.branch, dy,
                                             g.at(p_.ln1_w), g.at(p_.ln1_b), true});
  }

  BlockIndex p_;
};

class Gpt2 : public Model {
 public:
  explicit Gpt2(const ModelSpec& s) : Model(s) {
    add_embedding();
    const BlockIndex block = add_blocks();
    add_head();
    embedding_ = std::make_unique<TokenEmbedding>(spec_, end_);
    block_ = std::make_unique<Gpt2Block>(spec_, block);
    head_ = std::make_unique<LmHead>(spec_, end_);
  }

 private:
  // Absent biases have the index -1.
  int add_bias(UnitLayout& u, const std::string& name, int64_t n) const {
    return spec_.bias ? u.add(name, {n}, Init::zeros) : -1;
  }

  void add_embedding() {
    UnitLayout u;
    u.name = spec_.tied ? "embedding + head" : "embedding";
    const double std = spec_.init_std;
    u.add("transformer.wte.weight", {spec_.vocab_size, spec_.hidden_size}, Init::normal, std,
          padded_vocabulary(spec_));
    end_.wpe = u.add("transformer.wpe.weight", {spec_.max_position_embeddings, spec_.hidden_size},
                     Init::normal, std);
    if (spec_.tied) add_final_norm(u);
    units_.push_back(std::move(u));
  }

  void add_final_norm(UnitLayout& u) {
    end_.ln_w = u.add("transformer.ln_f.weight", {spec_.hidden_size}, Init::ones);
    end_.ln_b = add_bias(u, "transformer.ln_f.bias", spec_.hidden_size);
  }

  BlockIndex add_blocks() {
    const int64_t c = spec_.hidden_size, f = spec_.intermediate_size;
    const double std = spec_.init_std,
                 residual_std = std / std::sqrt(2.0 * static_cast<double>(spec_.num_layers));
    BlockIndex i{};
    for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
      UnitLayout u;
      const std::string h = "transformer.h." + std::to_string(layer) + ".";
      u.name = "block " + std::to_string(layer);
      i.ln1_w = u.add(h + "ln_1.weight", {c}, Init::ones), i.ln1_b = add_bias(u, h + "ln_1.bias", c);
      i.qkv_w = u.add(h + "attn.c_attn.weight", {c, 3 * c}, Init::normal, std);
      i.qkv_b = add_bias(u, h + "attn.c_attn.bias", 3 * c);
      i.proj_w = u.add(h + "attn.c_proj.weight", {c, c}, Init::normal, residual_std);
      i.proj_b = add_bias(u, h + "attn.c_proj.bias", c);
      i.ln2_w = u.add(h + "ln_2.weight", {c}, Init::ones), i.ln2_b = add_bias(u, h + "ln_2.bias", c);
      i.fc_w = u.add(h + "mlp.c_fc.weight", {c, f}, Init::normal, std);
      i.fc_b = add_bias(u, h + "mlp.c_fc.bias", f);
      i.mlp_w = u.add(h + "mlp.c_proj.weight", {f, c}, Init::normal, residual_std);
      i.mlp_b = add_bias(u, h + "mlp.c_proj.bias", c);
      units_.push_back(std::move(u));
    }
    return i;
  }

  void add_head() {
    if (spec_.tied) return;
    UnitLayout u;
    u.name = "final norm + head";
    add_final_norm(u);
    end_.head = u.add("lm_head.weight", {spec_.vocab_size, spec_.hidden_size}, Init::normal, spec_.init_std,
                      padded_vocabulary(spec_));
    units_.push_back(std::move(u));
  }

  EndIndex end_;
};

}  // namespace

std::unique_ptr<Model> make_gpt2(const ModelSpec& spec) {
  return std::make_unique<Gpt2>(spec);
}

}  // namespace megatrain
