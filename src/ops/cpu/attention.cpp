// Flash-style causal attention (Dao et al. 2022, 2023): tiles of 64 queries by 64 keys, online softmax
// forward, probabilities made again from the saved log-sum-exp backward. No T×T matrix exists.
#include <algorithm>
#include <cmath>
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

// Strides and base pointers of one (sequence, head) inside the packed tensors.
struct Head {
  int64_t t, d, ld_qkv, ld_out;
  const float *q, *k, *v;
  int64_t qkv_offset, out_offset, lse_offset;
  float scale;
};

template <class Args>
Head head_of(const Args& a, int64_t item) {
  const int64_t b = item / a.num_heads, h = item % a.num_heads;
  const int64_t c = a.num_heads * a.head_dim;
  Head x{};
  x.t = a.seq_len, x.d = a.head_dim, x.ld_qkv = 3 * c, x.ld_out = c;
  x.qkv_offset = b * a.seq_len * 3 * c + h * a.head_dim;
  x.out_offset = b * a.seq_len * c + h * a.head_dim;
  x.lse_offset = item * a.seq_len;
  x.q = a.qkv.f32() + x.qkv_offset, x.k = x.q + c, x.v = x.k + c;
  x.scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  return x;
}

// s[i, j] = scale · q_i·k_j for a tile; s has leading dimension kTile.
void scores(const Head& x, int64_t q0, int64_t nq, int64_t k0, int64_t nk, float* s) {
  gemm_tile(false, true, nq, nk, x.d, x.scale, x.q + q0 * x.ld_qkv, x.ld_qkv, x.k + k0 * x.ld_qkv, x.ld_qkv,
            0, s, kTile);
}

// Keys that query row `i` of the tile may see.
int64_t visible(int64_t q0, int64_t i, int64_t k0, int64_t nk) {
  return std::clamp<int64_t>(q0 + i - k0 + 1, 0, nk);
}

void drop(const Dropout& d, int64_t item, int64_t t, int64_t row, int64_t k0, int64_t n, float* p) {
  DropoutMask mask(d, static_cast<uint64_t>((item * t + row) * t + k0));
  for (int64_t j = 0; j < n; ++j) p[j] *= mask.next();
}

void forward_tile(const AttentionArgs& a, int64_t item, int64_t q0) {
  const Head x = head_of(a, item);
  const int64_t nq = std::min(kTile, x.t - q0);
  float* out = a.out.f32() + x.out_offset + q0 * x.ld_out;
  float row_max[kTile], row_sum[kTile];
  std::fill_n(row_max, nq, -std::numeric_limits<float>::infinity());
  std::fill_n(row_sum, nq, 0.0f);
  const CpuKernels& kn = cpu_kernels();
  float* s = scratch.s;
  for (int64_t k0 = 0; k0 < q0 + nq; k0 += kTile) {
    const int64_t nk = std::min(kTile, x.t - k0);
    scores(x, q0, nq, k0, nk, s);
    for (int64_t i = 0; i < nq; ++i) {
      const int64_t n = visible(q0, i, k0, nk);
      float* row = s + i * kTile;
      std::fill(row + n, row + nk, 0.0f);
      if (n == 0) continue;
      const float new_max = std::max(row_max[i], kn.max(n, row));
      const float keep = k0 == 0 ? 0.0f : std::exp(row_max[i] - new_max);
      row_sum[i] = row_sum[i] * keep + kn.exp_sum(n, new_max, row);
      row_max[i] = new_max;
      if (k0 > 0) kn.scale(x.d, keep, out + i * x.ld_out);
      if (a.dropout.probability > 0) drop(a.dropout, item, x.t, q0 + i, k0, n, row);
    }
    gemm_tile(false, false, nq, x.d, nk, 1, s, kTile, x.v + k0 * x.ld_qkv, x.ld_qkv, k0 == 0 ? 0.0f : 1.0f,
              out, x.ld_out);
  }
  for (int64_t i = 0; i < nq; ++i) {
    kn.scale(x.d, 1.0f / row_sum[i], out + i * x.ld_out);
    a.lse.f32()[x.lse_offset + q0 + i] = row_max[i] + std::log(row_sum[i]);
  }
}

// One tile pair of the backward: s becomes (dropped) P, dp becomes dS.
void backward_tile(const AttentionBackwardArgs& a, const Head& x, int64_t item, int64_t q0, int64_t k0) {
  const int64_t nq = std::min(kTile, x.t - q0), nk = std::min(kTile, x.t - k0);
  const float *dout = a.dout.f32() + x.out_offset + q0 * x.ld_out, *lse = a.lse.f32() + x.lse_offset + q0;
  const float* delta = a.delta.f32() + x.lse_offset + q0;
  float *s = scratch.s, *dp = scratch.dp;
  scores(x, q0, nq, k0, nk, s);
  gemm_tile(false, true, nq, nk, x.d, 1, dout, x.ld_out, x.v + k0 * x.ld_qkv, x.ld_qkv, 0, dp, kTile);
  for (int64_t i = 0; i < nq; ++i) {
    const int64_t n = visible(q0, i, k0, nk);
    float *p = s + i * kTile, *g = dp + i * kTile;
    std::fill(p + n, p + nk, 0.0f);
    std::fill(g + n, g + nk, 0.0f);
    if (n == 0) continue;
    cpu_kernels().exp_sum(n, lse[i], p);
    if (a.dropout.probability > 0) {
      DropoutMask mask(a.dropout, static_cast<uint64_t>((item * x.t + q0 + i) * x.t + k0));
      for (int64_t j = 0; j < n; ++j) {
        const float keep = mask.next();
        g[j] = p[j] * (g[j] * keep - delta[i]) * x.scale;
        p[j] *= keep;
      }
    } else {
      for (int64_t j = 0; j < n; ++j) g[j] = p[j] * (g[j] - delta[i]) * x.scale;
    }
  }
}

void backward_head(const AttentionBackwardArgs& a, int64_t item) {
  const Head x = head_of(a, item);
  const int64_t c = a.num_heads * a.head_dim;
  float *dq = a.dqkv.f32() + x.qkv_offset, *dk = dq + c, *dv = dk + c;
  const float* dout = a.dout.f32() + x.out_offset;
  const float* out = a.out.f32() + x.out_offset;
  float* delta = a.delta.f32() + x.lse_offset;
  for (int64_t i = 0; i < x.t; ++i)
    delta[i] = cpu_kernels().dot(x.d, dout + i * x.ld_out, out + i * x.ld_out);
  for (int64_t k0 = 0; k0 < x.t; k0 += kTile) {
    const int64_t nk = std::min(kTile, x.t - k0);
    for (int64_t q0 = k0; q0 < x.t; q0 += kTile) {
      const int64_t nq = std::min(kTile, x.t - q0);
      backward_tile(a, x, item, q0, k0);
      const float keep = q0 == k0 ? 0.0f : 1.0f;  // first tile overwrites dK, dV
      gemm_tile(true, false, nk, x.d, nq, 1, scratch.s, kTile, dout + q0 * x.ld_out, x.ld_out, keep,
                dv + k0 * x.ld_qkv, x.ld_qkv);
      gemm_tile(true, false, nk, x.d, nq, 1, scratch.dp, kTile, x.q + q0 * x.ld_qkv, x.ld_qkv, keep,
                dk + k0 * x.ld_qkv, x.ld_qkv);
      gemm_tile(false, false, nq, x.d, nk, 1, scratch.dp, kTile, x.k + k0 * x.ld_qkv, x.ld_qkv,
                k0 == 0 ? 0.0f : 1.0f, dq + q0 * x.ld_qkv, x.ld_qkv);
    }
  }
}

}  // namespace

void CpuOps::attention(Stream& s, const AttentionArgs& a) {
  cpu_stream(s).enqueue([a](ThreadPool& pool) {
    const int64_t tiles = (a.seq_len + kTile - 1) / kTile;
    pool.parallel_for(a.batch * a.num_heads * tiles,
                      [&](int64_t i) { forward_tile(a, i / tiles, i % tiles * kTile); });
  });
}

void CpuOps::attention_backward(Stream& s, const AttentionBackwardArgs& a) {
  cpu_stream(s).enqueue([a](ThreadPool& pool) {
    pool.parallel_for(a.batch * a.num_heads, [&](int64_t i) { backward_head(a, i); });
  });
}

}  // namespace megatrain
