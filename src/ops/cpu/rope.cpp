// Rotary positions, with Qwen3's per-head RMS norms in front.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"

namespace megatrain {
namespace {

constexpr int64_t kMaxHeadDim = 512;
constexpr int64_t kTokens = 32;  // tokens an item: fixed, so that sums over tokens have one order

struct Angles {
  std::array<float, kMaxHeadDim / 2> cosine, sine;
};

// fp32 throughout, as transformers' rotary embedding.
template <class Args>
void fill_angles(const Args& a, int64_t n, float direction, Angles& out) {
  const int32_t position = a.positions ? a.positions.i32()[n] : static_cast<int32_t>(n % a.shape.seq_len);
  for (int64_t i = 0; i < a.shape.head_dim / 2; ++i) {
    const float angle = static_cast<float>(position) * a.inv_freq[i];
    out.cosine[static_cast<size_t>(i)] = std::cos(angle) * a.factor;
    out.sine[static_cast<size_t>(i)] = std::sin(angle) * a.factor * direction;
  }
}

void forward_token(const RopeArgs& a, int64_t n) {
  const AttentionShape& s = a.shape;
  const CpuKernels& k = cpu_kernels();
  Angles angles;
  fill_angles(a, n, 1, angles);
  for (int64_t h = 0; h < s.num_heads + s.num_kv_heads; ++h) {
    const float* in = a.in.f32() + n * s.qkv_width() + h * s.head_dim;
    float* out = a.out.f32() + n * s.qkv_width() + h * s.head_dim;
    if (const Tensor& w = h < s.num_heads ? a.q_norm : a.k_norm) {
      float rstd;
      k.layer_norm_row(s.head_dim, in, w.f32(), nullptr, a.eps, out, nullptr, &rstd);
      in = out;
    }
    k.rotate(s.head_dim / 2, angles.cosine.data(), angles.sine.data(), in, out);
  }
  if (a.in.data != a.out.data) {
    const int64_t at = n * s.qkv_width() + s.q_width() + s.kv_width();
    std::copy_n(a.in.f32() + at, s.kv_width(), a.out.f32() + at);
  }
}

// `dw`: this item's sums for q_norm [D], then k_norm [D].
void backward_token(const RopeBackwardArgs& a, int64_t n, float* dw) {
  const AttentionShape& s = a.shape;
  const CpuKernels& k = cpu_kernels();
  Angles angles;
  fill_angles(a, n, -1, angles);
  for (int64_t h = 0; h < s.num_heads + s.num_kv_heads; ++h) {
    const int64_t at = n * s.qkv_width() + h * s.head_dim;
    float* g = a.grad.f32() + at;
    k.rotate(s.head_dim / 2, angles.cosine.data(), angles.sine.data(), g, g);
    const Tensor& w = h < s.num_heads ? a.q_norm : a.k_norm;
    if (!dw) continue;  // a model without head norms
    const float* x = a.in.f32() + at;
    std::array<float, kMaxHeadDim> unused;
    float rstd;
    k.layer_norm_row(s.head_dim, x, w.f32(), nullptr, a.eps, unused.data(), nullptr, &rstd);
    float* sums = dw + (h < s.num_heads ? 0 : s.head_dim);
    for (int64_t i = 0; i < s.head_dim; ++i) sums[i] += g[i] * x[i] * rstd;
    k.layer_norm_backward_row(s.head_dim, x, w.f32(), nullptr, rstd, g, g, false);
  }
}

void check(const AttentionShape& s) {
  if (s.head_dim % 2 != 0 || s.head_dim > kMaxHeadDim)
    throw std::logic_error("rope: head_dim must be even and at most 512");
}

}  // namespace

void CpuOps::rope(Stream& s, const RopeArgs& args) {
  check(args.shape);
  cpu_stream(s).enqueue([a = args](ThreadPool& pool) {
    pool.parallel_ranges(a.shape.batch * a.shape.seq_len, kTokens, [&](int64_t b, int64_t e) {
      for (int64_t n = b; n < e; ++n) forward_token(a, n);
    });
  });
}

void CpuOps::rope_backward(Stream& s, const RopeBackwardArgs& args) {
  check(args.shape);
  cpu_stream(s).enqueue([a = args](ThreadPool& pool) {
    const int64_t tokens = a.shape.batch * a.shape.seq_len, d = a.shape.head_dim;
    const int64_t items = (tokens + kTokens - 1) / kTokens;
    std::vector<float> part(static_cast<size_t>(a.q_norm ? items * 2 * d : 0));
    pool.parallel_ranges(tokens, kTokens, [&](int64_t b, int64_t e) {
      for (int64_t n = b; n < e; ++n)
        backward_token(a, n, part.empty() ? nullptr : part.data() + b / kTokens * 2 * d);
    });
    if (part.empty()) return;
    for (int64_t i = 0; i < items; ++i) {
      cpu_kernels().axpy(d, 1, part.data() + i * 2 * d, a.dq_norm.f32());
      cpu_kernels().axpy(d, 1, part.data() + i * 2 * d + d, a.dk_norm.f32());
    }
  });
}

}  // namespace megatrain
