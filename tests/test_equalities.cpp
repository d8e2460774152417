// What must not change a bit: residency, waves, overlap, poison, threads, when the update runs.
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "schedule/planner.h"
#include "tiny.h"

namespace megatrain {
namespace {

class Equalities : public ::testing::TestWithParam<bool> {  // tied head or not
 protected:
  ModelSpec spec = tiny_spec(4, GetParam());
  void expect_same(const StepPlan& a, const StepPlan& b, Engine::Options oa = {}, Engine::Options ob = {},
                   int ta = 2, int tb = 2, double clip = 0.5) {
    TinyRun x(spec, a, oa, ta), y(spec, b, ob, tb);
    EXPECT_EQ(x.train(4, clip), y.train(4, clip));
    EXPECT_EQ(x.state(), y.state());
  }
};

TEST_P(Equalities, StreamedIsResident) {
  for (int resident : {1, 2, 3, 4}) {
    StepPlan plan = tiny_plan();
    plan.resident_blocks = resident, plan.resident_ends = resident == 4;
    expect_same(tiny_plan(), plan);
  }
}

TEST_P(Equalities, OverlappedIsSerialized) {
  Engine::Options serial;
  serial.exec.serialize = true;
  expect_same(tiny_plan(), tiny_plan(), {}, serial);
}

TEST_P(Equalities, PoisonChangesNothing) {
  Engine::Options poison;
  poison.exec.poison = true;
  expect_same(tiny_plan(), tiny_plan(), {}, poison);
  StepPlan waves = tiny_plan();
  waves.wave = 2, waves.resident_blocks = 1;
  expect_same(tiny_plan(), waves, {}, poison);
}

TEST_P(Equalities, WavesChangeNothing) {
  for (int64_t wave : {1, 2, 3, 6}) {
    StepPlan plan = tiny_plan();
    plan.wave = wave;
    expect_same(tiny_plan(), plan);
  }
}

TEST_P(Equalities, ThreadsChangeNothing) {
  expect_same(tiny_plan(), tiny_plan(), {}, {}, 1, 3);
}

TEST_P(Equalities, UpdateInBackwardIsUpdateAfter) {
  StepPlan now = tiny_plan(), now_in_waves = tiny_plan();
  now.update_in_backward = true, now_in_waves.update_in_backward = true, now_in_waves.wave = 3;
  expect_same(tiny_plan(), now, {}, {}, 2, 2, 0.0);
  expect_same(tiny_plan(), now_in_waves, {}, {}, 2, 2, 0.0);
}

// Same tokens, other micro-batches: the same sum in another order of addition. docs/design.md states this
// bound: a few times 1e-7 relative on loss and norm at the first step.
TEST_P(Equalities, MicroBatchesAgree) {
  if (test_in_bf16()) GTEST_SKIP() << "the bounds are fp32's";
  for (double dropout : {0.0, 0.3}) {
    spec.dropout = dropout;
    TinyRun reference(spec, tiny_plan(14, 14));
    const auto want = reference.train(1);
    for (int64_t micro : {7, 2, 3, 1}) {  // M = 2, 7, 5 (ragged), 14
      TinyRun run(spec, tiny_plan(14, micro));
      const auto got = run.train(1);
      EXPECT_NEAR(got[0], want[0], 2e-6 * want[0]) << "micro-batch " << micro << " dropout " << dropout;
      EXPECT_NEAR(got[1], want[1], 2e-6 * want[1]) << "micro-batch " << micro << " dropout " << dropout;
      for (int u = 0; u < run.model->unit_count(); ++u) {
        double error = 0, norm = 0;
        for (int64_t i = 0; i < run.model->units()[static_cast<size_t>(u)].numel; ++i) {
          const double a = run.engine->host_gradient(u)[i], b = reference.engine->host_gradient(u)[i];
          error += (a - b) * (a - b), norm += b * b;
        }
        EXPECT_LE(std::sqrt(error / norm), 1e-5) << "unit " << u;
      }
    }
  }
}

TEST_P(Equalities, DropoutIsReproducedInTheRecompute) {
  spec.dropout = 0.25;
  StepPlan plan = tiny_plan();
  plan.resident_blocks = 2;
  expect_same(tiny_plan(), plan);
  if (test_in_bf16()) return;  // the slope below would be rounding noise
  // A gradient that forgot the mask would not match finite differences of the same masked loss.
  TinyRun run(spec, tiny_plan(14, 14));
  run.train(1, 0);
  const float* g = run.engine->host_gradient(2);
  const auto& unit = run.model->units()[2];
  for (const char* name :
       {"attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"}) {
    const auto p = std::find_if(unit.parameters.begin(), unit.parameters.end(),
                                [&](auto& q) { return q.name.ends_with(name); });
    const int64_t at = p->offset + p->numel / 3;
    double loss[2];
    const float h = 0.02f;
    for (int side : {0, 1}) {
      TinyRun probe(spec, tiny_plan(14, 14));
      const UnitState& s = probe.store.unit(2);
      const SplitFloat moved = split_float(join_float(s.hi[at], s.lo[at]) + (side ? h : -h));
      s.hi[at] = moved.hi, s.lo[at] = moved.lo;
      loss[side] = probe.train(1, 0)[0];
    }
    const double slope = (loss[1] - loss[0]) / (2 * static_cast<double>(h));
    EXPECT_NEAR(g[at], slope, 0.02 * std::fabs(slope) + 2e-5) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, Equalities, ::testing::Bool(),
                         [](auto& p) { return p.param ? "Tied" : "Untied"; });

TEST(LargerThanTheDevice, TrainsWithTenTimesTheWeightsOfItsMemory) {
  ModelSpec spec = tiny_spec(100);
  spec.hidden_size = 64, spec.intermediate_size = 256, spec.num_heads = 4;
  if (test_choice().kind == DeviceKind::cuda) spec.hidden_size = 1024, spec.intermediate_size = 4096;
  const auto model = make_model(spec);
  const int64_t weights = model->parameter_count() * 4;
  PlanRequest request;
  request.compute = test_choice().compute, request.workspace = test_choice().workspace;
  request.device_shares_host = test_choice().kind == DeviceKind::cpu, request.residency = "stream";
  request.batch = 2, request.seq_len = 8, request.device_limit = weights / 10,
  request.host_available = int64_t{1} << 36;
  const MemoryPlan plan = plan_step(*model, request);
  ASSERT_LE(plan.bytes(Place::device), weights / 10);
  const auto owner = make_device(test_choice(), request.device_limit, 2);
  Device& device = *owner;
  StateStore store(device, *model, plan.step.store_options());
  ThreadPool pool(2);
  store.initialize(1, pool);
  Engine engine(device, *model, store, plan.step, {});
  // The printed table is what was taken.
  EXPECT_EQ(device.memory_peak(), plan.bytes(Place::device));
  int64_t lines = 0;
  for (const auto& l : plan.lines) lines += l.place == Place::device ? l.bytes : 0;
  EXPECT_EQ(lines, plan.bytes(Place::device));
  // Two block buffers for weights and two for gradients, whatever the number of layers.
  for (const auto& b : engine.buffers().list()) {
    if (b.group == std::string("weights, streamed")) {
      EXPECT_LE(b.bytes, model->max_block_numel() * 4);
    }
  }
  std::vector<int32_t> tokens(16, 5), targets(16, 6);
  StepSettings settings;
  settings.optimizer.learning_rate = 1e-2, settings.max_gradient_norm = 1;
  double first = 0, last = 0;
  for (int s = 0; s < 8; ++s) {
    last = engine.train_step(tokens.data(), targets.data(), settings).loss;
    if (s == 0) first = last;
  }
  EXPECT_LT(last, first * 0.5);
  EXPECT_EQ(device.memory_peak(), plan.bytes(Place::device));  // nothing more was taken inside a step
}

TEST(Engine, NonFiniteStepChangesNothing) {
  TinyRun run(tiny_spec(), tiny_plan());
  run.train(2);
  const auto before = run.state();
  const UnitState& u = run.store.unit(1);
  const SplitFloat kept{u.hi[3], u.lo[3]};
  u.hi[3] = 0x7f80, u.lo[3] = 0;  // an infinite weight
  const auto result = run.train(1);
  EXPECT_FALSE(std::isfinite(result[0]));
  u.hi[3] = kept.hi, u.lo[3] = kept.lo;
  EXPECT_EQ(run.state(), before);
}

TEST(Engine, NonFiniteUnitStopsAnUpdateInBackward) {
  StepPlan plan = tiny_plan();
  plan.update_in_backward = true;
  TinyRun run(tiny_spec(), plan);
  run.store.unit(1).hi[3] = 0x7f80;
  EXPECT_THROW(run.train(1, 0), Error);
}

TEST(Engine, FullyMaskedBatchIsRefused) {
  TinyRun run(tiny_spec(), tiny_plan());
  std::vector<int32_t> tokens(14 * 12, 1), targets(14 * 12, -1);
  EXPECT_THROW(run.engine->train_step(tokens.data(), targets.data(), {}), Error);
}

TEST(Engine, EvaluationMatchesTrainingLossAndKeepsState) {
  TinyRun run(tiny_spec(), tiny_plan());
  run.train(2);
  const auto before = run.state();
  const auto tokens = TinyRun::batch(run.model->spec(), run.engine->plan(), 9, 0),
             targets = TinyRun::batch(run.model->spec(), run.engine->plan(), 9, 1);
  const double sum = run.engine->evaluate(tokens.data(), targets.data());
  EXPECT_EQ(run.state(), before);
  StepSettings settings;
  settings.max_gradient_norm = 1;
  const StepResult r = run.engine->train_step(tokens.data(), targets.data(), settings);
  EXPECT_DOUBLE_EQ(sum / static_cast<double>(r.target_tokens), r.loss);
}

}  // namespace
}  // namespace megatrain
