// Random models, micro-batches, waves, residency and buffers: every schedule passes check() (the engine runs
// it before the first execution), and overlapped execution with random pauses in every lane gives the bits of
// serialized execution. MT_SCHEDULES sets how many (docs/reliability.md has the figures of 10,000).
#include <gtest/gtest.h>

#include <cstdlib>

#include "tiny.h"

namespace megatrain {
namespace {

struct Dice {
  uint64_t seed, rolls = 0;
  int64_t upto(int64_t n) { return random_u32(seed, 12, rolls++) % static_cast<uint32_t>(n + 1); }
  bool coin() { return upto(1) == 1; }
};

ModelSpec random_spec(Dice& d) {
  static const char* families[] = {"gpt2", "llama", "qwen2", "qwen3", "mistral"};
  ModelSpec s = tiny_spec(1 + d.upto(5), d.coin());
  s.family = families[d.upto(4)];
  s.max_position_embeddings = 12;
  s.dropout = d.upto(3) == 0 ? 0.2 : 0;
  if (s.family == "gpt2") return s;
  s.num_kv_heads = 1 + d.upto(1);
  s.qk_norm = s.family == "qwen3", s.qkv_bias = s.family == "qwen2";
  if (s.family == "mistral") s.windows.assign(static_cast<size_t>(s.num_layers), 1 + d.upto(9));
  return s;
}

StepPlan random_plan(Dice& d, const ModelSpec& s) {
  StepPlan p;
  p.batch = 1 + d.upto(6), p.seq_len = 1 + d.upto(11), p.micro_batch = 1 + d.upto(p.batch - 1);
  p.wave = d.upto(4), p.resident_blocks = static_cast<int>(d.upto(s.num_layers)), p.resident_ends = d.coin();
  p.update_in_backward = d.upto(2) == 0, p.packed = d.upto(2) == 0;
  p.compute = test_choice().compute, p.workspace = test_choice().workspace;
  const bool mixed = d.upto(2) > 0;
  const auto place = [&] { return static_cast<Place>(d.upto(2)); };
  for (int64_t u = 0; u < s.num_layers + (s.tied ? 1 : 2) && mixed; ++u) {
    UnitHomes h{place(), place(), place()};
    if (h.states == Place::device) h.weights = Place::device;
    p.homes.push_back(h);
  }
  if (static_cast<int64_t>(p.homes.size()) != s.num_layers + (s.tied ? 1 : 2)) p.homes.clear();
  for (int64_t l = 0; l < s.num_layers; ++l) p.levels.push_back(static_cast<int>(d.upto(4)));
  p.offloaded_inputs = static_cast<int>(d.upto(s.num_layers));
  return p;
}

struct Outcome {
  std::vector<double> losses;
  std::vector<uint32_t> state;
  bool operator==(const Outcome&) const = default;
};

Outcome run(const ModelSpec& spec, const StepPlan& plan, const ExecOptions& exec, int threads,
            uint64_t seed) {
  Engine::Options options;
  options.exec = exec;
  TinyRun r(spec, plan, options, threads);
  Outcome o;
  StepSettings settings;
  settings.optimizer.learning_rate = 1e-2, settings.seed = seed;
  settings.max_gradient_norm = plan.update_in_backward ? 0 : 0.5;
  std::vector<int32_t> positions(static_cast<size_t>(plan.batch * plan.seq_len));
  for (size_t i = 0; i < positions.size(); ++i) {
    const bool starts = i % static_cast<size_t>(plan.seq_len) == 0 || random_u32(seed, 3, i) % 4 == 0;
    positions[i] = starts ? 0 : positions[i - 1] + 1;
  }
  for (int step = 0; step < 2; ++step) {
    const auto tokens = TinyRun::batch(spec, plan, step, 0), targets = TinyRun::batch(spec, plan, step, 1);
    const int32_t* places = plan.packed ? positions.data() : nullptr;
    o.losses.push_back(r.engine->train_step(tokens.data(), targets.data(), settings, places).loss);
    if (random_u32(seed, 4, static_cast<uint64_t>(step)) % 3 == 0)
      o.losses.push_back(r.engine->evaluate(tokens.data(), targets.data(), places));
  }
  r.engine->finish_update();
  o.state = r.state();
  return o;
}

TEST(ScheduleFuzz, OverlappedWithRandomPausesIsSerialized) {
  const char* many = std::getenv("MT_SCHEDULES");
  const uint64_t count = many ? std::strtoull(many, nullptr, 10) : 150,
                 first = std::getenv("MT_SEED") ? std::strtoull(std::getenv("MT_SEED"), nullptr, 10) : 1;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Dice d{seed};
    const ModelSpec spec = random_spec(d);
    const StepPlan plan = random_plan(d, spec);
    ExecOptions serial, overlapped;
    serial.serialize = true, overlapped.jitter = seed, overlapped.poison = d.coin();
    ASSERT_EQ(run(spec, plan, overlapped, 2, seed) == run(spec, plan, serial, 1, seed), true)
        << "seed " << seed << ": " << spec.family << ", " << spec.num_layers << " layers, batch "
        << plan.batch << " in " << plan.micro_batch << ", wave " << plan.wave << ", " << plan.resident_blocks
        << " resident, " << plan.homes.size() << " homes, " << plan.offloaded_inputs << " inputs offloaded";
  }
}

}  // namespace
}  // namespace megatrain
