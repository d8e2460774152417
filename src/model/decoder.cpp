#include "model/decoder.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "model/block_base.h"
#include "model/rope.h"

namespace megatrain {
namespace {

// -1: absent. q, k and v lie side by side and are multiplied as one, and so are gate and up.
struct BlockIndex {
  int ln1, qkv_w, qkv_b, q_norm, k_norm, out_w, out_b, ln2, gate_up_w, gate_up_b, down_w, down_b;
};

// The angles do not depend on what is computed; only the dynamic type has more than one table.
class RopeTables {
 public:
  explicit RopeTables(const ModelSpec& s) : spec_(s) { get(0); }
  const RopeTable& get(int64_t seq_len) const {
    const int64_t key = spec_.rope.type == "dynamic" ? std::max(seq_len, spec_.max_position_embeddings) : 0;
    const std::lock_guard lock(mutex_);
    const auto it = tables_.find(key);
    return it != tables_.end() ? it->second : tables_.emplace(key, make_rope_table(spec_, key)).first->second;
  }

 private:
  const ModelSpec& spec_;
  mutable std::mutex mutex_;
  mutable std::map<int64_t, RopeTable> tables_;
};

class DecoderBlock : public DropoutBlock {
 public:
  DecoderBlock(const ModelSpec& s, BlockIndex i) : DropoutBlock(s), p_(i), rope_(s) {}

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
    ctx.ops.gemm(ctx.stream, {s.act, w.at(p_.down_w), s.branch, false, true, false, w.at(p_.down_b)});
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
    const auto n = static_cast<double>(batch * seq_len), c = static_cast<double>(spec_.hidden_size);
    const AttentionShape a = spec_.attention(batch, seq_len, 0);
    const auto f = static_cast<double>(spec_.intermediate_size), q = static_cast<double>(a.q_width());
    double keys = 0;  // that a query sees, on average
    for (int64_t l = 0; l < spec_.num_layers; ++l) {
      const int64_t window = spec_.window(l);
      const double half = static_cast<double>(seq_len) / 2;
      keys += window > 0 ? std::min(half, static_cast<double>(window)) : half;
    }
    keys /= static_cast<double>(spec_.num_layers);
    return 2 * n * (c * (static_cast<double>(a.qkv_width()) + q + 3 * f) + 2 * q * keys);
  }

 private:
  // One micro-batch's activations of one block, and the backward's scratch.
  struct Saved {
    Tensor ln1, rstd1, raw, qkv, attn, lse, x_mid, ln2, rstd2, gate_up, act, branch;
    Tensor wide, mid;  // the memory of gate_up [N, max(2F, W)] and act [N, max(F, H·D)], used again
    Tensor delta;      // backward only
    int64_t work_bytes, saved_bytes;
  };

  Saved carve(void* work, const SavedActivations& saved, int64_t b, int64_t t, DType type,
              bool backward) const {
    const AttentionShape a = spec_.attention(b, t, 0);
    const int64_t n = b * t, c = spec_.hidden_size, f = spec_.intermediate_size;
    LeveledWorkspace ws(work, saved);
    Saved s;
    s.ln1 = ws.take(kSaveAll, type, {n, c}), s.rstd1 = ws.take(kSaveAll, DType::f32, {n});
    s.qkv = ws.take(kSaveProjections, type, {n, a.qkv_width()});
    // before the per-head norms
    s.raw = spec_.qk_norm ? ws.take(kSaveProjections, type, {n, a.qkv_width()}) : s.qkv;
    s.attn = ws.take(kSaveAttention, type, {n, a.q_width()});
    s.lse = ws.take(kSaveAttention, DType::f32, {b, spec_.num_heads, t});
    s.x_mid = ws.take(kSaveProjections, type, {n, c});
    s.ln2 = ws.take(kSaveAll, type, {n, c}), s.rstd2 = ws.take(kSaveAll, DType::f32, {n});
    s.wide = ws.take(kSaveMlp, type, {n, std::max(2 * f, a.qkv_width())});
    s.mid = ws.take(kSaveAll, type, {n, std::max(f, a.q_width())});
    s.gate_up = Tensor(s.wide.data, type, {n, 2 * f}), s.act = Tensor(s.mid.data, type, {n, f});
    s.branch = ws.scratch(type, {n, c});
    if (backward) s.delta = ws.scratch(DType::f32, {b, spec_.num_heads, t});
    s.work_bytes = ws.work_used(), s.saved_bytes = ws.saved_used();
    return s;
  }

  Tensor qkv_weight(const UnitView& v, const AttentionShape& a) const {
    return v.joined(p_.qkv_w, a.qkv_width());
  }
  Tensor gate_up_weight(const UnitView& v) const {
    return v.joined(p_.gate_up_w, 2 * spec_.intermediate_size);
  }

  void norm(const OpContext& ctx, Tensor x, Tensor w, Tensor y, Tensor rstd) const {
    ctx.ops.layer_norm(ctx.stream, {x, w, {}, y, {}, rstd, static_cast<float>(spec_.norm_eps)});
  }

  void rotate(const OpContext& ctx, const UnitView& w, const MicroBatch& mb, const AttentionShape& a,
              const Saved& s) const {
    const RopeTable& t = rope_.get(mb.seq_len);
    ctx.ops.rope(ctx.stream, {s.raw, s.qkv, mb.positions, w.at(p_.q_norm), w.at(p_.k_norm), a,
                              t.inv_freq.data(), t.factor, static_cast<float>(spec_.norm_eps)});
  }

  // The forward up to the MLP's activation, without what `level` has kept.
  void compute(const OpContext& ctx, int64_t layer, const UnitView& w, const MicroBatch& mb, Tensor x,
               const Saved& s, const KvCache* cache, int level) const {
    Ops& o = ctx.ops;
    Stream& q = ctx.stream;
    const AttentionShape a = spec_.attention(mb.batch, mb.seq_len, layer);
    if (level < kSaveAll) norm(ctx, x, w.at(p_.ln1), s.ln1, s.rstd1);
    if (level < kSaveProjections) {
      o.gemm(q, {s.ln1, qkv_weight(w, a), s.raw, false, true, false, w.joined(p_.qkv_b, a.qkv_width())});
      rotate(ctx, w, mb, a, s);
    }
    if (cache)
      o.attention_cached(q, {s.qkv, cache->data, mb.past, s.attn, a, cache->capacity});
    else if (level < kSaveAttention)
      o.attention(q, {s.qkv, s.attn, s.lse, a, drop_attention(ctx, layer, mb), mb.documents()});
    if (level < kSaveProjections) {
      o.gemm(q, {s.attn, w.at(p_.out_w), s.branch, false, true, false, w.at(p_.out_b)});
      o.residual_add(q, x, s.branch, s.x_mid, drop(ctx, layer, kDropProjection, mb));
    }
    if (level < kSaveAll) norm(ctx, s.x_mid, w.at(p_.ln2), s.ln2, s.rstd2);
    if (level < kSaveMlp)
      o.gemm(q, {s.ln2, gate_up_weight(w), s.gate_up, false, true, false,
                 w.joined(p_.gate_up_b, 2 * spec_.intermediate_size)});
    if (level < kSaveAll) o.swiglu(q, s.gate_up, s.act);
  }

  // Gradients of y = x·Wᵀ + b: adds dW and db, then writes dx, which may be x.
  static void linear_backward(const OpContext& ctx, Tensor x, Tensor dy, Tensor w, Tensor dw, Tensor db,
                              Tensor dx) {
    ctx.ops.gemm(ctx.stream, {dy, x, dw, true, false, true, {}});
    if (db) ctx.ops.column_sum(ctx.stream, dy, db);
    ctx.ops.gemm(ctx.stream, {dy, w, dx, false, false, false, {}});
  }

  void mlp_backward(const OpContext& ctx, int64_t layer, const UnitView& w, const MicroBatch& mb,
                    const Saved& s, Tensor dy, const UnitView& g) const {
    const Tensor dbranch = branch_gradient(ctx, dy, s.branch, drop(ctx, layer, kDropMlp, mb));
    linear_backward(ctx, s.act, dbranch, w.at(p_.down_w), g.at(p_.down_w), g.at(p_.down_b), s.act);
    ctx.ops.swiglu_backward(ctx.stream, s.gate_up, s.act);
    linear_backward(ctx, s.ln2, s.gate_up, gate_up_weight(w), gate_up_weight(g),
                    g.joined(p_.gate_up_b, 2 * spec_.intermediate_size), s.branch);
    ctx.ops.layer_norm_backward(ctx.stream,
                                {s.x_mid, w.at(p_.ln2), {}, s.rstd2, s.branch, dy, g.at(p_.ln2), {}, true});
  }

  void attention_backward(const OpContext& ctx, int64_t layer, const UnitView& w, const MicroBatch& mb,
                          const Saved& s, Tensor x, Tensor dy, const UnitView& g) const {
    const AttentionShape a = spec_.attention(mb.batch, mb.seq_len, layer);
    const int64_t n = mb.tokens_count();
    const Tensor dbranch = branch_gradient(ctx, dy, s.branch, drop(ctx, layer, kDropProjection, mb));
    const Tensor dattn(s.mid.data, s.mid.dtype, {n, a.q_width()}),
        dqkv(s.wide.data, s.wide.dtype, {n, a.qkv_width()});
    linear_backward(ctx, s.attn, dbranch, w.at(p_.out_w), g.at(p_.out_w), g.at(p_.out_b), dattn);
    ctx.ops.attention_backward(ctx.stream, {s.qkv, s.attn, s.lse, dattn, dqkv, s.delta, a,
                                            drop_attention(ctx, layer, mb), mb.documents()});
    const RopeTable& t = rope_.get(mb.seq_len);
    ctx.ops.rope_backward(
        ctx.stream, {dqkv, s.raw, mb.positions, w.at(p_.q_norm), w.at(p_.k_norm), g.at(p_.q_norm),
                     g.at(p_.k_norm), a, t.inv_freq.data(), t.factor, static_cast<float>(spec_.norm_eps)});
    linear_backward(ctx, s.ln1, dqkv, qkv_weight(w, a), qkv_weight(g, a), g.joined(p_.qkv_b, a.qkv_width()),
                    s.branch);
    ctx.ops.layer_norm_backward(ctx.stream,
                                {x, w.at(p_.ln1), {}, s.rstd1, s.branch, dy, g.at(p_.ln1), {}, true});
  }

  BlockIndex p_;
  RopeTables rope_;
};

class Decoder : public Model {
 public:
  explicit Decoder(const ModelSpec& s) : Model(s) {
    end_.rms = true;
    add_embedding();
    const BlockIndex block = add_blocks();
    add_head();
    embedding_ = std::make_unique<TokenEmbedding>(spec_, end_);
    block_ = std::make_unique<DecoderBlock>(spec_, block);
    head_ = std::make_unique<LmHead>(spec_, end_);
  }

 private:
  void add_embedding() {
    UnitLayout u;
    u.name = spec_.tied ? "embedding + head" : "embedding";
    end_.wte = u.add("model.embed_tokens.weight", {spec_.vocab_size, spec_.hidden_size}, Init::normal,
                     spec_.init_std, padded_vocabulary(spec_));
    if (spec_.tied) end_.ln_w = u.add("model.norm.weight", {spec_.hidden_size}, Init::ones);
    units_.push_back(std::move(u));
  }

  BlockIndex add_blocks() {
    BlockIndex i{};
    for (int64_t layer = 0; layer < spec_.num_layers; ++layer) {
      UnitLayout u;
      u.name = "block " + std::to_string(layer);
      const std::string h = "model.layers." + std::to_string(layer) + ".";
      i.ln1 = u.add(h + "input_layernorm.weight", {spec_.hidden_size}, Init::ones);
      add_attention(u, h + "self_attn.", i);
      i.ln2 = u.add(h + "post_attention_layernorm.weight", {spec_.hidden_size}, Init::ones);
      add_mlp(u, h + "mlp.", i);
      units_.push_back(std::move(u));
    }
    return i;
  }

  void add_attention(UnitLayout& u, const std::string& h, BlockIndex& i) const {
    const AttentionShape a = spec_.attention(1, 1, 0);
    const int64_t c = spec_.hidden_size, q = a.q_width(), kv = a.kv_width();
    const double std = spec_.init_std;
    i.qkv_w = u.add(h + "q_proj.weight", {q, c}, Init::normal, std);
    u.adjoin(h + "k_proj.weight", {kv, c}, Init::normal, std);
    u.adjoin(h + "v_proj.weight", {kv, c}, Init::normal, std);
    i.qkv_b = spec_.qkv_bias ? u.add(h + "q_proj.bias", {q}, Init::zeros) : -1;
    if (spec_.qkv_bias) {
      u.adjoin(h + "k_proj.bias", {kv}, Init::zeros);
      u.adjoin(h + "v_proj.bias", {kv}, Init::zeros);
    }
    i.q_norm = spec_.qk_norm ? u.add(h + "q_norm.weight", {a.head_dim}, Init::ones) : -1;
    i.k_norm = spec_.qk_norm ? u.add(h + "k_norm.weight", {a.head_dim}, Init::ones) : -1;
    i.out_w = u.add(h + "o_proj.weight", {c, q}, Init::normal, std);
    i.out_b = spec_.output_bias ? u.add(h + "o_proj.bias", {c}, Init::zeros) : -1;
  }

  void add_mlp(UnitLayout& u, const std::string& h, BlockIndex& i) const {
    const int64_t c = spec_.hidden_size, f = spec_.intermediate_size;
    const double std = spec_.init_std;
    i.gate_up_w = u.add(h + "gate_proj.weight", {f, c}, Init::normal, std);
    u.adjoin(h + "up_proj.weight", {f, c}, Init::normal, std);
    i.gate_up_b = spec_.mlp_bias ? u.add(h + "gate_proj.bias", {f}, Init::zeros) : -1;
    if (spec_.mlp_bias) u.adjoin(h + "up_proj.bias", {f}, Init::zeros);
    i.down_w = u.add(h + "down_proj.weight", {c, f}, Init::normal, std);
    i.down_b = spec_.mlp_bias ? u.add(h + "down_proj.bias", {c}, Init::zeros) : -1;
  }

  void add_head() {
    if (spec_.tied) return;
    UnitLayout u;
    u.name = "final norm + head";
    end_.ln_w = u.add("model.norm.weight", {spec_.hidden_size}, Init::ones);
    end_.head = u.add("lm_head.weight", {spec_.vocab_size, spec_.hidden_size}, Init::normal, spec_.init_std,
                      padded_vocabulary(spec_));
    units_.push_back(std::move(u));
  }

  EndIndex end_;
};

}  // namespace

std::unique_ptr<Model> make_decoder(const ModelSpec& spec) {
  return std::make_unique<Decoder>(spec);
}

}  // namespace megatrain
