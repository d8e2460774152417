// The plan against the run: one configuration a call, random weights and tokens; predicted and measured step
// time and peak memory of each place, one row. docs/benchmarks.md has its table (scripts/h200_plan.sh).
//   bench_plan MACHINE_FILE family hidden layers heads kv_heads intermediate tokens_of_a_step seq_len vocab
//   clip
//              [gpu_memory host_memory disk [steps [detail]]]     (memory as in 24GiB, or auto; disk 0: none)
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "cli/plan.h"
#include "cli/session.h"
#include "core/rng.h"
#include "core/units.h"
#include "device/cpu/cpu_device.h"
#include "engine/trace.h"

namespace megatrain {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double peak_host() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_maxrss) * 1024;
}

// Random weights of one pattern over and over, norms of one: what the model's own start would take half a
// minute for.
void fill(const Model& model, StateStore& store, int threads) {
  std::vector<float> pattern(1 << 20);
  for (size_t i = 0; i < pattern.size(); ++i)
    pattern[i] = 0.02f * 1.73f * (2 * static_cast<float>(random_uniform(1, 2, i)) - 1);
  const std::vector<float> ones(1 << 16, 1.0f);
  ThreadPool pool(threads);
  for (int u = 0; u < model.unit_count(); ++u)
    for (const Parameter& p : model.units()[static_cast<size_t>(u)].parameters) {
      if (p.init == Init::ones) store.set_range(u, p, 0, p.numel, ones.data());
      if (p.init != Init::normal) continue;
      pool.parallel_ranges(p.numel, 1 << 20,
                           [&](int64_t b, int64_t e) { store.set_range(u, p, b, e - b, pattern.data()); });
    }
}

void run(int argc, char** argv) {
  const auto number = [&](int i) { return std::atoll(argv[i]); };
  const auto text = [&](int i, const char* usual) {
    return argc > i ? std::string(argv[i]) : std::string(usual);
  };
  ModelSpec spec;
  spec.family = argv[2], spec.hidden_size = number(3), spec.num_layers = number(4),
  spec.num_heads = number(5);
  spec.num_kv_heads = number(6), spec.intermediate_size = number(7), spec.max_position_embeddings = number(9);
  spec.vocab_size = number(10);
  spec.qkv_bias = spec.family == "qwen2", spec.qk_norm = spec.family == "qwen3",
  spec.tied = spec.family == "gpt2";
  const int64_t tokens = number(8), seq_len = number(9);
  MachineOptions machine;
  machine.machine = argv[1], machine.memory_limit = text(12, "auto"), machine.host_memory = text(13, "auto");
  machine.disk = text(14, "0"), machine.state_dir = "/tmp/bench_plan";
  PlanRequest request;
  request.batch = std::max<int64_t>(tokens / seq_len, 1), request.seq_len = seq_len;
  const double clip = std::atof(argv[11]);
  request.update_in_backward = clip == 0;
  double start = now();
  Session s = Session::plan_for(spec, request, machine);
  const double planned = now() - start;
  start = now();
  s.allocate();
  fill(*s.model, *s.store, s.threads);
  const double filled = now() - start;
  const auto engine = s.make_engine(machine);
  std::vector<int32_t> ids(static_cast<size_t>(request.batch * seq_len));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(random_u32(5, 6, i) % static_cast<uint32_t>(spec.vocab_size));
  StepSettings settings;
  settings.optimizer.learning_rate = 1e-4, settings.max_gradient_norm = clip;
  std::vector<double> t;
  double first = 0, last = 0;
  TraceFile trace;
  CostModel costs(*s.model, s.profile);
  const int steps = argc > 15 ? std::atoi(argv[15]) : 6;
  for (int i = 0; i < steps; ++i) {
    start = now();
    last = engine->train_step(ids.data(), ids.data(), settings).loss;
    if (i == 0) first = last;
    if (i >= 2) t.push_back(now() - start);
  }
  if (argc > 16) trace.add(engine->schedule(), engine->timeline(), "last", s.plan.step, costs);
  std::sort(t.begin(), t.end());
  const double seconds = t[t.size() / 2], predicted = s.plan.estimate.seconds,
               flops = s.model->step_flops(request.batch, seq_len);
  int64_t device = s.device->memory_peak();
  const double gib = 1 << 30;
  fmt::print("{:.2f}B {} T {} tokens {} clip {} gpu {} ram {} disk {}: {}\n",
             static_cast<double>(s.model->parameter_count()) / 1e9, spec.family, seq_len,
             request.batch * seq_len, clip, machine.memory_limit, machine.host_memory, machine.disk,
             plan_text(*s.model, s.plan));
  fmt::print(
      "ROW | {:.2f}B | {} | {} | {:.3f} s | {:.3f} s ({:.3f} to {:.3f}) | {:+.1f}% | {:.0f} | {:.0f} | "
      "{:.2f}/{:.2f} | {:.2f}/{:.2f} | {:.2f} "
      "| {} | loss {:.3f} to {:.3f}{}\n",
      static_cast<double>(s.model->parameter_count()) / 1e9, request.batch * seq_len,
      machine.memory_limit + "/" + machine.host_memory, predicted, seconds, t.front(), t.back(),
      100 * (seconds / predicted - 1), static_cast<double>(request.batch * seq_len) / seconds,
      flops / seconds / 1e12, static_cast<double>(s.plan.bytes(Place::device)) / gib,
      static_cast<double>(device) / gib, static_cast<double>(s.plan.bytes(Place::host)) / gib,
      peak_host() / gib, static_cast<double>(s.plan.bytes(Place::disk)) / gib, s.plan.estimate.verdict(),
      first, last, std::isfinite(last) ? "" : " NOT FINITE");
  fmt::print("  planned in {:.2f} s, memory taken and filled in {:.1f} s; busy", planned, filled);
  for (int lane = 0; lane < kLanes; ++lane)
    fmt::print(" {} {:.2f}/{:.2f}", name_of(static_cast<Lane>(lane)), s.plan.estimate.busy[lane],
               engine->timeline().busy(engine->schedule(), static_cast<Lane>(lane)));
  fmt::print("\n{}", trace.compare_text());
}

}  // namespace
}  // namespace megatrain

int main(int argc, char** argv) try {
  if (argc < 12) return fmt::print(stderr, "bench_plan: see the head of bench/bench_plan.cpp\n"), 2;
  megatrain::run(argc, argv);
} catch (const std::exception& e) {
  fmt::print("ROW | failed: {}\n", e.what());
  return 1;
}
