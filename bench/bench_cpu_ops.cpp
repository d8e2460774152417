// CPU ops at GPT-2-small shapes: GFLOP/s of the products (library and portable kernel), GB/s of the rest.
#include <benchmark/benchmark.h>

#include <vector>

#include "device/cpu/cpu_device.h"
#include "ops/cpu/gemm_tile.h"
#include "ops/cpu/kernels.h"
#include "ops/ops.h"

namespace megatrain {
namespace {

constexpr int64_t kTokens = 2048, kWidth = 768;

struct Bench {
  CpuDevice device{int64_t{1} << 32, 0};
  std::unique_ptr<Stream> stream = device.new_stream("compute");
  Ops& ops = device.ops();
};

void rate(benchmark::State& st, const char* unit, double work) {
  st.counters[unit] =
      benchmark::Counter(work * static_cast<double>(st.iterations()) / 1e9, benchmark::Counter::kIsRate);
}

void gemm(benchmark::State& st, bool trans_a, bool trans_b) {
  Bench b;
  const int64_t m = trans_a ? kWidth : kTokens, n = 4 * kWidth, k = trans_a ? kTokens : kWidth;
  std::vector<float> x(static_cast<size_t>(m * k), 0.5f), w(static_cast<size_t>(k * n), 0.25f),
      y(static_cast<size_t>(m * n));
  GemmArgs g{Tensor(x.data(), DType::f32, {trans_a ? k : m, trans_a ? m : k}),
             Tensor(w.data(), DType::f32, {trans_b ? n : k, trans_b ? k : n}),
             Tensor(y.data(), DType::f32, {m, n}),
             trans_a,
             trans_b,
             false,
             {}};
  for (auto _ : st) b.ops.gemm(*b.stream, g), b.stream->synchronize();
  rate(st, "GFLOP/s", 2.0 * static_cast<double>(m * n * k));
}

void one_thread_gemm(benchmark::State& st, bool library) {
  const int64_t n = 512;
  std::vector<float> x(static_cast<size_t>(n * n), 0.5f), w = x, y = x;
  for (auto _ : st)
    library ? gemm_tile(false, false, n, n, n, 1, x.data(), n, w.data(), n, 0, y.data(), n)
            : cpu_kernels().gemm(false, false, n, n, n, x.data(), n, w.data(), n, 0, y.data(), n);
  rate(st, "GFLOP/s", 2.0 * static_cast<double>(n * n * n));
}

void attention(benchmark::State& st, bool backward) {
  Bench b;
  const int64_t batch = 2, t = 1024, h = 12, d = 64, c = h * d;
  std::vector<float> qkv(static_cast<size_t>(batch * t * 3 * c), 0.01f),
      out(static_cast<size_t>(batch * t * c)), lse(static_cast<size_t>(batch * h * t)), dqkv = qkv,
                                                                                        delta = lse;
  auto view = [](std::vector<float>& v) {
    return Tensor(v.data(), DType::f32, {static_cast<int64_t>(v.size())});
  };
  b.ops.attention(*b.stream, {view(qkv), view(out), view(lse), {batch, t, h, h, d}, {}});
  for (auto _ : st) {
    if (backward)
      b.ops.attention_backward(
          *b.stream,
          {view(qkv), view(out), view(lse), view(out), view(dqkv), view(delta), {batch, t, h, h, d}, {}});
    else
      b.ops.attention(*b.stream, {view(qkv), view(out), view(lse), {batch, t, h, h, d}, {}});
    b.stream->synchronize();
  }
  rate(st, "GFLOP/s", (backward ? 5.0 : 2.0) * static_cast<double>(batch * h * t * t * d));
}

void elementwise(benchmark::State& st, int which) {
  Bench b;
  const int64_t n = kTokens, c = 4 * kWidth;
  std::vector<float> x(static_cast<size_t>(n * c), 0.5f), y = x, w(static_cast<size_t>(c), 1.0f),
                                                          mean(static_cast<size_t>(n)), rstd = mean;
  const Tensor tx(x.data(), DType::f32, {n, c}), ty(y.data(), DType::f32, {n, c}),
      tw(w.data(), DType::f32, {c});
  for (auto _ : st) {
    if (which == 0) b.ops.activation(*b.stream, Activation::gelu, tx, ty);
    if (which == 1)
      b.ops.layer_norm(*b.stream, {tx, tw, tw, ty, Tensor(mean.data(), DType::f32, {n}),
                                   Tensor(rstd.data(), DType::f32, {n}), 1e-5f});
    if (which == 2) b.ops.residual_add(*b.stream, tx, ty, ty, {});
    b.stream->synchronize();
  }
  rate(st, "GB/s", (which == 2 ? 12.0 : 8.0) * static_cast<double>(n * c));
}

#define MT_BENCH(function, name, ...) \
  BENCHMARK_CAPTURE(function, name, __VA_ARGS__)->UseRealTime()->Unit(benchmark::kMillisecond)
MT_BENCH(gemm, forward, false, false);
MT_BENCH(gemm, input_gradient, false, true);
MT_BENCH(gemm, weight_gradient, true, false);
MT_BENCH(one_thread_gemm, library, true);
MT_BENCH(one_thread_gemm, portable, false);
MT_BENCH(attention, forward, false);
MT_BENCH(attention, backward, true);
MT_BENCH(elementwise, gelu, 0);
MT_BENCH(elementwise, layer_norm, 1);
MT_BENCH(elementwise, residual_add, 2);

}  // namespace
}  // namespace megatrain

BENCHMARK_MAIN();
