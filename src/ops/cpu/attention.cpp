// Flash-style causal attention (Dao et al. 2022, 2023): tiles of 64 queries by 64 keys, online softmax
// forward, probabilities made again from the saved log-sum-exp backward. No T×T matrix exists.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/gemm_tile.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"

namespace megatrain {
namespace {

constexpr int64_t kTile = 64;
struct Scratch {
  alignas(64) float s[kTile * kTile];   // scores, then probabilities
  alignas(64) float dp[kTile * kTile];  // their gradients
};
thread_local Scratch scratch;

// One query head of one sequence: where its rows lie and what they see.
struct Head {
  const float *q, *k, *v;
  float* out;           // or dout in the backward
  int64_t ld_q, ld_kv;  // from token to token
  int64_t ld_out, d, queries, keys;
  int64_t past;  // keys before the first query's own
  int64_t window;
  float scale;
  const int32_t* positions;  // of this sequence, null: one document
};

Head head_of(const AttentionShape& s, const float* qkv, float* out, int64_t b, int64_t h,
             const Tensor& positions) {
  Head x{};
  x.ld_q = x.ld_kv = s.qkv_width(), x.ld_out = s.q_width(), x.d = s.head_dim;
  x.q = qkv + b * s.seq_len * x.ld_q + h * s.head_dim;
  x.k = qkv + b * s.seq_len * x.ld_q + s.q_width() + h / s.group() * s.head_dim, x.v = x.k + s.kv_width();
  x.out = out + b * s.seq_len * x.ld_out + h * s.head_dim;
  x.queries = x.keys = s.seq_len;
  x.window = s.window > 0 ? s.window : std::numeric_limits<int64_t>::max() / 2;
  x.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  x.positions = positions ? positions.i32() + b * s.seq_len : nullptr;
  return x;
}

// s[i, j] = scale · q_i·k_j for a tile; s has leading dimension kTile.
void scores(const Head& x, int64_t q0, int64_t nq, int64_t k0, int64_t nk, float* s) {
  gemm_tile(false, true, nq, nk, x.d, x.scale, x.q + q0 * x.ld_q, x.ld_q, x.k + k0 * x.ld_kv, x.ld_kv, 0, s,
            kTile);
}

// First key that a query sees: of its document, within the window.
int64_t first_key(const Head& x, int64_t query) {
  const int64_t at = x.past + query, document = x.positions ? at - x.positions[query] : 0;
  return std::max(at - x.window + 1, document);
}

// Keys [first, last) of the tile that query row q0 + i may see.
struct Seen {
  int64_t first, last;
};
Seen seen(const Head& x, int64_t q0, int64_t i, int64_t k0, int64_t nk) {
  const int64_t last = std::clamp<int64_t>(x.past + q0 + i - k0 + 1, 0, nk);
  return {std::clamp<int64_t>(first_key(x, q0 + i) - k0, 0, last), last};
}

// First key tile that any query of the tile at q0 sees: later queries see no earlier keys.
int64_t first_tile(const Head& x, int64_t q0) {
  return first_key(x, q0) / kTile * kTile;
}

void drop(const Dropout& d, int64_t item, int64_t t, int64_t row, int64_t key, int64_t n, float* p) {
  DropoutMask mask(d, static_cast<uint64_t>((item * t + row) * t + key));
  for (int64_t j = 0; j < n; ++j) p[j] *= mask.next();
}

// `item` numbers (sequence, head); lse may be null.
void forward_tile(const Head& x, const Dropout& dropout, int64_t item, int64_t q0, float* lse) {
  const int64_t nq = std::min(kTile, x.queries - q0), begin = first_tile(x, q0);
  float* out = x.out + q0 * x.ld_out;
  float row_max[kTile], row_sum[kTile];
  std::fill_n(row_max, nq, -std::numeric_limits<float>::infinity());
  std::fill_n(row_sum, nq, 0.0f);
  const CpuKernels& kn = cpu_kernels();
  float* s = scratch.s;
  for (int64_t k0 = begin; k0 < x.past + q0 + nq; k0 += kTile) {
    const int64_t nk = std::min(kTile, x.keys - k0);
    scores(x, q0, nq, k0, nk, s);
    for (int64_t i = 0; i < nq; ++i) {
      const Seen n = seen(x, q0, i, k0, nk);
      float* row = s + i * kTile;
      std::fill(row, row + n.first, 0.0f);
      std::fill(row + n.last, row + nk, 0.0f);
      if (n.first == n.last) continue;
      row += n.first;
      const float new_max = std::max(row_max[i], kn.max(n.last - n.first, row));
      const float keep = std::exp(row_max[i] - new_max);  // 0 at first: row_max is -inf
      row_sum[i] = row_sum[i] * keep + kn.exp_sum(n.last - n.first, new_max, row);
      row_max[i] = new_max;
      if (k0 > begin) kn.scale(x.d, keep, out + i * x.ld_out);
      if (dropout.probability > 0) drop(dropout, item, x.keys, q0 + i, k0 + n.first, n.last - n.first, row);
    }
    gemm_tile(false, false, nq, x.d, nk, 1, s, kTile, x.v + k0 * x.ld_kv, x.ld_kv, k0 == begin ? 0.0f : 1.0f,
              out, x.ld_out);
  }
  for (int64_t i = 0; i < nq; ++i) {
    kn.scale(x.d, 1.0f / row_sum[i], out + i * x.ld_out);
    if (lse) lse[q0 + i] = row_max[i] + std::log(row_sum[i]);
  }
}

// One tile pair of the backward: s becomes (dropped) P, dp becomes dS. x.out is dout.
void backward_tile(const Head& x, const Dropout& dropout, int64_t item, int64_t q0, int64_t k0,
                   const float* lse, const float* delta) {
  const int64_t nq = std::min(kTile, x.queries - q0), nk = std::min(kTile, x.keys - k0);
  float *s = scratch.s, *dp = scratch.dp;
  scores(x, q0, nq, k0, nk, s);
  gemm_tile(false, true, nq, nk, x.d, 1, x.out + q0 * x.ld_out, x.ld_out, x.v + k0 * x.ld_kv, x.ld_kv, 0, dp,
            kTile);
  for (int64_t i = 0; i < nq; ++i) {
    const Seen n = seen(x, q0, i, k0, nk);
    float *p = s + i * kTile, *g = dp + i * kTile;
    std::fill(p, p + n.first, 0.0f), std::fill(g, g + n.first, 0.0f);
    std::fill(p + n.last, p + nk, 0.0f), std::fill(g + n.last, g + nk, 0.0f);
    if (n.first == n.last) continue;
    cpu_kernels().exp_sum(n.last - n.first, lse[q0 + i], p + n.first);
    const float mean = delta[q0 + i];
    if (dropout.probability > 0) {
      DropoutMask mask(dropout, static_cast<uint64_t>((item * x.keys + q0 + i) * x.keys + k0 + n.first));
      for (int64_t j = n.first; j < n.last; ++j) {
        const float keep = mask.next();
        g[j] = p[j] * (g[j] * keep - mean) * x.scale;
        p[j] *= keep;
      }
    } else {
      for (int64_t j = n.first; j < n.last; ++j) g[j] = p[j] * (g[j] - mean) * x.scale;
    }
  }
}

// All query heads of one key-value head, in order: dK and dV are sums over them.
struct BackwardGroup {
  const AttentionBackwardArgs& a;
  int64_t b, kv;

  void run() const {
    const AttentionShape& s = a.shape;
    for (int64_t g = 0; g < s.group(); ++g) fill_delta(kv * s.group() + g);
    for (int64_t k0 = 0; k0 < s.seq_len; k0 += kTile)
      for (int64_t g = 0; g < s.group(); ++g) head(kv * s.group() + g, k0, g == 0);
  }

 private:
  float* row_values(const Tensor& t, int64_t h) const {
    return t.f32() + (b * a.shape.num_heads + h) * a.shape.seq_len;
  }

  void fill_delta(int64_t h) const {
    const AttentionShape& s = a.shape;
    const int64_t at = b * s.seq_len * s.q_width() + h * s.head_dim;
    float* delta = row_values(a.delta, h);
    for (int64_t i = 0; i < s.seq_len; ++i)
      delta[i] = cpu_kernels().dot(s.head_dim, a.dout.f32() + at + i * s.q_width(),
                                   a.out.f32() + at + i * s.q_width());
  }

  void head(int64_t h, int64_t k0, bool first_head) const {
    const AttentionShape& s = a.shape;
    const Head x = head_of(s, a.qkv.f32(), a.dout.f32(), b, h, a.documents.positions);
    float* grad = a.dqkv.f32() + b * s.seq_len * s.qkv_width();
    float *dq = grad + h * s.head_dim, *dk = grad + s.q_width() + kv * s.head_dim, *dv = dk + s.kv_width();
    const int64_t ld = s.qkv_width(), nk = std::min(kTile, s.seq_len - k0);
    for (int64_t q0 = k0; q0 < s.seq_len && first_tile(x, q0) <= k0; q0 += kTile) {
      const int64_t nq = std::min(kTile, s.seq_len - q0);
      backward_tile(x, a.dropout, b * s.num_heads + h, q0, k0, row_values(a.lse, h), row_values(a.delta, h));
      const float keep = first_head && q0 == k0 ? 0.0f : 1.0f;  // the first tile overwrites dK, dV
      gemm_tile(true, false, nk, x.d, nq, 1, scratch.s, kTile, x.out + q0 * x.ld_out, x.ld_out, keep,
                dv + k0 * ld, ld);
      gemm_tile(true, false, nk, x.d, nq, 1, scratch.dp, kTile, x.q + q0 * x.ld_q, x.ld_q, keep, dk + k0 * ld,
                ld);
      gemm_tile(false, false, nq, x.d, nk, 1, scratch.dp, kTile, x.k + k0 * x.ld_kv, x.ld_kv,
                k0 == first_tile(x, q0) ? 0.0f : 1.0f, dq + q0 * ld, ld);
    }
  }
};

// The new keys and values of one sequence go behind those it has.
void append(const CachedAttentionArgs& a, int64_t b) {
  const AttentionShape& s = a.shape;
  const int64_t row = 2 * s.kv_width(), past = a.past.i32()[b];
  for (int64_t t = 0; t < s.seq_len; ++t)
    std::memcpy(a.cache.f32() + (b * a.capacity + past + t) * row,
                a.qkv.f32() + (b * s.seq_len + t) * s.qkv_width() + s.q_width(),
                static_cast<size_t>(row) * sizeof(float));
}

Head cached_head(const CachedAttentionArgs& a, int64_t b, int64_t h) {
  const AttentionShape& s = a.shape;
  Head x = head_of(s, a.qkv.f32(), a.out.f32(), b, h, {});
  x.ld_kv = 2 * s.kv_width();
  x.k = a.cache.f32() + b * a.capacity * x.ld_kv + h / s.group() * s.head_dim, x.v = x.k + s.kv_width();
  x.past = a.past.i32()[b], x.keys = x.past + s.seq_len;
  return x;
}

}  // namespace

void CpuOps::attention(Stream& s, const AttentionArgs& args) {
  cpu_stream(s).enqueue([a = args](ThreadPool& pool) {
    const AttentionShape& n = a.shape;
    const int64_t tiles = (n.seq_len + kTile - 1) / kTile;
    pool.parallel_for(n.batch * n.num_heads * tiles, [&](int64_t i) {
      const int64_t item = i / tiles;
      const Head head =
          head_of(n, a.qkv.f32(), a.out.f32(), item / n.num_heads, item % n.num_heads, a.documents.positions);
      forward_tile(head, a.dropout, item, i % tiles * kTile, a.lse.f32() + item * n.seq_len);
    });
  });
}

void CpuOps::attention_backward(Stream& s, const AttentionBackwardArgs& args) {
  cpu_stream(s).enqueue([a = args](ThreadPool& pool) {
    pool.parallel_for(a.shape.batch * a.shape.num_kv_heads, [&](int64_t i) {
      BackwardGroup{a, i / a.shape.num_kv_heads, i % a.shape.num_kv_heads}.run();
    });
  });
}

void CpuOps::attention_cached(Stream& s, const CachedAttentionArgs& args) {
  cpu_stream(s).enqueue([a = args](ThreadPool& pool) {
    const AttentionShape& n = a.shape;
    const int64_t tiles = (n.seq_len + kTile - 1) / kTile;
    pool.parallel_for(n.batch, [&](int64_t b) { append(a, b); });
    pool.parallel_for(n.batch * n.num_heads * tiles, [&](int64_t i) {
      const int64_t item = i / tiles;
      forward_tile(cached_head(a, item / n.num_heads, item % n.num_heads), {}, item, i % tiles * kTile,
                   nullptr);
    });
  });
}

}  // namespace megatrain
