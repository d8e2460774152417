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
  int64_t b, t, h, d;
  std::vector<double> out, dqkv;
  NaiveAttention(const std::vector<float>& qkv, const std::vector<float>& dout, int64_t b_, int64_t t_,
                 int64_t h_, int64_t d_)
      : b(b_), t(t_), h(h_), d(d_), out(static_cast<size_t>(b * t * h * d)), dqkv(qkv.size()) {
    const int64_t c = h * d;
    const double scale = 1 / std::sqrt(static_cast<double>(d));
    auto at = [&](int64_t s, int64_t i, int part, int64_t head, int64_t e) {
      return static_cast<size_t>((s * t + i) * 3 * c + part * c + head * d + e);
    };
    for (int64_t s = 0; s < b; ++s)
      for (int64_t head = 0; head < h; ++head)
        for (int64_t i = 0; i < t; ++i) {
          std::vector<double> p(static_cast<size_t>(i) + 1), dp(p.size());
          double total = 0, mean = 0;
          for (int64_t j = 0; j <= i; ++j) {
            double dot = 0;
            for (int64_t e = 0; e < d; ++e)
              dot += static_cast<double>(qkv[at(s, i, 0, head, e)]) * qkv[at(s, j, 1, head, e)];
            total += p[static_cast<size_t>(j)] = std::exp(dot * scale);
          }
          for (int64_t j = 0; j <= i; ++j) {
            p[static_cast<size_t>(j)] /= total;
            for (int64_t e = 0; e < d; ++e) {
              const auto o = static_cast<size_t>((s * t + i) * c + head * d + e);
              out[o] += p[static_cast<size_t>(j)] * qkv[at(s, j, 2, head, e)];
              dp[static_cast<size_t>(j)] += static_cast<double>(dout[o]) * qkv[at(s, j, 2, head, e)];
              dqkv[at(s, j, 2, head, e)] += p[static_cast<size_t>(j)] * dout[o];
            }
            mean += p[static_cast<size_t>(j)] * dp[static_cast<size_t>(j)];
          }
          for (int64_t j = 0; j <= i; ++j) {
            const double ds = p[static_cast<size_t>(j)] * (dp[static_cast<size_t>(j)] - mean) * scale;
            for (int64_t e = 0; e < d; ++e) {
              dqkv[at(s, i, 0, head, e)] += ds * qkv[at(s, j, 1, head, e)];
              dqkv[at(s, j, 1, head, e)] += ds * qkv[at(s, i, 0, head, e)];
            }
          }
        }
  }
};

TEST_F(OpsTest, AttentionMatchesTheNaiveOne) {
  for (auto [b, t, h, d] :
       {std::tuple{1, 1, 1, 4}, {2, 63, 2, 8}, {1, 64, 1, 16}, {2, 130, 3, 8}, {1, 200, 2, 12}}) {
    const int64_t c = h * d;
    auto qkv = noise(b * t * 3 * c, 5, 2), dout = noise(b * t * c, 6);
    std::vector<float> out(dout.size(), NAN), lse(static_cast<size_t>(b * h * t), NAN), dqkv(qkv.size(), NAN),
        delta(lse.size());
    const NaiveAttention want(qkv, dout, b, t, h, d);
    ops.attention(*stream,
                  {view(qkv, {b, t, 3 * c}), view(out, {b, t, c}), view(lse, {b, h, t}), b, t, h, d, {}});
    ops.attention_backward(*stream, {view(qkv, {b, t, 3 * c}),
                                     view(out, {b, t, c}),
                                     view(lse, {b, h, t}),
                                     view(dout, {b, t, c}),
                                     view(dqkv, {b, t, 3 * c}),
                                     view(delta, {b, h, t}),
                                     b,
                                     t,
                                     h,
                                     d,
                                     {}});
    stream->synchronize();
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], want.out[i], 2e-6) << t;
    for (size_t i = 0; i < dqkv.size(); ++i) ASSERT_NEAR(dqkv[i], want.dqkv[i], 1e-5) << t;
  }
}

TEST_F(OpsTest, AttentionSurvivesLargeScores) {
  const int64_t t = 70, d = 8;
  auto qkv = noise(t * 3 * d, 8, 60);  // scores in the thousands
  std::vector<float> out(static_cast<size_t>(t * d)), lse(static_cast<size_t>(t));
  ops.attention(*stream,
                {view(qkv, {1, t, 3 * d}), view(out, {1, t, d}), view(lse, {1, 1, t}), 1, t, 1, d, {}});
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
      base.layer_norm_backward_row(n, x.data(), w.data(), ma, ra, dy.data(), a.data(), true);
      k->layer_norm_backward_row(n, x.data(), w.data(), mb, rb, dy.data(), b.data(), true);
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
