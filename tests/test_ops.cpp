// CPU ops against plain double-precision references, and instruction sets against each other.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/rng.h"
#include "device/cpu/cpu_device.h"
#include "ops/cpu/gemm_tile.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"

namespace megatrain {
namespace {

std::vector<float> noise(int64_t n, uint64_t seed, float scale = 1) {
  std::vector<float> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = scale * (2 * static_cast<float>(random_uniform(seed, 0, i)) - 1);
  return v;
}

Tensor view(std::vector<float>& v, std::initializer_list<int64_t> shape) {
  return {v.data(), DType::f32, shape};
}

struct OpsTest : ::testing::Test {
  CpuDevice device{int64_t{1} << 26, 2};
  std::unique_ptr<Stream> stream = device.new_stream("compute");
  Ops& ops = device.ops();
};

TEST_F(OpsTest, GemmAllTransposesBiasAndAccumulation) {
  for (auto [m, n, k] : {std::tuple{1, 1, 1}, {3, 7, 5}, {64, 96, 33}, {257, 130, 300}, {20, 515, 600}})
    for (bool ta : {false, true})
      for (bool tb : {false, true})
        for (bool accumulate : {false, true}) {
          auto a = noise(m * k, 1), b = noise(k * n, 2), c = noise(m * n, 3), bias = noise(n, 4), want = c;
          for (int i = 0; i < m; ++i)
            for (int j = 0; j < n; ++j) {
              double s = accumulate ? want[static_cast<size_t>(i * n + j)] : 0.0;
              for (int p = 0; p < k; ++p)
                s += static_cast<double>(a[static_cast<size_t>(ta ? p * m + i : i * k + p)]) *
                     b[static_cast<size_t>(tb ? j * k + p : p * n + j)];
              want[static_cast<size_t>(i * n + j)] = static_cast<float>(s + bias[static_cast<size_t>(j)]);
            }
          GemmArgs g{ta ? view(a, {k, m}) : view(a, {m, k}),
                     tb ? view(b, {n, k}) : view(b, {k, n}),
                     view(c, {m, n}),
                     ta,
                     tb,
                     accumulate,
                     view(bias, {n})};
          ops.gemm(*stream, g);
          stream->synchronize();
          for (size_t i = 0; i < c.size(); ++i)
            ASSERT_NEAR(c[i], want[i], 1e-4) << m << " " << n << " " << k << " " << ta << tb;
        }
}

TEST_F(OpsTest, GemmRefusesShapesThatDisagree) {
  std::vector<float> x(100);
  EXPECT_THROW(
      ops.gemm(*stream, {view(x, {4, 5}), view(x, {4, 5}), view(x, {4, 5}), false, false, false, {}}),
      std::logic_error);
}

// Naive causal attention in double, forward and (by the chain rule written out) backward.
struct NaiveAttention {
  AttentionShape n;
  std::vector<double> out, dqkv;
  NaiveAttention(const std::vector<float>& qkv, const std::vector<float>& dout, const AttentionShape& shape,
                 const std::vector<int32_t>& positions = {})
      : n(shape), out(static_cast<size_t>(n.batch * n.seq_len * n.q_width())), dqkv(qkv.size()) {
    const int64_t d = n.head_dim;
    const double scale = 1 / std::sqrt(static_cast<double>(d));
    auto at = [&](int64_t s, int64_t i, int64_t row, int64_t e) {
      return static_cast<size_t>((s * n.seq_len + i) * n.qkv_width() + row * d + e);
    };
    for (int64_t s = 0; s < n.batch; ++s)
      for (int64_t head = 0; head < n.num_heads; ++head)
        for (int64_t i = 0; i < n.seq_len; ++i) {
          const int64_t key = n.num_heads + head / n.group(), value = key + n.num_kv_heads;
          int64_t first = n.window > 0 ? std::max<int64_t>(0, i - n.window + 1) : 0;
          if (!positions.empty())
            first = std::max(first, i - positions[static_cast<size_t>(s * n.seq_len + i)]);
          std::vector<double> p(static_cast<size_t>(i) + 1), dp(p.size());
          double total = 0, mean = 0;
          for (int64_t j = first; j <= i; ++j) {
            double dot = 0;
            for (int64_t e = 0; e < d; ++e)
              dot += static_cast<double>(qkv[at(s, i, head, e)]) * qkv[at(s, j, key, e)];
            total += p[static_cast<size_t>(j)] = std::exp(dot * scale);
          }
          for (int64_t j = first; j <= i; ++j) {
            p[static_cast<size_t>(j)] /= total;
            for (int64_t e = 0; e < d; ++e) {
              const auto o = static_cast<size_t>((s * n.seq_len + i) * n.q_width() + head * d + e);
              out[o] += p[static_cast<size_t>(j)] * qkv[at(s, j, value, e)];
              dp[static_cast<size_t>(j)] += static_cast<double>(dout[o]) * qkv[at(s, j, value, e)];
              dqkv[at(s, j, value, e)] += p[static_cast<size_t>(j)] * dout[o];
            }
            mean += p[static_cast<size_t>(j)] * dp[static_cast<size_t>(j)];
          }
          for (int64_t j = first; j <= i; ++j) {
            const double ds = p[static_cast<size_t>(j)] * (dp[static_cast<size_t>(j)] - mean) * scale;
            for (int64_t e = 0; e < d; ++e) {
              dqkv[at(s, i, head, e)] += ds * qkv[at(s, j, key, e)];
              dqkv[at(s, j, key, e)] += ds * qkv[at(s, i, head, e)];
            }
          }
        }
  }
};

// Plain, grouped key-value heads, windows shorter and longer than a tile.
const AttentionShape kAttentionShapes[] = {
    {1, 1, 1, 1, 4},       {2, 63, 2, 2, 8},      {1, 64, 1, 1, 16},      {2, 130, 3, 3, 8},
    {1, 200, 2, 2, 12},    {2, 130, 6, 2, 8},     {1, 70, 5, 1, 8},       {1, 200, 4, 2, 8, 1},
    {2, 200, 4, 2, 8, 17}, {1, 300, 2, 1, 8, 64}, {1, 300, 2, 2, 8, 130}, {1, 90, 2, 2, 8, 500}};

TEST_F(OpsTest, AttentionMatchesTheNaiveOne) {
  for (const AttentionShape& n : kAttentionShapes) {
    const int64_t b = n.batch, t = n.seq_len, h = n.num_heads, w = n.qkv_width(), c = n.q_width();
    auto qkv = noise(b * t * w, 5, 2), dout = noise(b * t * c, 6);
    std::vector<float> out(dout.size(), NAN), lse(static_cast<size_t>(b * h * t), NAN), dqkv(qkv.size(), NAN),
        delta(lse.size());
    const NaiveAttention want(qkv, dout, n);
    ops.attention(*stream, {view(qkv, {b, t, w}), view(out, {b, t, c}), view(lse, {b, h, t}), n, {}});
    ops.attention_backward(*stream, {view(qkv, {b, t, w}),
                                     view(out, {b, t, c}),
                                     view(lse, {b, h, t}),
                                     view(dout, {b, t, c}),
                                     view(dqkv, {b, t, w}),
                                     view(delta, {b, h, t}),
                                     n,
                                     {}});
    stream->synchronize();
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], want.out[i], 2e-6) << t << " " << n.window;
    for (size_t i = 0; i < dqkv.size(); ++i) ASSERT_NEAR(dqkv[i], want.dqkv[i], 1e-5) << t << " " << n.window;
  }
}

// Documents side by side: borders inside and between tiles, one-token documents, windows.
TEST_F(OpsTest, PackedAttentionMatchesTheNaiveOne) {
  for (const AttentionShape& n : kAttentionShapes) {
    const int64_t b = n.batch, t = n.seq_len, h = n.num_heads, w = n.qkv_width(), c = n.q_width();
    auto qkv = noise(b * t * w, 5, 2), dout = noise(b * t * c, 6);
    std::vector<int32_t> positions(static_cast<size_t>(b * t));
    for (int64_t i = 0; i < b * t; ++i) {
      const bool starts =
          i % t == 0 || random_u32(9, static_cast<uint64_t>(t), static_cast<uint64_t>(i)) % 29 == 0;
      positions[static_cast<size_t>(i)] = starts ? 0 : positions[static_cast<size_t>(i) - 1] + 1;
    }
    std::vector<float> out(dout.size(), NAN), lse(static_cast<size_t>(b * h * t), NAN), dqkv(qkv.size(), NAN),
        delta(lse.size());
    const NaiveAttention want(qkv, dout, n, positions);
    PackedDocuments documents;
    documents.positions = Tensor(positions.data(), DType::i32, {b * t});
    ops.attention(*stream,
                  {view(qkv, {b, t, w}), view(out, {b, t, c}), view(lse, {b, h, t}), n, {}, documents});
    ops.attention_backward(*stream, {view(qkv, {b, t, w}),
                                     view(out, {b, t, c}),
                                     view(lse, {b, h, t}),
                                     view(dout, {b, t, c}),
                                     view(dqkv, {b, t, w}),
                                     view(delta, {b, h, t}),
                                     n,
                                     {},
                                     documents});
    stream->synchronize();
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], want.out[i], 2e-6) << t << " " << n.window;
    for (size_t i = 0; i < dqkv.size(); ++i) ASSERT_NEAR(dqkv[i], want.dqkv[i], 1e-5) << t << " " << n.window;
  }
}

// A cache filled in pieces gives what the whole sequence gives.
TEST_F(OpsTest, CachedAttentionMatchesTheWhole) {
  for (int64_t window : {0, 9}) {
    const AttentionShape n{2, 80, 4, 2, 8, window};
    const int64_t b = n.batch, t = n.seq_len, w = n.qkv_width(), c = n.q_width(), capacity = 90;
    auto qkv = noise(b * t * w, 5, 2);
    std::vector<float> whole(static_cast<size_t>(b * t * c)), lse(static_cast<size_t>(b * 4 * t)),
        cache(static_cast<size_t>(b * capacity * 2 * n.kv_width()), NAN);
    ops.attention(*stream, {view(qkv, {b, t, w}), view(whole, {b, t, c}), view(lse, {b, 4, t}), n, {}});
    stream->synchronize();
    int64_t at = 0;
    for (int64_t step : {70, 1, 1, 5, 3}) {
      std::vector<float> piece, out(static_cast<size_t>(b * step * c));
      for (int64_t s = 0; s < b; ++s)
        piece.insert(piece.end(), qkv.begin() + (s * t + at) * w, qkv.begin() + (s * t + at + step) * w);
      std::vector<int32_t> past(2, static_cast<int32_t>(at));
      AttentionShape m = n;
      m.seq_len = step;
      ops.attention_cached(*stream,
                           {view(piece, {b, step, w}), view(cache, {b, capacity, 2 * n.kv_width()}),
                            Tensor(past.data(), DType::i32, {2}), view(out, {b, step, c}), m, capacity});
      stream->synchronize();
      for (int64_t s = 0; s < b; ++s)
        for (int64_t i = 0; i < step * c; ++i)
          ASSERT_NEAR(out[static_cast<size_t>(s * step * c + i)],
                      whole[static_cast<size_t>((s * t + at) * c + i)], 1e-6);
      at += step;
    }
  }
}

TEST_F(OpsTest, RmsNormMatchesTheDefinitionAndItsSlope) {
  const int64_t n = 7, c = 37;
  auto x = noise(n * c, 40, 2), w = noise(c, 41), dy = noise(n * c, 42);
  std::vector<float> y(x.size()), rstd(7), dx(x.size()), dw(w.size());
  ops.layer_norm(*stream, {view(x, {n, c}), view(w, {c}), {}, view(y, {n, c}), {}, view(rstd, {n}), 1e-6f});
  ops.layer_norm_backward(*stream, {view(x, {n, c}),
                                    view(w, {c}),
                                    {},
                                    view(rstd, {n}),
                                    view(dy, {n, c}),
                                    view(dx, {n, c}),
                                    view(dw, {c}),
                                    {},
                                    false});
  stream->synchronize();
  auto row = [&](const std::vector<double>& v, int64_t r) {  // sum of dy·y
    double square = 0, sum = 0;
    for (double e : v) square += e * e;
    for (int64_t j = 0; j < c; ++j)
      sum += v[static_cast<size_t>(j)] / std::sqrt(square / static_cast<double>(c) + 1e-6) *
             w[static_cast<size_t>(j)] * dy[static_cast<size_t>(r * c + j)];
    return sum;
  };
  std::vector<double> want_dw(w.size());
  for (int64_t r = 0; r < n; ++r) {
    std::vector<double> v(x.begin() + r * c, x.begin() + (r + 1) * c);
    double square = 0;
    for (double e : v) square += e * e;
    const double inverse = 1 / std::sqrt(square / static_cast<double>(c) + 1e-6);
    for (int64_t j = 0; j < c; ++j) {
      const auto i = static_cast<size_t>(r * c + j), column = static_cast<size_t>(j);
      EXPECT_NEAR(y[i], v[column] * inverse * w[column], 1e-6);
      want_dw[column] += dy[i] * v[column] * inverse;
      auto up = v, down = v;
      up[column] += 1e-5, down[column] -= 1e-5;
      EXPECT_NEAR(dx[i], (row(up, r) - row(down, r)) / 2e-5, 1e-5);
    }
  }
  for (size_t j = 0; j < dw.size(); ++j) EXPECT_NEAR(dw[j], want_dw[j], 1e-5);
}

TEST_F(OpsTest, SwigluMatchesTheDefinitionAndItsSlope) {
  const int64_t n = 5, f = 19;
  auto x = noise(n * 2 * f, 43, 6), dy = noise(n * f, 44), gradient = x;
  std::vector<float> y(dy.size());
  ops.swiglu(*stream, view(x, {n, 2 * f}), view(y, {n, f}));
  ops.swiglu_backward(*stream, view(gradient, {n, 2 * f}), view(dy, {n, f}));
  stream->synchronize();
  auto value = [](double g, double u) { return g / (1 + std::exp(-g)) * u; };
  for (int64_t r = 0; r < n; ++r)
    for (int64_t j = 0; j < f; ++j) {
      const auto g = static_cast<size_t>(r * 2 * f + j), u = g + static_cast<size_t>(f),
                 i = static_cast<size_t>(r * f + j);
      const double a = x[g], b = x[u], e = 1e-5;
      EXPECT_NEAR(y[i], value(a, b), 3e-6);
      EXPECT_NEAR(gradient[g], dy[i] * (value(a + e, b) - value(a - e, b)) / (2 * e), 1e-5);
      EXPECT_NEAR(gradient[u], dy[i] * value(a, 1), 3e-6);
    }
}

// Turning back undoes the turn, lengths stay, and with norms the slope is right (by differences).
TEST_F(OpsTest, RopeTurnsAndItsGradient) {
  const AttentionShape n{2, 3, 4, 2, 6};
  const int64_t tokens = 6, w = n.qkv_width();
  const float inv_freq[3] = {1.0f, 0.3f, 0.05f};
  std::vector<int32_t> positions = {0, 5, 100, 7, 8, 9};
  const Tensor at(positions.data(), DType::i32, {tokens});
  auto x = noise(tokens * w, 45), qn = noise(6, 46), kn = noise(6, 47), dy = noise(tokens * w, 48);
  std::vector<float> y(x.size());
  ops.rope(*stream, {view(x, {tokens, w}), view(y, {tokens, w}), at, {}, {}, n, inv_freq});
  stream->synchronize();
  for (int64_t h = 0; h < 8; ++h) {  // token 2 (position 100), pair (1, 4); heads 6 and 7 are values
    const auto i = static_cast<size_t>(2 * w + h * 6 + 1);
    const double c = h < 6 ? std::cos(30.0) : 1, r = h < 6 ? std::sin(30.0) : 0, a = x[i], b = x[i + 3];
    EXPECT_NEAR(y[i], a * c - b * r, 1e-5);
    EXPECT_NEAR(y[i + 3], b * c + a * r, 1e-5);
  }
  auto sum = [&](std::vector<float> in, std::vector<float> q, std::vector<float> k) {  // of dy·rope(in)
    std::vector<float> out(in.size());
    ops.rope(*stream,
             {view(in, {tokens, w}), view(out, {tokens, w}), at, view(q, {6}), view(k, {6}), n, inv_freq});
    stream->synchronize();
    return std::inner_product(out.begin(), out.end(), dy.begin(), 0.0);
  };
  auto grad = dy;
  std::vector<float> dq(6), dk(6);
  ops.rope_backward(*stream, {view(grad, {tokens, w}), view(x, {tokens, w}), at, view(qn, {6}), view(kn, {6}),
                              view(dq, {6}), view(dk, {6}), n, inv_freq});
  stream->synchronize();
  auto slope = [&](std::vector<float>& v, size_t i) {
    const float old = v[i];
    v[i] = old + 1e-2f;
    const double up = sum(x, qn, kn);
    v[i] = old - 1e-2f;
    const double down = sum(x, qn, kn);
    v[i] = old;
    return (up - down) / 2e-2;
  };
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(grad[i], slope(x, i), 2e-3) << i;
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(dq[i], slope(qn, i), 1e-3);
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(dk[i], slope(kn, i), 1e-3);
}

TEST_F(OpsTest, AttentionSurvivesLargeScores) {
  const int64_t t = 70, d = 8;
  auto qkv = noise(t * 3 * d, 8, 60);  // scores in the thousands
  std::vector<float> out(static_cast<size_t>(t * d)), lse(static_cast<size_t>(t));
  ops.attention(*stream,
                {view(qkv, {1, t, 3 * d}), view(out, {1, t, d}), view(lse, {1, 1, t}), {1, t, 1, 1, d}, {}});
  stream->synchronize();
  for (float x : out) EXPECT_TRUE(std::isfinite(x));
}

TEST_F(OpsTest, CrossEntropyIgnoresNegativeTargets) {
  const int64_t n = 5, v = 11;
  auto logits = noise(n * v, 9, 4), original = logits;
  std::vector<int32_t> targets = {3, -1, 10, 0, -100};
  std::vector<float> losses(5, NAN);
  ops.cross_entropy(*stream, {view(logits, {n, v}), Tensor(targets.data(), DType::i32, {n}),
                              view(losses, {n}), 0.5f, true});
  stream->synchronize();
  for (int64_t r = 0; r < n; ++r) {
    double total = 0;
    for (int64_t j = 0; j < v; ++j)
      total += std::exp(static_cast<double>(original[static_cast<size_t>(r * v + j)]));
    const int32_t y = targets[static_cast<size_t>(r)];
    EXPECT_NEAR(losses[static_cast<size_t>(r)],
                y < 0 ? 0 : std::log(total) - original[static_cast<size_t>(r * v + y)], 1e-5);
    for (int64_t j = 0; j < v; ++j)
      EXPECT_NEAR(logits[static_cast<size_t>(r * v + j)],
                  y < 0 ? 0 : 0.5 * (std::exp(original[static_cast<size_t>(r * v + j)]) / total - (j == y)),
                  1e-6);
  }
}

TEST_F(OpsTest, DropoutKeepsTheRightShareAndScale) {
  std::vector<float> x(100000, 1), y(x.size()), z(x.size());
  const Dropout d{0.3f, 1, 2, 0};
  ops.dropout(*stream, view(x, {100000}), view(y, {100000}), d);
  ops.dropout(*stream, view(x, {100000}), view(z, {100000}), d);
  stream->synchronize();
  EXPECT_EQ(y, z);  // the same mask again
  EXPECT_NEAR(std::accumulate(y.begin(), y.end(), 0.0) / 1e5, 1.0, 0.01);
  for (float v : y) EXPECT_TRUE(v == 0 || std::fabs(v - 1 / 0.7f) < 1e-6f);
  // A piece of the mask is the mask of the piece.
  DropoutMask piece(d, 777);
  for (size_t i = 777; i < 900; ++i) EXPECT_EQ(piece.next(), y[i]);
}

TEST_F(OpsTest, SumIsExactEnoughAndFixed) {
  for (int64_t n : {1, 7, 1024, 100003}) {
    auto x = noise(n, 12);
    double out[2] = {NAN, NAN}, want[2] = {0, 0};
    for (float v : x) want[0] += v, want[1] += static_cast<double>(v) * v;
    for (bool squared : {false, true})
      ops.sum(*stream, view(x, {n}), Tensor(&out[squared], DType::f64, {1}), squared);
    stream->synchronize();
    EXPECT_NEAR(out[0], want[0], 1e-9);
    EXPECT_NEAR(out[1], want[1], 1e-9 * want[1]);
  }
}

TEST(Kernels, GeluAndItsSlopeMatchTheDefinition) {
  std::vector<float> x;
  for (float v = -12; v <= 12; v += 0.01f) x.push_back(v);
  const auto n = static_cast<int64_t>(x.size());
  for (bool tanh : {false, true}) {
    std::vector<float> y(x.size()), dy(x.size(), 1);
    cpu_kernels().gelu(n, tanh, x.data(), y.data());
    cpu_kernels().gelu_backward(n, tanh, x.data(), dy.data());
    auto gelu = [&](double v) {
      return tanh ? 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)))
                  : 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
    };
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(y[i], gelu(x[i]), 2e-6) << x[i];
      ASSERT_NEAR(dy[i], (gelu(x[i] + 1e-5) - gelu(x[i] - 1e-5)) / 2e-5, 4e-6) << x[i];
    }
  }
}

// One binary, every instruction set this machine has: the same bits (the portable GEMM excepted: FMA).
TEST(Kernels, InstructionSetsAgreeBitwise) {
  const CpuKernels& base = *cpu_kernels_for("base");
  int others = 0;
  for (const char* isa : {"v3", "v4"}) {
    const CpuKernels* k = cpu_kernels_for(isa);
    if (!k) continue;
    ++others;
    for (int64_t n : {1, 15, 16, 17, 1000}) {
      const auto x = noise(n, 20, 3), w = noise(n, 21), dy = noise(n, 22);
      std::vector<float> a(x.size()), b(x.size());
      float ma, mb, ra, rb;
      base.gelu(n, false, x.data(), a.data()), k->gelu(n, false, x.data(), b.data());
      EXPECT_EQ(a, b);
      base.gelu(n, true, x.data(), a.data()), k->gelu(n, true, x.data(), b.data());
      EXPECT_EQ(a, b);
      base.layer_norm_row(n, x.data(), w.data(), dy.data(), 1e-5f, a.data(), &ma, &ra);
      k->layer_norm_row(n, x.data(), w.data(), dy.data(), 1e-5f, b.data(), &mb, &rb);
      EXPECT_EQ(a, b);
      base.layer_norm_backward_row(n, x.data(), w.data(), &ma, ra, dy.data(), a.data(), true);
      k->layer_norm_backward_row(n, x.data(), w.data(), &mb, rb, dy.data(), b.data(), true);
      EXPECT_EQ(a, b);
      base.swiglu(n, x.data(), w.data(), a.data()), k->swiglu(n, x.data(), w.data(), b.data());
      EXPECT_EQ(a, b);
      a = b = x;
      auto up_a = w, up_b = w;
      base.swiglu_backward(n, a.data(), up_a.data(), dy.data()),
          k->swiglu_backward(n, b.data(), up_b.data(), dy.data());
      EXPECT_EQ(a, b);
      EXPECT_EQ(up_a, up_b);
      base.rotate(n / 2, w.data(), dy.data(), x.data(), a.data()),
          k->rotate(n / 2, w.data(), dy.data(), x.data(), b.data());
      EXPECT_EQ(a, b);
      a = b = x;
      EXPECT_EQ(base.exp_sum(n, 1, a.data()), k->exp_sum(n, 1, b.data()));
      EXPECT_EQ(a, b);
      EXPECT_EQ(base.dot(n, x.data(), w.data()), k->dot(n, x.data(), w.data()));
      EXPECT_EQ(base.sum(n, x.data(), true), k->sum(n, x.data(), true));
    }
  }
  if (others == 0) GTEST_SKIP() << "this processor has the baseline only";
}

TEST(Kernels, PortableGemmMatchesTheLibrary) {
  const int64_t m = 130, n = 70, k = 300;
  const auto a = noise(m * k, 30), b = noise(k * n, 31);
  std::vector<float> want(static_cast<size_t>(m * n)), got(want.size());
  gemm_tile(false, false, m, n, k, 1, a.data(), k, b.data(), n, 0, want.data(), n);
  for (const char* isa : {"base", "v3", "v4"})
    if (const CpuKernels* kn = cpu_kernels_for(isa)) {
      kn->gemm(false, false, m, n, k, a.data(), k, b.data(), n, 0, got.data(), n);
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5) << isa;
    }
}

}  // namespace
}  // namespace megatrain
