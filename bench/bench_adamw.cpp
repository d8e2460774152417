// AdamW over the hi/lo store against memcpy and a triad of the same run, in GB/s of DRAM traffic. Bytes per
// parameter counted: read hi 2, lo 2, m 4, v 4, gradient 4; write hi 2, lo 2, m 4, v 4 = 28.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "ops/cpu/kernels.h"

namespace megatrain {
namespace {

constexpr int64_t kParameters = int64_t{1} << 25;  // 640 MiB of state and gradient: far beyond any cache
constexpr int64_t kGrain = 65536;

struct State {
  std::vector<uint16_t> hi = std::vector<uint16_t>(kParameters, 0x3c00),
                        lo = std::vector<uint16_t>(kParameters, 7);
  std::vector<float> m = std::vector<float>(kParameters, 1e-3f), v = std::vector<float>(kParameters, 1e-6f);
  std::vector<float> g = std::vector<float>(kParameters, 1e-3f);
};

State& state() {
  static State s;
  return s;
}

void report(benchmark::State& st, double bytes) {
  st.counters["GB/s"] =
      benchmark::Counter(bytes * static_cast<double>(st.iterations()) / 1e9, benchmark::Counter::kIsRate);
}

void adamw(benchmark::State& st, const char* isa) {
  const CpuKernels* k = cpu_kernels_for(isa);
  if (!k) return st.SkipWithError("this processor lacks it");
  State& s = state();
  ThreadPool pool(available_cores());
  const AdamWStep step{0.9f, 0.95f, 1e-8f, 0.9999f, 1e-4f, 0.5f, 1.0f};
  for (auto _ : st)
    pool.parallel_ranges(kParameters, kGrain, [&](int64_t b, int64_t e) {
      k->adamw(e - b, s.hi.data() + b, s.lo.data() + b, s.m.data() + b, s.v.data() + b, s.g.data() + b,
               &step);
    });
  report(st, 28.0 * kParameters);
}

void copy(benchmark::State& st) {
  State& s = state();
  ThreadPool pool(available_cores());
  for (auto _ : st)
    pool.parallel_ranges(kParameters, kGrain, [&](int64_t b, int64_t e) {
      std::memcpy(s.m.data() + b, s.v.data() + b, static_cast<size_t>(e - b) * 4);
    });
  report(st, 8.0 * kParameters);
}

void triad(benchmark::State& st) {  // m += a·g: two reads, one write
  State& s = state();
  ThreadPool pool(available_cores());
  for (auto _ : st)
    pool.parallel_ranges(kParameters, kGrain, [&](int64_t b, int64_t e) {
      cpu_kernels().axpy(e - b, 0.9f, s.g.data() + b, s.m.data() + b);
    });
  report(st, 12.0 * kParameters);
}

BENCHMARK(copy)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(triad)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(adamw, base, "base")->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(adamw, v3, "v3")->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(adamw, v4, "v4")->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace megatrain

BENCHMARK_MAIN();
