#include "model/ends.h"

#include <algorithm>

namespace megatrain {

Dropout dropout_at(const OpContext& ctx, int64_t layer, DropoutPlace place, int64_t first) {
  return {static_cast<float>(ctx.dropout), ctx.dropout_seed,
          static_cast<uint64_t>(layer + 1) * kPlaces + place, static_cast<uint64_t>(first)};
}

int64_t padded_vocabulary(const ModelSpec& s) {
  return (s.vocab_size + 63) / 64 * 64;
}

Dropout TokenEmbedding::mask(const OpContext& ctx, const MicroBatch& mb) const {
  return dropout_at(ctx, -1, kDropEmbedding, mb.first_sequence * mb.seq_len * spec_.hidden_size);
}

void TokenEmbedding::forward(const OpContext& ctx, const UnitView& w, const MicroBatch& mb, Tensor x) const {
  ctx.ops.embedding(ctx.stream,
                    {mb.tokens, w.at(p_.wte), w.at(p_.wpe), x, mb.seq_len, mask(ctx, mb), mb.positions});
}

void TokenEmbedding::backward(const OpContext& ctx, const MicroBatch& mb, Tensor dx,
                              const UnitView& g) const {
  ctx.ops.embedding_backward(
      ctx.stream, {mb.tokens, dx, g.at(p_.wte), g.at(p_.wpe), mb.seq_len, mask(ctx, mb), mb.positions});
}

struct LmHead::Saved {
  Tensor ln, mean, rstd, losses, logits, dln;
  int64_t bytes;
};

LmHead::Saved LmHead::carve(void* base, int64_t n, DType type, bool backward) const {
  // Large enough that adding to the weight's gradient once a chunk costs little beside the product.
  const int64_t goal = type == DType::bf16 ? int64_t{128} << 20 : int64_t{16} << 20,
                v = padded_vocabulary(spec_);
  const int64_t chunk = std::clamp<int64_t>(goal / v / 64 * 64, 64, std::max<int64_t>(n, 64));
  const int64_t c = spec_.hidden_size;
  Workspace ws(base);
  Saved s;
  s.ln = ws.take(type, {n, c}), s.rstd = ws.take(DType::f32, {n});
  if (!p_.rms) s.mean = ws.take(DType::f32, {n});
  s.losses = ws.take(DType::f32, {n});
  s.logits = ws.take(type, {std::min(chunk, n), v});
  if (backward) s.dln = ws.take(type, {n, c});
  s.bytes = ws.used();
  return s;
}

int64_t LmHead::work_bytes(int64_t batch, int64_t seq_len, DType compute, bool backward) const {
  return carve(nullptr, batch * seq_len, compute, backward).bytes;
}

// The table with its rows of zeros: [padded V, C].
Tensor LmHead::padded(Tensor table) const {
  table.shape[0] = padded_vocabulary(spec_);
  return table;
}

void LmHead::norm(const OpContext& ctx, const UnitView& w, Tensor x, const Saved& s) const {
  ctx.ops.layer_norm(ctx.stream, {x, w.at(p_.ln_w), w.at(p_.ln_b), s.ln, s.mean, s.rstd,
                                  static_cast<float>(spec_.norm_eps)});
}

void LmHead::loss(const OpContext& ctx, const UnitView& w, const MicroBatch& mb, Tensor x, Tensor loss,
                  const UnitView* g) const {
  const int64_t n = mb.tokens_count();
  const Saved s = carve(ctx.work, n, ctx.compute, g != nullptr);
  const Tensor weight = padded(w.at(p_.head)), dweight = g ? padded(g->at(p_.head)) : Tensor{};
  norm(ctx, w, x, s);
  for (int64_t first = 0; first < n; first += s.logits.shape[0]) {
    const int64_t rows = std::min(s.logits.shape[0], n - first);
    const Tensor logits = s.logits.rows(0, rows), y = s.ln.rows(first, rows);
    ctx.ops.gemm(ctx.stream, {y, weight, logits, false, true, false, {}});
    ctx.ops.cross_entropy(ctx.stream, {Tensor(logits.data, logits.dtype, {rows, spec_.vocab_size}),
                                       mb.targets.rows(first, rows), s.losses.rows(first, rows),
                                       ctx.loss_scale, g != nullptr, logits.shape[1]});
    if (!g) continue;
    ctx.ops.gemm(ctx.stream, {logits, y, dweight, true, false, true, {}});
    ctx.ops.gemm(ctx.stream, {logits, weight, s.dln.rows(first, rows), false, false, false, {}});
  }
  ctx.ops.sum(ctx.stream, s.losses, loss, false);
  if (g)
    ctx.ops.layer_norm_backward(
        ctx.stream, {x, w.at(p_.ln_w), s.mean, s.rstd, s.dln, x, g->at(p_.ln_w), g->at(p_.ln_b), false});
}

void LmHead::logits(const OpContext& ctx, const UnitView& w, const MicroBatch& mb, Tensor x, int64_t position,
                    Tensor logits) const {
  const Saved s = carve(ctx.work, mb.tokens_count(), ctx.compute, false);
  norm(ctx, w, x, s);
  for (int64_t b = 0; b < mb.batch; ++b)
    ctx.ops.gemm(
        ctx.stream,
        {s.ln.rows(b * mb.seq_len + position, 1), w.at(p_.head), logits.rows(b, 1), false, true, false, {}});
}

}  // namespace megatrain
