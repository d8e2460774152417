// Parity with PyTorch/transformers in fp32: logits, loss, every gradient, ten AdamW steps.
#include <gtest/gtest.h>

#include "engine/generator.h"
#include "golden.h"

namespace megatrain {
namespace {

// In bf16 the bounds are those of the number format; gradients are judged by direction and length.
const double kTolerance = test_in_bf16() ? 3e-2 : 1e-4;

// Softmax does not see a constant added to a query's scores, so the key bias has gradient zero. What either
// program computes there is rounding noise, and Adam scales noise to full steps: nothing to compare.
void drop_key_bias(std::vector<float>& qkv) {
  const auto third = static_cast<std::ptrdiff_t>(qkv.size() / 3);
  qkv.erase(qkv.begin() + third, qkv.begin() + 2 * third);
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double s = 0;
  for (size_t i = 0; i < a.size(); ++i) s += static_cast<double>(a[i]) * b[i];
  return s;
}
double length(const std::vector<float>& a) {
  return std::sqrt(dot(a, a));
}
double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  return dot(a, b) / (length(a) * length(b));
}

class Parity : public ::testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  Golden golden{std::get<0>(GetParam())};
  std::unique_ptr<Device> device = test_device();
  StateStore store{*device, *golden.model, true};
  void SetUp() override { golden.load(store); }
};

TEST_P(Parity, LossAndEveryGradient) {
  StepPlan plan = golden.plan(std::get<1>(GetParam()));
  Engine engine(*device, *golden.model, store, plan, {});
  const StepResult r =
      engine.train_step(golden.ints("tokens", 0), golden.ints("targets", 0), golden.settings(0));
  EXPECT_NEAR(r.loss, golden.values("loss")[0], (test_in_bf16() ? 2e-3 : 1e-5) * r.loss);
  std::vector<float> all_got, all_want;
  for (int u = 0; u < golden.model->unit_count(); ++u)
    for (const Parameter& p : golden.model->units()[static_cast<size_t>(u)].parameters) {
      const float* g = engine.host_gradient(u) + p.offset;
      std::vector<float> got(g, g + p.numel), want = golden.values("gradient." + p.name);
      if (!test_in_bf16()) {
        EXPECT_LE(relative_error(got, want), kTolerance) << p.name;
        continue;
      }
      if (p.name.ends_with("c_attn.bias")) drop_key_bias(got), drop_key_bias(want);
      all_got.insert(all_got.end(), got.begin(), got.end());
      all_want.insert(all_want.end(), want.begin(), want.end());
      // Eight numbers (Qwen3's head norms) do not average bf16's noise out.
      EXPECT_GE(cosine(got, want), p.numel < 16 ? 0.998 : 0.999) << p.name;
    }
  if (!test_in_bf16()) return;
  EXPECT_GE(cosine(all_got, all_want), 0.999);
  EXPECT_NEAR(length(all_got), length(all_want), 0.01 * length(all_want));
}

TEST_P(Parity, TenAdamWSteps) {
  Engine engine(*device, *golden.model, store, golden.plan(std::get<1>(GetParam())), {});
  const auto losses = golden.values("losses"), norms = golden.values("norms");
  for (int s = 0; s < golden.steps; ++s) {
    const StepResult r =
        engine.train_step(golden.ints("tokens", s), golden.ints("targets", s), golden.settings(s));
    EXPECT_NEAR(r.loss, losses[static_cast<size_t>(s)], kTolerance * r.loss) << "step " << s;
    EXPECT_NEAR(r.gradient_norm, norms[static_cast<size_t>(s)], kTolerance * r.gradient_norm) << "step " << s;
  }
  engine.finish_update();
  for (int u = 0; u < golden.model->unit_count(); ++u)
    for (const Parameter& p : golden.model->units()[static_cast<size_t>(u)].parameters) {
      std::vector<float> got(static_cast<size_t>(p.numel)), want = golden.values("after." + p.name);
      store.get_parameter(u, p, got.data());
      if (p.name.ends_with("c_attn.bias")) drop_key_bias(got), drop_key_bias(want);
      // With rotation the key bias has a gradient, but a small one: in bf16 much of Adam's step is noise.
      const double bound = test_in_bf16() && p.name.ends_with("k_proj.bias") ? 0.1 : kTolerance;
      EXPECT_LE(relative_error(got, want), bound) << p.name;
    }
}

TEST_P(Parity, Logits) {
  StepPlan plan = golden.plan(golden.batch);
  plan.training = false;
  Engine engine(*device, *golden.model, store, plan, {});
  const auto want = golden.values("logits");
  const int64_t v = golden.spec.vocab_size;
  for (int64_t position : {int64_t{0}, int64_t{7}, golden.seq_len - 1}) {
    const float* logits = engine.logits(golden.ints("tokens", 0), position);
    for (int64_t b = 0; b < golden.batch; ++b) {
      const std::vector<float> got(logits + b * v, logits + (b + 1) * v);
      const float* w = want.data() + (b * golden.seq_len + position) * v;
      EXPECT_LE(relative_error(got, {w, w + v}), kTolerance);
    }
  }
}

// Prompts of different lengths, in pieces, then token by token: the cache gives what the whole window gives.
TEST_P(Parity, GenerationWithACache) {
  if (golden.spec.rope.type == "dynamic") GTEST_SKIP() << "its angles depend on the length of the window";
  StepPlan plan = golden.plan(golden.batch);
  plan.training = false, plan.cache_capacity = golden.seq_len, plan.seq_len = 4;
  Engine engine(*device, *golden.model, store, plan, {});
  Generator generator(engine);
  const auto want = golden.values("logits");
  const int32_t* tokens = golden.ints("tokens", 0);
  const int64_t v = golden.spec.vocab_size;
  for (int64_t b = 0; b < golden.batch; ++b)
    generator.set(b, {tokens + b * golden.seq_len, tokens + b * golden.seq_len + 1 + 3 * b});
  for (int64_t step = 0; step < 6; ++step) {
    const float* logits = generator.next_logits();
    for (int64_t b = 0; b < golden.batch; ++b) {
      const int64_t position = 3 * b + step;
      const std::vector<float> got(logits + b * v, logits + (b + 1) * v);
      const float* w = want.data() + (b * golden.seq_len + position) * v;
      EXPECT_LE(relative_error(got, {w, w + v}), kTolerance) << "sequence " << b << " position " << position;
      generator.append(b, tokens[b * golden.seq_len + position + 1]);
    }
  }
  // A prompt that shares its start with what is cached, and one that does not.
  generator.set(0, {tokens, tokens + 9});
  generator.set(1, {tokens, tokens + 12});
  const float* logits = generator.next_logits();
  for (int64_t b = 0; b < 2; ++b) {
    const float* w = want.data() + (b == 0 ? 8 : 11) * v;
    EXPECT_LE(relative_error({logits + b * v, logits + (b + 1) * v}, {w, w + v}), kTolerance);
  }
}

TEST(Generation, GoesOnBeyondTheCache) {
  const Golden golden("llama3_tied");
  const auto device = test_device();
  StateStore store(*device, *golden.model, true);
  golden.load(store);
  StepPlan plan = golden.plan(1);
  plan.training = false, plan.cache_capacity = 8, plan.seq_len = 3, plan.batch = 1;
  Engine engine(*device, *golden.model, store, plan, {});
  Generator generator(engine);
  const int32_t* tokens = golden.ints("tokens", 0);
  generator.set(0, {tokens, tokens + 3});
  const int64_t v = golden.spec.vocab_size;
  for (int64_t n = 3; n < 19; ++n) {
    const float* logits = generator.next_logits();
    const std::vector<float> got(logits, logits + v);
    for (float x : got) ASSERT_TRUE(std::isfinite(x));
    if (n == 9) {  // outgrown: the last four tokens, as if they were all
      Engine other(*device, *golden.model, store, plan, {});
      Generator fresh(other);
      fresh.set(0, {tokens + 5, tokens + 9});
      const float* w = fresh.next_logits();
      EXPECT_LE(relative_error(got, {w, w + v}), 1e-5);
    }
    generator.append(0, tokens[n]);
  }
}

INSTANTIATE_TEST_SUITE_P(Gpt2, Parity,
                         ::testing::Combine(::testing::Values("gpt2_erf_tied", "gpt2_tanh_tied",
                                                              "gpt2_erf_untied_nobias"),
                                            ::testing::Values(4, 3)));
INSTANTIATE_TEST_SUITE_P(Decoders, Parity,
                         ::testing::Combine(::testing::Values("llama3_tied", "llama_biases_linear",
                                                              "llama_dynamic", "qwen2_windows_yarn",
                                                              "qwen3_tied", "mistral_window"),
                                            ::testing::Values(4, 3)));

}  // namespace
}  // namespace megatrain
