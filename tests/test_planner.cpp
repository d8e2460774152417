// The planner: what it chooses as memory shrinks, that its sums are what is taken, that every refusal names a
// change that works, and the simulator against schedules whose time can be said beforehand.
#include <gtest/gtest.h>

#include <chrono>
#include <regex>

#include "core/error.h"
#include "core/units.h"
#include "schedule/planner.h"
#include "tiny.h"

namespace megatrain {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

ModelSpec qwen7b() {
  ModelSpec s;
  s.family = "qwen2", s.vocab_size = 152064, s.hidden_size = 3584, s.num_layers = 28, s.num_heads = 28;
  s.num_kv_heads = 4, s.intermediate_size = 18944, s.max_position_embeddings = 2048, s.qkv_bias = true,
  s.tied = false;
  return s;
}

ModelSpec gpt(int64_t hidden, int64_t layers, int64_t heads) {
  ModelSpec s;
  s.vocab_size = 50257, s.hidden_size = hidden, s.num_layers = layers, s.num_heads = heads;
  s.intermediate_size = 4 * hidden, s.max_position_embeddings = 2048, s.tied = true;
  return s;
}

PlanRequest h200(int64_t batch, int64_t device_gib = 138, int64_t host_gib = 112, int64_t disk_gib = 0) {
  PlanRequest r;
  r.batch = batch, r.seq_len = 2048, r.compute = DType::bf16, r.device_shares_host = false;
  r.micro_batch_tokens = 16384;
  r.device_limit = r.device_most = device_gib * kGiB, r.host_available = host_gib * kGiB,
  r.disk_available = disk_gib * kGiB;
  r.machine = built_in_profile("cuda", "NVIDIA H200", 16);
  return r;
}

int count(const StepPlan& p, Place place) {
  int n = 0;
  for (const UnitHomes& h : p.homes) n += h.states == place;
  return p.homes.empty() && place == Place::host ? 1 << 20 : n;
}

TEST(Planner, WhatFitsOnTheDeviceLivesThereAndRecomputesNothing) {
  const auto model = make_model(gpt(2048, 24, 16));
  const MemoryPlan p = plan_step(*model, h200(32));
  EXPECT_EQ(count(p.step, Place::device), model->unit_count());
  for (int l = 0; l < 24; ++l) EXPECT_EQ(p.step.level(l), model->block().levels() - 1) << l;
  EXPECT_EQ(p.step.offloaded_inputs, 0);
  EXPECT_EQ(p.estimate.verdict(), "compute");
}

TEST(Planner, SevenAndThirteenBillionWithClippingUseHbmAndRamTogether) {
  const auto seven = make_model(qwen7b()), thirteen = make_model(gpt(5120, 40, 40));
  const MemoryPlan a = plan_step(*seven, h200(32)), b = plan_step(*thirteen, h200(32));
  EXPECT_GT(count(a.step, Place::device), 0);
  EXPECT_GT(count(b.step, Place::device), 0);
  EXPECT_GT(count(b.step, Place::host), 0);
  EXPECT_EQ(count(b.step, Place::disk), 0);
  EXPECT_GT(a.bytes(Place::device) + a.bytes(Place::host), seven->parameter_count() * 12);
  EXPECT_LE(b.bytes(Place::host), 112 * kGiB);
}

// From everything on the device to almost nothing: never faster, never an abyss, and everything that fits
// before fits with more memory.
TEST(Planner, DegradesSmoothlyAsTheDeviceShrinks) {
  const auto model = make_model(qwen7b());
  double last = 0;
  for (int64_t gib : {400, 138, 80, 48, 24, 16, 12}) {
    const MemoryPlan p = plan_step(*model, h200(32, gib, 140));
    EXPECT_LE(p.bytes(Place::device), gib * kGiB);
    EXPECT_GE(p.estimate.seconds, 0.98 * last) << gib;
    if (last > 0) {
      EXPECT_LE(p.estimate.seconds, 1.6 * last) << gib;
    }
    last = p.estimate.seconds;
  }
}

TEST(Planner, TheDiskIsTakenWhenHostMemoryEnds) {
  const auto model = make_model(qwen7b());
  PlanRequest r = h200(32, 24, 60, 400);
  const MemoryPlan p = plan_step(*model, r);
  EXPECT_GT(count(p.step, Place::disk), 0);
  EXPECT_LE(p.bytes(Place::host), 60 * kGiB);
  EXPECT_GT(p.disk_written_bytes, 0);
  EXPECT_EQ(p.estimate.verdict(), "the disk");
  r.disk_available = 0;
  EXPECT_THROW(plan_step(*model, r), Error);
}

TEST(Planner, PlansAHundredAndSeventyFiveBillionInSeconds) {
  const auto model = make_model(gpt(12288, 96, 96));
  const auto start = std::chrono::steady_clock::now();
  const MemoryPlan p = plan_step(*model, h200(1472, 138, 3000));
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 20.0);
  EXPECT_GT(p.estimate.seconds, 100);
}

// What the plan says is what is taken, by every place.
TEST(Planner, TheTableIsWhatIsTaken) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const ModelSpec spec = tiny_spec(5, seed % 2);
    const auto model = make_model(spec);
    PlanRequest r;
    r.batch = 6, r.seq_len = 12, r.compute = test_choice().compute, r.workspace = test_choice().workspace;
    r.update_in_backward = seed % 3 == 0, r.disk_available = kGiB;
    r.host_available = kGiB, r.device_limit = kGiB;
    const MemoryPlan roomy = plan_step(*model, r);
    r.host_available =
        roomy.bytes(Place::host) + roomy.bytes(Place::device) - static_cast<int64_t>(seed) * 20000;
    const MemoryPlan p = plan_step(*model, r);
    TinyRun run(spec, p.step);
    EXPECT_EQ(run.device->memory_used(), p.bytes(Place::device));
    int64_t host = p.bytes(Place::host);
    for (const auto& l : p.lines)
      if (l.what == "batches") host -= l.bytes;
    const int64_t tokens = 6 * 12 * 4 * p.step.ints_per_token() + 6 * 4;
    EXPECT_NEAR(static_cast<double>(run.device->pinned_used()), static_cast<double>(host + tokens), 256 * 64);
    run.train(2, r.update_in_backward ? 0 : 0.5);
  }
}

// "set X to Y", applied.
void apply(PlanRequest& r, ModelSpec& spec, const std::string& message) {
  std::smatch m;
  if (std::regex_search(message, m, std::regex("set max_gradient_norm to 0"))) {
    r.update_in_backward = true;
  } else if (std::regex_search(message, m, std::regex("set memory_limit to (\\w+)"))) {
    r.device_limit = parse_bytes(m[1], "memory_limit");
  } else if (std::regex_search(message, m, std::regex("use a device with (\\w+) of memory"))) {
    r.device_limit = parse_bytes(m[1], "");
  } else if (std::regex_search(message, m, std::regex("set sequence_length to (\\d+)"))) {
    r.seq_len = std::stoll(m[1]);
  } else if (std::regex_search(message, m, std::regex("set num_layers to (\\d+)"))) {
    spec.num_layers = std::stoll(m[1]);
  } else if (std::regex_search(message, m, std::regex("with (\\d+) GiB free"))) {
    r.disk_available = std::stoll(m[1]) * kGiB;
  } else if (std::regex_search(message, m, std::regex("set residency to auto"))) {
    r.residency = "auto";
  } else if (std::regex_search(message, m, std::regex("set micro_batch to 0"))) {
    r.micro_batch = 0;
  } else {
    FAIL() << "no change named: " << message;
  }
}

TEST(Planner, EveryRefusalNamesAChangeThatWorks) {
  std::vector<std::pair<PlanRequest, ModelSpec>> refused;
  refused.emplace_back(h200(32, 24, 80), qwen7b());          // gradients do not fit
  refused.emplace_back(h200(32, 3, 130), qwen7b());          // the device is too small for a block
  refused.emplace_back(h200(4, 24, 40), gpt(8192, 80, 64));  // far too large
  refused.emplace_back(h200(4, 24, 40, 100), gpt(8192, 80, 64));
  refused.emplace_back(h200(32, 24, 140), qwen7b());
  refused.back().first.residency = "resident", refused.back().first.device_limit = 12 * kGiB;
  refused.emplace_back(h200(32, 3, 130), qwen7b());  // the option is lower than what is there
  refused.back().first.device_most = 24 * kGiB;
  refused.emplace_back(h200(32, 16, 140), qwen7b());
  refused.back().first.micro_batch = 32;
  for (auto& [r, spec] : refused) {
    std::string message;
    try {
      plan_step(*make_model(spec), r);
      ADD_FAILURE() << spec.family << " was not refused: " << r.device_limit / kGiB;
      continue;
    } catch (const Error& e) {
      message = e.what();
    }
    EXPECT_EQ(message.find('\n'), std::string::npos);
    apply(r, spec, message);
    EXPECT_NO_THROW(plan_step(*make_model(spec), r)) << message;
  }
}

TEST(Planner, OneWaveWhereTheHostHasNoRoomForGradients) {
  const auto model = make_model(tiny_spec(6, false));
  PlanRequest r;
  r.batch = 8, r.seq_len = 16, r.micro_batch = 1, r.device_shares_host = false, r.update_in_backward = true;
  r.device_limit = r.host_available = kGiB;
  const MemoryPlan roomy = plan_step(*model, r);
  ASSERT_EQ(roomy.step.waves(), 1);
  r.host_available = roomy.bytes(Place::host);  // several waves would need all gradients on the host
  EXPECT_EQ(plan_step(*model, r).step.waves(), 1);
  r.host_available = roomy.bytes(Place::host) - 1;
  EXPECT_THROW(plan_step(*model, r), Error);
}

// One block's weights take as long to come as a block to compute: the step is the longer of the two lanes
// plus what cannot overlap.
TEST(Simulator, LanesOverlapAndShareTheLink) {
  Schedule s;
  s.buffers.resize(3);
  for (auto& b : s.buffers) b.bytes = 1 << 20;
  const Content w{Holds::weights, 1}, g{Holds::gradient, 1};
  s.tasks.push_back({TaskKind::load_weights, Lane::h2d, 1, -1, {write(0, w)}, {}, {}});
  s.tasks[0].accesses = {read(1, w), write(0, w)};
  s.tasks.push_back({TaskKind::offload_gradient, Lane::d2h, 1, -1, {read(0, g), write(2, g)}, {}, {}});
  const auto model = make_model(tiny_spec(2));
  MachineProfile m = built_in_profile("cuda", "NVIDIA H200", 16);
  m.op_seconds = m.task_seconds = m.step_seconds = 0;
  m.link_up = m.link_down = 1e6, m.link_both = 0.5e6;
  CostModel costs(*model, m);
  StepPlan p = tiny_plan();
  p.compute = DType::bf16;
  const auto n = static_cast<double>(model->units()[1].numel);
  // Up 2n, down 4n at half rates until the shorter ends, then at full rate.
  const Timeline t = simulate(s, p, costs);
  EXPECT_NEAR(t.spans[0].end, 2 * n / 0.5e6, 1e-9);
  EXPECT_NEAR(t.seconds, 2 * n / 0.5e6 + 2 * n / 1e6, 1e-9);
  s.tasks[1].waits = {0};
  EXPECT_NEAR(simulate(s, p, costs).seconds, 6 * n / 1e6, 1e-9);
}

// Steps that ran on the H200 on 2026-12-01 (docs/benchmarks.md): everything streamed and recomputed,
// micro-batches of 16,384 tokens, by the profile that is built in.
TEST(Simulator, PredictsWhatTheH200Measured) {
  struct Run {
    ModelSpec spec;
    double tokens_per_second;
  };
  ModelSpec small = gpt(768, 12, 12), cut = qwen7b();
  small.max_position_embeddings = 1024, cut.num_layers = 22;
  const MachineProfile machine = built_in_profile("cuda", "NVIDIA H200", 16);
  for (const auto& [spec, measured] :
       {Run{small, 403864}, Run{gpt(2048, 24, 16), 52975}, Run{gpt(4096, 24, 32), 15502}, Run{cut, 13673}}) {
    StepPlan p;
    p.seq_len = spec.max_position_embeddings, p.batch = 65536 / p.seq_len, p.micro_batch = 16384 / p.seq_len;
    p.compute = DType::bf16;
    const auto model = make_model(spec);
    CostModel costs(*model, machine);
    const double predicted = 65536 / simulate_step(p, costs).seconds;
    EXPECT_NEAR(predicted, measured, 0.08 * measured) << spec.hidden_size;
  }
}

// Micro-batches merged and waves extrapolated give the time of the schedule played out in full.
TEST(Simulator, TheCoarseStepTakesTheTimeOfTheFullOne) {
  const auto model = make_model(gpt(2048, 8, 16));
  for (int64_t wave : {2, 4, 16}) {
    StepPlan p;
    p.batch = 64, p.seq_len = 2048, p.micro_batch = 4, p.wave = wave, p.compute = DType::bf16;
    const MachineProfile machine = built_in_profile("cuda", "NVIDIA H200", 16);
    CostModel kept(*model, machine);
    const StepBuffers b(*model, p);
    const double full = simulate(steady_step(*model, p, b), p, kept).seconds;
    EXPECT_NEAR(simulate_step(p, kept).seconds, full, 0.03 * full) << wave;
  }
}

}  // namespace
}  // namespace megatrain
