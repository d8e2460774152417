// One command, one table: ceilings of this machine (link, DRAM, device copy, GEMM), each op against its byte
// or flop floor, and whole training steps. Everything is a ratio within the run.
//   bench_cuda [family hidden layers heads kv_heads intermediate tokens_of_a_step seq_len vocab clip]...
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>

#include "core/rng.h"
#include "core/units.h"
#include "device/arena.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/host_memory.h"
#include "device/cuda/cuda_check.h"
#include "engine/devices.h"
#include "engine/documents.h"
#include "engine/engine.h"
#include "ops/cpu/kernels.h"
#include "ops/cuda/cuda_ops.h"
#include "schedule/planner.h"

namespace megatrain {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Ceilings {
  double h2d = 0, d2h = 0, both = 0, dram = 0, device_copy = 0, gemm = 0;  // bytes/s, flop/s
};

/// Median seconds of `f` enqueued on `stream`, ten runs after two warm-ups.
double median_seconds(Stream& stream, const std::function<void()>& f) {
  std::vector<double> t;
  stream.reserve_stamps(2);
  for (int i = 0; i < 12; ++i) {
    stream.stamp(0);
    f();
    stream.stamp(1);
    stream.synchronize();
    if (i >= 2) t.push_back(stream.stamp_seconds(1) - stream.stamp_seconds(0));
  }
  std::sort(t.begin(), t.end());
  return t[t.size() / 2];
}

void fill_noise(Device& device, Stream& stream, Tensor t, float scale) {
  std::vector<uint16_t> host(static_cast<size_t>(std::min<int64_t>(t.numel(), 1 << 22)));
  for (size_t i = 0; i < host.size(); ++i)
    host[i] = split_float(scale * (2 * static_cast<float>(random_uniform(1, 2, i)) - 1)).hi;
  const auto piece = static_cast<int64_t>(host.size()) * 2;
  for (int64_t at = 0; at < t.bytes(); at += piece)
    device.copy(stream, static_cast<char*>(t.data) + at, host.data(), std::min(piece, t.bytes() - at));
  stream.synchronize();
}

double dram_rate() {
  constexpr int64_t n = int64_t{1} << 28;
  std::vector<float> a(n, 1.0f), b(n, 2.0f);
  ThreadPool pool(available_cores());
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    const double start = now();
    pool.parallel_ranges(n, 1 << 18, [&](int64_t x, int64_t y) {
      cpu_kernels().axpy(y - x, 0.9f, b.data() + x, a.data() + x);
    });
    best = std::max(best, 12.0 * n / (now() - start));
  }
  return best;
}

Ceilings measure_ceilings(Device& device, Arena& arena, Stream& s) {
  Ceilings c;
  constexpr int64_t bytes = int64_t{1} << 30;
  void *up = device.allocate_pinned(bytes), *down = device.allocate_pinned(bytes),
       *d1 = arena.take("a", bytes), *d2 = arena.take("b", bytes);
  const auto other = device.new_stream("other");
  c.h2d = bytes / median_seconds(s, [&] { device.copy(s, d1, up, bytes); });
  c.d2h = bytes / median_seconds(s, [&] { device.copy(s, down, d2, bytes); });
  const double start = now();
  for (int i = 0; i < 8; ++i) device.copy(s, d1, up, bytes), device.copy(*other, down, d2, bytes);
  s.synchronize(), other->synchronize();
  c.both = 8.0 * bytes / (now() - start);
  c.device_copy = 2.0 * bytes / median_seconds(s, [&] { device.copy(s, d1, d2, bytes); });
  const int64_t n = 8192;
  const Tensor a(d1, DType::bf16, {n, n}), b(d2, DType::bf16, {n, n}),
      y(arena.take("c", n * n * 2), DType::bf16, {n, n});
  fill_noise(device, s, a, 1), fill_noise(device, s, b, 1);
  c.gemm = 2.0 * n * n * n / median_seconds(s, [&] {
             device.ops().gemm(s, {a, b, y, false, true, false, {}});
           });
  device.release_pinned(up, bytes), device.release_pinned(down, bytes);
  c.dram = dram_rate();
  fmt::print(
      "link up {:.1f}, down {:.1f}, both at once {:.1f} GB/s each; DRAM {:.1f} GB/s; device copy {:.2f} "
      "TB/s; GEMM 8192^3 bf16 {:.0f} TFLOP/s\n",
      c.h2d / 1e9, c.d2h / 1e9, c.both / 1e9, c.dram / 1e9, c.device_copy / 1e12, c.gemm / 1e12);
  return c;
}

void row(const char* name, double seconds, double bytes, double flops, const Ceilings& c) {
  const double floor = std::max(bytes / c.device_copy, flops / c.gemm);
  fmt::print("  {:<26}{:>10.1f} us {:>9.2f} TB/s {:>8.0f} TFLOP/s   {:>5.0f}% of its {} floor\n", name,
             seconds * 1e6, bytes / seconds / 1e12, flops / seconds / 1e12, 100 * floor / seconds,
             bytes / c.device_copy > flops / c.gemm ? "byte" : "flop");
}

// Ops at one micro-batch of 8 x 2048 tokens, hidden 4096, 32 heads, vocabulary 50257.
void op_table(Device& device, Arena& arena, Stream& s, const Ceilings& c) {
  const int64_t b = 8, t = 2048, n = b * t, h = 32, d = 128, w = h * d, v = 50257, stride = 50304,
                rows = 2560;
  Ops& o = device.ops();
  auto bf = [&](std::initializer_list<int64_t> shape) {
    Tensor x(nullptr, DType::bf16, shape);
    x.data = arena.take("op", x.bytes());
    fill_noise(device, s, x, 1);
    return x;
  };
  auto f32 = [&](int64_t k) { return Tensor(arena.take("op", k * 4), DType::f32, {k}); };
  const Tensor x = bf({n, w}), y = bf({n, w}), z = bf({n, w}), wide = bf({n, 4 * w}), wide2 = bf({n, 4 * w}),
               qkv = bf({n, 3 * w}), dqkv = bf({n, 3 * w});
  const Tensor g = bf({w}), mean = f32(n), rstd = f32(n), dg = f32(w), db = f32(w), bias = f32(4 * w),
               lse = f32(b * h * t), delta = f32(b * h * t);
  const Tensor weight = bf({w, 4 * w}), dweight(f32(w * 4 * w).data, DType::f32, {w, 4 * w}),
               logits = bf({rows, stride});
  const Tensor table = bf({stride, w}), dtable(f32(v * w).data, DType::f32, {v, w}),
               dpos(f32(t * w).data, DType::f32, {t, w}), losses = f32(rows);
  const Tensor total(arena.take("op", 8), DType::f64, {1}), targets(arena.take("op", n * 4), DType::i32, {n});
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (size_t i = 0; i < ids.size(); ++i)  // frequencies fall as in text
    ids[i] = static_cast<int32_t>(std::min<double>(50256, std::pow(50257.0, random_uniform(3, 4, i)) - 1));
  device.copy(s, targets.data, ids.data(), n * 4);
  s.synchronize();
  const double nw = static_cast<double>(n * w), e = 2;
  auto time = [&](const std::function<void()>& f) { return median_seconds(s, f); };
  fmt::print("ops at {} x {} tokens, hidden {}, {} heads:\n", b, t, w, h);
  row("layer norm", time([&] { o.layer_norm(s, {x, g, g, y, mean, rstd, 1e-5f}); }), 2 * nw * e, 0, c);
  row("layer norm backward", time([&] {
        o.layer_norm_backward(s, {x, g, mean, rstd, y, z, dg, db, true});
      }),
      4 * nw * e, 0, c);
  row("RMS norm", time([&] { o.layer_norm(s, {x, g, {}, y, {}, rstd, 1e-6f}); }), 2 * nw * e, 0, c);
  row("RMS norm backward", time([&] {
        o.layer_norm_backward(s, {x, g, {}, rstd, y, z, dg, {}, true});
      }),
      4 * nw * e, 0, c);
  const AttentionShape grouped{b, t, h, 8, d};
  const std::vector<float> inv_freq(static_cast<size_t>(d / 2), 0.01f);
  const double turned = 2 * e * static_cast<double>(n * (h + 8) * d);
  row("rope, 32 + 8 heads", time([&] {
        o.rope(s, {qkv, qkv, {}, {}, {}, grouped, inv_freq.data()});
      }),
      turned, 0, c);
  row("rope backward, head norms", time([&] {
        o.rope_backward(s, {dqkv, qkv, {}, g, g, dg, db, grouped, inv_freq.data()});
      }),
      1.5 * turned, 0, c);
  row("swiglu", time([&] {
        o.swiglu(s, wide, Tensor(wide2.data, DType::bf16, {n, 2 * w}));
      }),
      6 * nw * e, 0, c);
  row("swiglu backward", time([&] {
        o.swiglu_backward(s, wide, Tensor(wide2.data, DType::bf16, {n, 2 * w}));
      }),
      10 * nw * e, 0, c);
  fill_noise(device, s, wide, 1);
  row("gelu", time([&] { o.activation(s, Activation::gelu, wide, wide2); }), 8 * nw * e, 0, c);
  row("gelu backward", time([&] { o.activation_backward(s, Activation::gelu, wide, wide2); }), 12 * nw * e, 0,
      c);
  row("residual add", time([&] { o.residual_add(s, x, y, z, {}); }), 3 * nw * e, 0, c);
  row("bias gradient", time([&] { o.column_sum(s, wide, bias); }), 4 * nw * e, 0, c);
  row("embedding", time([&] { o.embedding(s, {targets, table, table, y, t, {}, {}}); }), 2 * nw * e, 0, c);
  row("embedding backward", time([&] {
        o.embedding_backward(s, {targets, x, dtable, dpos, t, {}});
      }),
      2 * nw * e + 8.0 * static_cast<double>(t * w), 0, c);
  row("cross-entropy + gradient", time([&] {
        o.cross_entropy(
            s, {Tensor(logits.data, DType::bf16, {rows, v}), targets.rows(0, rows), losses, 1, true, stride});
      }),
      2.0 * static_cast<double>(rows * v) * e, 0, c);
  row("gradient norm", time([&] { o.sum(s, dweight, total, true); }),
      4.0 * static_cast<double>(dweight.numel()), 0, c);
  const double gemm = 2 * nw * 4 * static_cast<double>(w),
               attention = 2.0 * static_cast<double>(b * h) * static_cast<double>(t * t * d);
  row("MLP up product", time([&] { o.gemm(s, {x, weight, wide, false, false, false, {}}); }), 0, gemm, c);
  row("MLP input gradient", time([&] { o.gemm(s, {wide, weight, x, false, true, false, {}}); }), 0, gemm, c);
  row("MLP weight gradient", time([&] { o.gemm(s, {x, wide, dweight, true, false, true, {}}); }), 0, gemm, c);
  row("logits product", time([&] {
        o.gemm(s, {x.rows(0, rows), table, logits, false, true, false, {}});
      }),
      0, 2.0 * static_cast<double>(rows * v * w), c);
  fill_noise(device, s, qkv, 1);
  row("attention (causal flops)", time([&] {
        o.attention(s, {qkv, y, lse, {b, t, h, h, d}, {}});
      }),
      0, attention, c);
  row("attention backward", time([&] {
        o.attention_backward(s, {qkv, y, lse, x, dqkv, delta, {b, t, h, h, d}, {}});
      }),
      0, 2.5 * attention, c);
  row("grouped attention, 8 kv", time([&] { o.attention(s, {qkv, y, lse, grouped, {}}); }), 0, attention, c);
  row("its backward", time([&] {
        o.attention_backward(s, {qkv, y, lse, x, dqkv, delta, grouped, {}});
      }),
      0, 2.5 * attention, c);
  AttentionShape odd{b, t - 24, h, h, d};
  row("attention, T 2024 (padded)", time([&] { o.attention(s, {qkv, y, lse, odd, {}}); }), 0, attention, c);
  row("its backward", time([&] {
        o.attention_backward(s, {qkv, y, lse, x, dqkv, delta, odd, {}});
      }),
      0, 2.5 * attention, c);
}

// Documents of a fine-tuning set (half below 300 tokens, some fill a row) packed into 8 x 2048 tokens.
void packed_attention_table(Device& device, Arena& arena, Stream& s, const Ceilings& c) {
  const AttentionShape shape{8, 2048, 32, 8, 128};
  const int64_t n = shape.batch * shape.seq_len;
  std::vector<int32_t> places(static_cast<size_t>(3 * n));
  int64_t left = 0;
  for (int64_t i = 0, at = 0, d = 0; i < n; ++i) {
    if (left == 0 || i % shape.seq_len == 0)
      at = 0,
      left = static_cast<int64_t>(40 * std::exp(4 * random_uniform(5, 6, static_cast<uint64_t>(d++))));
    places[static_cast<size_t>(i)] = static_cast<int32_t>(at++), --left;
  }
  const auto groups = find_documents(places.data(), n, shape.seq_len, places.data() + n);
  auto* at = static_cast<int32_t*>(arena.take("places", 3 * n * 4));
  device.copy(s, at, places.data(), 3 * n * 4);
  s.synchronize();
  const PackedDocuments documents{Tensor(at, DType::i32, {n}), Tensor(at + n, DType::i32, {2, n}), &groups};
  double flops = 0;
  int64_t count = 0;
  for (const DocumentGroup& g : groups)
    for (int64_t i = g.first; i < g.first + g.count; ++i, ++count)
      flops +=
          2.0 * static_cast<double>(shape.q_width()) * std::pow(places[static_cast<size_t>(2 * n + i)], 2);
  auto bf = [&](int64_t width) {
    Tensor x(nullptr, DType::bf16, {n, width});
    x.data = arena.take("packed", x.bytes());
    fill_noise(device, s, x, 1);
    return x;
  };
  const Tensor qkv = bf(shape.qkv_width()), dqkv = bf(shape.qkv_width()), out = bf(shape.q_width()),
               dout = bf(shape.q_width());
  const Tensor lse(arena.take("lse", n * 32 * 4), DType::f32, {n * 32}),
      delta(arena.take("delta", n * 32 * 4), DType::f32, {n * 32});
  Ops& o = device.ops();
  fmt::print("{} documents packed into {} x {} tokens, {} groups by length:\n", count, shape.batch,
             shape.seq_len, groups.size());
  row("packed attention",
      median_seconds(s,
                     [&] {
                       o.attention(s, {qkv, out, lse, shape, {}, documents});
                     }),
      0, flops, c);
  row("its backward",
      median_seconds(s,
                     [&] {
                       o.attention_backward(s, {qkv, out, lse, dout, dqkv, delta, shape, {}, documents});
                     }),
      0, 2.5 * flops, c);
  const double whole = 2.0 * static_cast<double>(n * shape.seq_len * shape.q_width());
  row("whole rows, for comparison",
      median_seconds(s,
                     [&] {
                       o.attention(s, {qkv, out, lse, shape, {}});
                     }),
      0, whole, c);
  row("its backward",
      median_seconds(s,
                     [&] {
                       o.attention_backward(s, {qkv, out, lse, dout, dqkv, delta, shape, {}});
                     }),
      0, 2.5 * whole, c);
}

void step_row(const ModelSpec& spec, int64_t tokens, double clip, const Ceilings& c) {
  const int64_t seq_len = spec.max_position_embeddings, layers = spec.num_layers, vocab = spec.vocab_size;
  const auto model = make_model(spec);
  const DeviceChoice choice = choose_device("cuda", "bf16");
  PlanRequest r;
  r.batch = tokens / seq_len, r.seq_len = seq_len, r.compute = DType::bf16, r.workspace = choice.workspace,
  r.micro_batch_tokens = choice.micro_batch_tokens;
  r.machine = built_in_profile("cuda", choice.name, available_cores());
  r.device_limit = choice.usable_memory, r.device_shares_host = false,
  r.host_available = available_host_memory() / 20 * 19;
  r.update_in_backward = clip == 0,
  r.residency = std::getenv("MT_RESIDENCY") ? std::getenv("MT_RESIDENCY") : "stream";
  const MemoryPlan plan = plan_step(*model, r);
  const auto device = make_device(choice, plan.limit(Place::device), 0);
  double start = now();
  StateStore store(*device, *model, plan.step.store_options());
  ThreadPool pool(available_cores());
  const double pinned = now() - start;
  store.initialize(1, pool);
  Engine::Options options;
  options.host_threads = available_cores();
  Engine engine(*device, *model, store, plan.step, options);
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(random_u32(5, 6, i) % static_cast<uint32_t>(vocab));
  StepSettings settings;
  settings.optimizer.learning_rate = 1e-4, settings.max_gradient_norm = clip;
  std::vector<double> t;
  Timeline line;
  for (int i = 0; i < 5; ++i) {
    start = now();
    const StepResult result = engine.train_step(ids.data(), ids.data(), settings);
    if (i >= 2) t.push_back(now() - start);
    line = engine.timeline();
    if (i == 4 && !std::isfinite(result.loss)) fmt::print("  LOSS IS NOT FINITE\n");
  }
  std::sort(t.begin(), t.end());
  const double seconds = t[1],
               block = model->block().forward_flops(plan.step.batch, seq_len) * static_cast<double>(layers);
  const double useful = model->step_flops(plan.step.batch, seq_len), executed = useful + block;
  const double parameters = static_cast<double>(model->parameter_count());
  const double link =
                   std::max((r.residency == "stream" ? 4 : 2) * parameters / c.h2d, 4 * parameters / c.d2h),
               adam = 28 * parameters / c.dram;
  const double bound = std::max({executed / c.gemm, link, adam});
  const Schedule& s = engine.schedule();
  fmt::print(
      "  {} {:.2f}B: hidden {}, {} layers, {} + {} heads, MLP {}, V {}, T {}, {} tokens a step, {} "
      "micro-batches, "
      "{} waves, clip {}; pinning took {:.1f} s for {}\n",
      spec.family, parameters / 1e9, spec.hidden_size, layers, spec.num_heads, spec.kv_heads(),
      spec.intermediate_size, vocab, seq_len, tokens, plan.step.micro_batches(), plan.step.waves(), clip,
      pinned, format_bytes(static_cast<double>(store.bytes())));
  fmt::print(
      "    {:.2f} s a step (of {:.2f} to {:.2f}), {:.0f} tok/s, model {:.0f} TFLOP/s, hardware {:.0f} "
      "TFLOP/s = {:.0f}% of the GEMM ceiling\n",
      seconds, t.front(), t.back(), static_cast<double>(tokens) / seconds, useful / seconds / 1e12,
      executed / seconds / 1e12, 100 * executed / seconds / c.gemm);
  fmt::print(
      "    busy: H2D {:.0f}%, compute {:.0f}%, D2H {:.0f}%, host {:.0f}%; floor of max(compute, link, Adam) "
      "{:.2f} s, reached {:.0f}%; device memory {}\n",
      100 * line.busy(s, Lane::h2d) / line.seconds, 100 * line.busy(s, Lane::compute) / line.seconds,
      100 * line.busy(s, Lane::d2h) / line.seconds, 100 * line.busy(s, Lane::host) / line.seconds, bound,
      100 * bound / seconds, format_bytes(static_cast<double>(plan.bytes(Place::device))));
}

}  // namespace
}  // namespace megatrain

int main(int argc, char** argv) try {
  using namespace megatrain;
  const DeviceChoice choice = choose_device("cuda", "bf16");
  Ceilings c;
  {
    const auto device = make_device(choice, int64_t{24} << 30, 0);
    const auto stream = device->new_stream("compute");
    Arena arena(*device, "benchmark", int64_t{20} << 30, "");
    const AttentionShape shape{8, 2048, 32, 32, 128};
    const int64_t bytes = std::max(cuda_workspace_bytes({shape, DType::bf16, 0, true}),
                                   cuda_workspace_bytes({shape, DType::bf16, 0, false}));
    device->ops().set_workspace(arena.take("workspace", bytes), bytes);
    c = measure_ceilings(*device, arena, *stream);
    op_table(*device, arena, *stream, c);
    packed_attention_table(*device, arena, *stream, c);
  }
  fmt::print("whole steps, random weights and tokens, bf16, weights streamed:\n");
  for (int i = 1; i + 9 < argc; i += 10) {
    auto number = [&](int k) { return std::atoll(argv[i + k]); };
    ModelSpec spec;
    spec.family = argv[i], spec.hidden_size = number(1), spec.num_layers = number(2),
    spec.num_heads = number(3);
    spec.num_kv_heads = number(4), spec.intermediate_size = number(5),
    spec.max_position_embeddings = number(7);
    spec.vocab_size = number(8);
    spec.qkv_bias = spec.family == "qwen2", spec.qk_norm = spec.family == "qwen3";
    spec.tied = spec.family == "gpt2";
    step_row(spec, number(6), std::atof(argv[i + 9]), c);
  }
} catch (const std::exception& e) {
  fmt::print(stderr, "bench_cuda: {}\n", e.what());
  return 1;
}
