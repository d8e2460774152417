// The hi/lo master, AdamW and the learning-rate schedules.
#include <gtest/gtest.h>

#include <cmath>

#include "core/rng.h"
#include "device/cpu/cpu_device.h"
#include "ops/cpu/kernels.h"
#include "optim/adamw.h"
#include "optim/lr_schedule.h"

namespace megatrain {
namespace {

// Every 32-bit pattern, inf and NaN included, comes back. hi as a bf16 is the weight rounded to nearest
// (half up in magnitude) for every finite value; only a NaN whose mantissa is all ones on top reads as 0 in
// hi.
TEST(SplitFloat, IsExactForEveryPattern) {
  for (uint64_t bits = 0; bits <= 0xffffffffull; bits += 97) {
    const float x = bits_float(static_cast<uint32_t>(bits));
    const SplitFloat s = split_float(x);
    ASSERT_EQ(float_bits(join_float(s.hi, s.lo)), static_cast<uint32_t>(bits));
    const float hi = bits_float(static_cast<uint32_t>(s.hi) << 16);
    if (std::isfinite(x) && std::isfinite(hi) && std::isnormal(x)) {
      ASSERT_LE(std::fabs(hi - x), std::fabs(x) * 0x1.0p-8f);
    }
  }
  for (uint32_t top = 0; top < 65536; ++top)  // around every carry
    for (uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const SplitFloat s = split_float(bits_float(top << 16 | low));
      ASSERT_EQ(float_bits(join_float(s.hi, s.lo)), top << 16 | low);
    }
}

struct Block {
  explicit Block(int64_t n)
      : hi(static_cast<size_t>(n)), lo(hi.size()), m(hi.size()), v(hi.size()), g(hi.size()) {
    for (size_t i = 0; i < hi.size(); ++i) {
      const SplitFloat s = split_float(static_cast<float>(random_uniform(1, 0, i) - 0.5) * 0.1f);
      hi[i] = s.hi, lo[i] = s.lo;
      g[i] = static_cast<float>(random_uniform(1, 1, i) - 0.5) * 0.01f;
      m[i] = g[i] * 0.3f, v[i] = g[i] * g[i] * 0.1f;
    }
  }
  std::vector<uint16_t> hi, lo;
  std::vector<float> m, v, g;
};

TEST(AdamW, SimdAndPortableAgreeBitwise) {
  const AdamWStep step{0.9f, 0.95f, 1e-8f, 0.9999f, 1e-3f, 0.5f, 0.7f};
  int sets = 0;
  for (const char* isa : {"v3", "v4"}) {
    const CpuKernels* k = cpu_kernels_for(isa);
    if (!k) continue;
    ++sets;
    Block a(10007), b(10007);
    for (int i = 0; i < 5; ++i) {
      cpu_kernels_for("base")->adamw(10007, a.hi.data(), a.lo.data(), a.m.data(), a.v.data(), a.g.data(),
                                     &step);
      k->adamw(10007, b.hi.data(), b.lo.data(), b.m.data(), b.v.data(), b.g.data(), &step);
    }
    EXPECT_EQ(a.hi, b.hi);
    EXPECT_EQ(a.lo, b.lo);
    EXPECT_EQ(a.m, b.m);
    EXPECT_EQ(a.v, b.v);
  }
  if (sets == 0) GTEST_SKIP() << "this processor has the baseline only";
}

TEST(AdamW, DecaysMatricesOnlyAndMatchesDoublePrecision) {
  UnitLayout layout;
  layout.add("w", {10, 7}, Init::normal);
  layout.add("b", {7}, Init::zeros);
  Block x(layout.numel);
  const Block start(layout.numel);
  const AdamWConfig c{1e-2, 0.9, 0.95, 1e-8, 0.1};
  ThreadPool pool(2);
  adamw_update_unit(pool, layout, {x.hi.data(), x.lo.data(), x.m.data(), x.v.data()}, x.g.data(), c, 3, 0.5);
  for (const auto& p : layout.parameters)
    for (int64_t j = 0; j < p.numel; ++j) {
      const auto i = static_cast<size_t>(p.offset + j);
      const double g = 0.5 * start.g[i], m = 0.9 * start.m[i] + 0.1 * g, v = 0.95 * start.v[i] + 0.05 * g * g;
      double w = join_float(start.hi[i], start.lo[i]);
      if (p.shape.size() > 1) w *= 1 - c.learning_rate * c.weight_decay;
      w -= c.learning_rate * (m / (1 - std::pow(0.9, 3))) / (std::sqrt(v / (1 - std::pow(0.95, 3))) + 1e-8);
      EXPECT_NEAR(join_float(x.hi[i], x.lo[i]), w, 1e-8) << p.name;
    }
}

// Tiny updates reach the fp32 master: what pure bf16 weights lose.
TEST(AdamW, SmallStepsAreNotLost) {
  Block x(1000);
  std::vector<float> before(1000);
  for (size_t i = 0; i < 1000; ++i) before[i] = join_float(x.hi[i], x.lo[i]);
  const AdamWStep step{0.9f, 0.95f, 1e-8f, 1.0f, 1e-6f, 1.0f, 1.0f};
  cpu_kernels().adamw(1000, x.hi.data(), x.lo.data(), x.m.data(), x.v.data(), x.g.data(), &step);
  int moved = 0, moved_in_bf16 = 0;
  for (size_t i = 0; i < 1000; ++i) {
    moved += join_float(x.hi[i], x.lo[i]) != before[i];
    moved_in_bf16 += x.hi[i] != split_float(before[i]).hi;
  }
  EXPECT_GT(moved, 990);
  EXPECT_LT(moved_in_bf16, 100);
}

TEST(LearningRate, NanoGptAndGigaGptValues) {
  const LrSchedule nano{"cosine_nanogpt", 6e-4, 6e-5, 2000, 598000};
  EXPECT_DOUBLE_EQ(learning_rate_at(nano, 0), 6e-4 / 2001);
  EXPECT_DOUBLE_EQ(learning_rate_at(nano, 1999), 6e-4 * 2000 / 2001);
  EXPECT_DOUBLE_EQ(learning_rate_at(nano, 2000), 6e-4);
  EXPECT_NEAR(learning_rate_at(nano, 301000), 3.3e-4, 1e-12);
  EXPECT_DOUBLE_EQ(learning_rate_at(nano, 700000), 6e-5);
  const LrSchedule giga{"cosine", 6e-4, 6e-5, 1525, 7512};
  EXPECT_DOUBLE_EQ(learning_rate_at(giga, 0), 0);
  EXPECT_DOUBLE_EQ(learning_rate_at(giga, 1525), 6e-4);
  EXPECT_NEAR(learning_rate_at(giga, 1525 + 3756), 3.3e-4, 1e-12);
  EXPECT_NEAR(learning_rate_at(giga, 9037), 6e-5, 1e-18);
  EXPECT_DOUBLE_EQ(learning_rate_at({"linear", 1, 0, 0, 10}, 5), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_at({"constant", 1, 0, 4, 10}, 500), 1);
  EXPECT_DOUBLE_EQ(learning_rate_at({"constant", 1, 0, 4, 10}, 2), 0.5);
}

TEST(StateStore, InitialWeightsAreTheSameForAnyThreadCountAndHaveTheRightSpread) {
  ModelSpec spec;
  spec.vocab_size = 500, spec.hidden_size = 64, spec.num_layers = 8, spec.num_heads = 4,
  spec.intermediate_size = 256;
  spec.max_position_embeddings = 32;
  const auto model = make_model(spec);
  CpuDevice device(1 << 20, 1);
  StateStore a(device, *model, false), b(device, *model, false);
  ThreadPool one(1), three(3);
  a.initialize(5, one), b.initialize(5, three);
  for (int u = 0; u < model->unit_count(); ++u)
    for (const auto& p : model->units()[static_cast<size_t>(u)].parameters) {
      std::vector<float> x(static_cast<size_t>(p.numel)), y(x.size());
      a.get_parameter(u, p, x.data()), b.get_parameter(u, p, y.data());
      ASSERT_EQ(x, y);
      double mean = 0, square = 0;
      for (float v : x) mean += v, square += static_cast<double>(v) * v;
      mean /= static_cast<double>(x.size()), square /= static_cast<double>(x.size());
      const double want = p.init == Init::normal ? (p.name.ends_with("c_proj.weight") ? 0.02 / 4 : 0.02) : 0;
      if (p.init == Init::normal) {
        EXPECT_NEAR(std::sqrt(square), want, 0.05 * want) << p.name;
      }
      EXPECT_NEAR(mean, p.init == Init::ones ? 1 : 0, 1e-3) << p.name;
    }
}

}  // namespace
}  // namespace megatrain
