// Parity with PyTorch/transformers in fp32: logits, loss, every gradient, ten AdamW steps.
#include <gtest/gtest.h>

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
  HostStore store{*device, *golden.model, true};
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
      EXPECT_GE(cosine(got, want), 0.999) << p.name;
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
      EXPECT_LE(relative_error(got, want), kTolerance) << p.name;
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
