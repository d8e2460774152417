// Every CUDA op against the CPU's, fp32 and bf16. Skipped where there is no CUDA device.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/rng.h"
#include "device/arena.h"
#include "device/cpu/cpu_device.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "engine/documents.h"
#include "ops/cpu/kernels.h"
#include "ops/cuda/cuda_ops.h"

namespace megatrain {
namespace {

/// The same op on both devices: tensors are made in pairs; bf16 inputs are rounded for the CPU too.
class CudaOpsTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    const std::string why = CudaDevice::unavailable();
    if (!why.empty()) GTEST_SKIP() << why;
    cuda = std::make_unique<CudaDevice>(int64_t{8} << 30);
    stream = cuda->new_stream("compute");
    arena = std::make_unique<Arena>(*cuda, "test", int64_t{6} << 30, "");
    const int64_t bytes = cuda_workspace_bytes({{4, 1024, 8, 8, 128}, DType::bf16, 0, false});
    cuda->ops().set_workspace(arena->take("workspace", bytes), bytes);
  }

  struct Pair {
    std::vector<float> host;
    Tensor cpu, gpu;
  };
  // Uniform noise in [-scale, scale] on both devices; type: the device's element type.
  Pair& make(std::initializer_list<int64_t> shape, DType type, float scale = 1, float offset = 0) {
    pairs.push_back(std::make_unique<Pair>());
    Pair& p = *pairs.back();
    p.cpu = Tensor(nullptr, DType::f32, shape);
    p.host.resize(static_cast<size_t>(p.cpu.numel()));
    for (size_t i = 0; i < p.host.size(); ++i) {
      p.host[i] = offset + scale * (2 * static_cast<float>(random_uniform(pairs.size(), 1, i)) - 1);
      if (type == DType::bf16) p.host[i] = bits_float(static_cast<uint32_t>(split_float(p.host[i]).hi) << 16);
    }
    p.cpu.data = p.host.data();
    p.gpu = Tensor(arena->take("t", p.cpu.numel() * size_of(type)), type, shape);
    std::vector<uint16_t> hi(p.host.size());
    for (size_t i = 0; i < hi.size(); ++i) hi[i] = split_float(p.host[i]).hi;
    const void* from = type == DType::bf16 ? static_cast<const void*>(hi.data()) : p.host.data();
    MT_CUDA(cudaMemcpy(p.gpu.data, from, static_cast<size_t>(p.gpu.bytes()), cudaMemcpyHostToDevice));
    return p;
  }
  std::vector<float> fetch(const Tensor& t) {
    stream->synchronize();
    std::vector<float> out(static_cast<size_t>(t.numel()));
    std::vector<uint16_t> hi(out.size());
    MT_CUDA(cudaMemcpy(t.dtype == DType::bf16 ? static_cast<void*>(hi.data()) : out.data(), t.data,
                       static_cast<size_t>(t.bytes()), cudaMemcpyDeviceToHost));
    if (t.dtype == DType::bf16)
      for (size_t i = 0; i < out.size(); ++i) out[i] = bits_float(static_cast<uint32_t>(hi[i]) << 16);
    return out;
  }
  // ||gpu - cpu|| / ||cpu||
  void expect_close(const Pair& p, const char* what, double fp32_bound = 2e-6, double bf16_bound = 6e-3) {
    cpu_stream->synchronize();
    const auto got = fetch(p.gpu);
    double error = 0, norm = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error += std::pow(static_cast<double>(got[i]) - p.host[i], 2),
          norm += std::pow(static_cast<double>(p.host[i]), 2);
      ASSERT_TRUE(std::isfinite(got[i])) << what << " at " << i;
    }
    EXPECT_LE(std::sqrt(error / norm), GetParam() == DType::bf16 ? bf16_bound : fp32_bound) << what;
  }
  Tensor f32(int64_t n) { return {arena->take("f", n * 4), DType::f32, {n}}; }

  CpuDevice cpu{int64_t{1} << 26, 0};
  std::unique_ptr<Stream> cpu_stream = cpu.new_stream("compute"), stream;
  std::unique_ptr<CudaDevice> cuda;
  std::unique_ptr<Arena> arena;
  std::vector<std::unique_ptr<Pair>> pairs;
};

TEST_P(CudaOpsTest, Gemm) {
  const DType t = GetParam();
  for (auto [m, n, k] : {std::tuple{8, 16, 24}, {64, 136, 40}, {300, 512, 256}})
    for (int flags = 0; flags < 4; ++flags) {
      const bool ta = flags & 1, tb = flags & 2;
      Pair &a = ta ? make({k, m}, t) : make({m, k}, t), &b = tb ? make({n, k}, t) : make({k, n}, t),
           &bias = make({n}, t);
      Pair &c = make({m, n}, t), &grad = make({m, n}, DType::f32);
      cpu.ops().gemm(*cpu_stream, {a.cpu, b.cpu, c.cpu, ta, tb, false, bias.cpu});
      cuda->ops().gemm(*stream, {a.gpu, b.gpu, c.gpu, ta, tb, false, bias.gpu});
      cpu.ops().gemm(*cpu_stream, {a.cpu, b.cpu, grad.cpu, ta, tb, true, {}});
      cuda->ops().gemm(*stream, {a.gpu, b.gpu, grad.gpu, ta, tb, true, {}});
      expect_close(c, "product with bias");
      expect_close(grad, "accumulated gradient", 2e-6, 1e-5);
    }
}

TEST_P(CudaOpsTest, LayerNormAndColumnSum) {
  const DType t = GetParam();
  for (auto [n, c] : {std::pair{5, 24}, {300, 768}, {70, 4096}, {40, 8192}, {33, 12288}, {20, 16384}})
    for (bool bias : {true, false}) {
      Pair &x = make({n, c}, t, 2, 0.5f), &w = make({c}, t, 0.3f, 1), &b = make({c}, t), &y = make({n, c}, t),
           &dy = make({n, c}, t), &dx = make({n, c}, t);
      Pair &mean = make({n}, DType::f32), &rstd = make({n}, DType::f32), &dw = make({c}, DType::f32),
           &db = make({c}, DType::f32), &sum = make({c}, DType::f32);
      const Tensor none;
      cpu.ops().layer_norm(*cpu_stream,
                           {x.cpu, w.cpu, bias ? b.cpu : none, y.cpu, mean.cpu, rstd.cpu, 1e-5f});
      cuda->ops().layer_norm(*stream, {x.gpu, w.gpu, bias ? b.gpu : none, y.gpu, mean.gpu, rstd.gpu, 1e-5f});
      cpu.ops().layer_norm_backward(*cpu_stream, {x.cpu, w.cpu, mean.cpu, rstd.cpu, dy.cpu, dx.cpu, dw.cpu,
                                                  bias ? db.cpu : none, true});
      cuda->ops().layer_norm_backward(
          *stream, {x.gpu, w.gpu, mean.gpu, rstd.gpu, dy.gpu, dx.gpu, dw.gpu, bias ? db.gpu : none, true});
      cpu.ops().column_sum(*cpu_stream, x.cpu, sum.cpu);
      cuda->ops().column_sum(*stream, x.gpu, sum.gpu);
      for (auto& [p, what] :
           {std::pair<Pair&, const char*>{y, "y"}, {dx, "dx"}, {mean, "mean"}, {rstd, "rstd"}})
        expect_close(p, what);
      for (auto& [p, what] :
           {std::pair<Pair&, const char*>{dw, "dweight"}, {db, "dbias"}, {sum, "column sum"}})
        expect_close(p, what, 2e-6, 1e-5);
      Pair& in_place = make({n, c}, t, 2, 0.5f);  // dx over x
      cpu.ops().layer_norm(*cpu_stream, {in_place.cpu, w.cpu, none, y.cpu, mean.cpu, rstd.cpu, 1e-5f});
      cuda->ops().layer_norm(*stream, {in_place.gpu, w.gpu, none, y.gpu, mean.gpu, rstd.gpu, 1e-5f});
      cpu.ops().layer_norm_backward(
          *cpu_stream, {in_place.cpu, w.cpu, mean.cpu, rstd.cpu, dy.cpu, in_place.cpu, dw.cpu, none, false});
      cuda->ops().layer_norm_backward(
          *stream, {in_place.gpu, w.gpu, mean.gpu, rstd.gpu, dy.gpu, in_place.gpu, dw.gpu, none, false});
      expect_close(in_place, "dx in place");
      if (bias) continue;  // RMS norm
      cpu.ops().layer_norm(*cpu_stream, {x.cpu, w.cpu, none, y.cpu, none, rstd.cpu, 1e-6f});
      cuda->ops().layer_norm(*stream, {x.gpu, w.gpu, none, y.gpu, none, rstd.gpu, 1e-6f});
      cpu.ops().layer_norm_backward(*cpu_stream,
                                    {x.cpu, w.cpu, none, rstd.cpu, dy.cpu, dx.cpu, dw.cpu, none, true});
      cuda->ops().layer_norm_backward(*stream,
                                      {x.gpu, w.gpu, none, rstd.gpu, dy.gpu, dx.gpu, dw.gpu, none, true});
      expect_close(y, "RMS norm"), expect_close(rstd, "RMS norm's rstd");
      expect_close(dx, "RMS norm's dx"), expect_close(dw, "RMS norm's dweight", 2e-6, 1e-5);
    }
}

// In bf16 without dropout cuDNN computes; in fp32 and with dropout, our kernels. T mod 128 = 64 and others
// are padded. Scale 8: scores far below zero, where some cuDNN versions gave NaN.
TEST_P(CudaOpsTest, Attention) {
  const DType t = GetParam();
  struct Case {
    AttentionShape shape;
    float scale = 1, dropout = 0;
  };
  const Case cases[] = {{{2, 20, 3, 3, 8}},
                        {{2, 128, 2, 2, 64}},
                        {{1, 192, 2, 2, 64}, 8},
                        {{3, 320, 4, 2, 64}, 8},
                        {{2, 256, 4, 4, 128}},
                        {{4, 1024, 8, 8, 128}},
                        {{2, 256, 2, 2, 64}, 8},
                        {{2, 256, 8, 2, 128}},
                        {{2, 200, 7, 1, 64}},
                        {{2, 384, 4, 2, 64, 100}},
                        {{1, 333, 6, 3, 80, 64}},
                        {{1, 128, 2, 2, 64}, 1, 0.2f},
                        {{2, 65, 4, 2, 40, 20}, 1, 0.1f}};
  for (const auto& [n, scale, p] : cases) {
    SCOPED_TRACE("T " + std::to_string(n.seq_len) + ", " + std::to_string(n.num_heads) + "/" +
                 std::to_string(n.num_kv_heads) + " heads, window " + std::to_string(n.window));
    const int64_t tokens = n.batch * n.seq_len;
    Pair &qkv = make({tokens, n.qkv_width()}, t, scale), &out = make({tokens, n.q_width()}, t),
         &dout = make({tokens, n.q_width()}, t), &dqkv = make({tokens, n.qkv_width()}, t);
    Pair &lse = make({n.batch, n.num_heads, n.seq_len}, DType::f32),
         &delta = make({n.batch, n.num_heads, n.seq_len}, DType::f32);
    const Dropout drop{p, 5, 6, 7};
    cpu.ops().attention(*cpu_stream, {qkv.cpu, out.cpu, lse.cpu, n, drop});
    cuda->ops().attention(*stream, {qkv.gpu, out.gpu, lse.gpu, n, drop});
    expect_close(out, "attention", 3e-6, 8e-3);
    expect_close(lse, "log-sum-exp", 3e-6, 1e-4);
    cpu.ops().attention_backward(*cpu_stream,
                                 {qkv.cpu, out.cpu, lse.cpu, dout.cpu, dqkv.cpu, delta.cpu, n, drop});
    const AttentionBackwardArgs args{qkv.gpu, out.gpu, lse.gpu, dout.gpu, dqkv.gpu, delta.gpu, n, drop};
    cuda->ops().attention_backward(*stream, args);
    expect_close(dqkv, "attention backward", 1e-5, 2e-2);
    const auto once = fetch(dqkv.gpu);
    cuda->ops().attention_backward(*stream, args);
    EXPECT_EQ(once, fetch(dqkv.gpu)) << "not deterministic";
  }
}

// Documents of all lengths side by side; in bf16 cuDNN takes them as a ragged batch, group by group.
TEST_P(CudaOpsTest, PackedAttention) {
  const DType t = GetParam();
  for (const AttentionShape& n : {AttentionShape{2, 512, 2, 2, 64},
                                  {3, 1000, 4, 2, 64},
                                  {1, 2048, 8, 2, 128},
                                  {2, 640, 4, 4, 128, 100},
                                  {2, 130, 6, 3, 80, 64}}) {
    for (int64_t mean : {7, 60, 400}) {
      SCOPED_TRACE("T " + std::to_string(n.seq_len) + ", " + std::to_string(n.num_heads) + "/" +
                   std::to_string(n.num_kv_heads) + " heads, documents of about " + std::to_string(mean));
      const int64_t tokens = n.batch * n.seq_len, bytes = cuda_workspace_bytes({n, t, 0, true});
      cuda->ops().set_workspace(arena->take("workspace", bytes), bytes);  // no more than is planned
      std::vector<int32_t> places(static_cast<size_t>(3 * tokens));
      for (int64_t i = 0; i < tokens; ++i) {
        const bool starts =
            i % n.seq_len == 0 || random_u32(3, static_cast<uint64_t>(mean), static_cast<uint64_t>(i)) %
                                          static_cast<uint32_t>(mean) ==
                                      0;
        places[static_cast<size_t>(i)] = starts ? 0 : places[static_cast<size_t>(i) - 1] + 1;
      }
      const auto groups = find_documents(places.data(), tokens, n.seq_len, places.data() + tokens);
      Pair &qkv = make({tokens, n.qkv_width()}, t, 2), &out = make({tokens, n.q_width()}, t),
           &dout = make({tokens, n.q_width()}, t), &dqkv = make({tokens, n.qkv_width()}, t);
      Pair &lse = make({n.batch, n.num_heads, n.seq_len}, DType::f32),
           &delta = make({n.batch, n.num_heads, n.seq_len}, DType::f32);
      const Tensor cpu_at(places.data(), DType::i32, {3, tokens}),
          gpu_at(arena->take("p", 3 * tokens * 4), DType::i32, {3, tokens});
      MT_CUDA(cudaMemcpy(gpu_at.data, places.data(), places.size() * 4, cudaMemcpyHostToDevice));
      auto documents = [&](const Tensor& all) {
        auto* p = static_cast<int32_t*>(all.data);
        return PackedDocuments{Tensor(p, DType::i32, {tokens}), Tensor(p + tokens, DType::i32, {2, tokens}),
                               &groups};
      };
      cpu.ops().attention(*cpu_stream, {qkv.cpu, out.cpu, lse.cpu, n, {}, documents(cpu_at)});
      cpu.ops().attention_backward(
          *cpu_stream, {qkv.cpu, out.cpu, lse.cpu, dout.cpu, dqkv.cpu, delta.cpu, n, {}, documents(cpu_at)});
      cuda->ops().attention(*stream, {qkv.gpu, out.gpu, lse.gpu, n, {}, documents(gpu_at)});
      expect_close(out, "attention", 3e-6, 8e-3);
      const AttentionBackwardArgs args{qkv.gpu,   out.gpu, lse.gpu, dout.gpu,         dqkv.gpu,
                                       delta.gpu, n,       {},      documents(gpu_at)};
      cuda->ops().attention_backward(*stream, args);
      expect_close(dqkv, "attention backward", 1e-5, 2e-2);
      const auto once = fetch(dqkv.gpu);
      cuda->ops().attention_backward(*stream, args);
      EXPECT_EQ(once, fetch(dqkv.gpu)) << "not deterministic";
    }
  }
}

TEST_P(CudaOpsTest, CachedAttention) {
  const DType t = GetParam();
  for (AttentionShape n : {AttentionShape{3, 1, 8, 2, 64}, {2, 5, 4, 4, 128}, {2, 40, 4, 2, 40, 16}}) {
    const int64_t capacity = 700, tokens = n.batch * n.seq_len;
    const std::vector<int32_t> past = {600, 7, 0};
    Pair &qkv = make({tokens, n.qkv_width()}, t), &out = make({tokens, n.q_width()}, t),
         &cache = make({n.batch, capacity, 2 * n.kv_width()}, t);
    const Tensor cpu_past(const_cast<int32_t*>(past.data()), DType::i32, {n.batch}),
        gpu_past(arena->take("p", 16), DType::i32, {n.batch});
    MT_CUDA(cudaMemcpy(gpu_past.data, past.data(), 12, cudaMemcpyHostToDevice));
    cpu.ops().attention_cached(*cpu_stream, {qkv.cpu, cache.cpu, cpu_past, out.cpu, n, capacity});
    cuda->ops().attention_cached(*stream, {qkv.gpu, cache.gpu, gpu_past, out.gpu, n, capacity});
    expect_close(out, "cached attention", 3e-6, 8e-3);
    expect_close(cache, "cache", 0, 0);
  }
}

TEST_P(CudaOpsTest, Rope) {
  const DType t = GetParam();
  for (const AttentionShape& n : {AttentionShape{2, 37, 4, 2, 128},
                                  {1, 50, 28, 4, 128},
                                  {2, 9, 3, 1, 64},
                                  {1, 20, 2, 2, 12},
                                  {1, 70, 5, 5, 80},
                                  {2, 300, 16, 8, 128}})
    for (bool norms : {false, true})
      for (bool given : {false, true}) {
        SCOPED_TRACE("head_dim " + std::to_string(n.head_dim) + (norms ? " with norms" : ""));
        const int64_t tokens = n.batch * n.seq_len, w = n.qkv_width(), d = n.head_dim;
        std::vector<float> inv_freq;
        for (int64_t i = 0; i < d / 2; ++i)
          inv_freq.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(d)));
        std::vector<int32_t> at(static_cast<size_t>(tokens));
        for (size_t i = 0; i < at.size(); ++i) at[i] = static_cast<int32_t>(random_u32(8, 9, i) % 5000);
        Tensor cpu_at(at.data(), DType::i32, {tokens}),
            gpu_at(arena->take("p", tokens * 4), DType::i32, {tokens});
        MT_CUDA(cudaMemcpy(gpu_at.data, at.data(), at.size() * 4, cudaMemcpyHostToDevice));
        if (!given) cpu_at = gpu_at = {};
        Pair &x = make({tokens, w}, t), &y = make({tokens, w}, t), &g = make({tokens, w}, t),
             &qn = make({d}, t, 0.3f, 1), &kn = make({d}, t, 0.3f, 1), &dq = make({d}, DType::f32),
             &dk = make({d}, DType::f32);
        const Tensor none;
        auto pick = [&](Tensor v) { return norms ? v : none; };
        cpu.ops().rope(*cpu_stream,
                       {x.cpu, y.cpu, cpu_at, pick(qn.cpu), pick(kn.cpu), n, inv_freq.data(), 1.1f});
        cuda->ops().rope(*stream,
                         {x.gpu, y.gpu, gpu_at, pick(qn.gpu), pick(kn.gpu), n, inv_freq.data(), 1.1f});
        expect_close(y, "rope", 2e-6);
        cpu.ops().rope_backward(*cpu_stream, {g.cpu, x.cpu, cpu_at, pick(qn.cpu), pick(kn.cpu), pick(dq.cpu),
                                              pick(dk.cpu), n, inv_freq.data(), 1.1f});
        cuda->ops().rope_backward(*stream, {g.gpu, x.gpu, gpu_at, pick(qn.gpu), pick(kn.gpu), pick(dq.gpu),
                                            pick(dk.gpu), n, inv_freq.data(), 1.1f});
        expect_close(g, "rope backward", 3e-6);
        if (norms) expect_close(dq, "query norm", 3e-6, 1e-5);
        if (norms) expect_close(dk, "key norm", 3e-6, 1e-5);
      }
}

TEST_P(CudaOpsTest, Swiglu) {
  const DType t = GetParam();
  for (auto [n, f] : {std::pair{5, 24}, {300, 512}, {33, 18944}}) {
    Pair &x = make({n, 2 * f}, t, 6), &y = make({n, f}, t), &dy = make({n, f}, t);
    cpu.ops().swiglu(*cpu_stream, x.cpu, y.cpu), cuda->ops().swiglu(*stream, x.gpu, y.gpu);
    expect_close(y, "swiglu");
    cpu.ops().swiglu_backward(*cpu_stream, x.cpu, dy.cpu),
        cuda->ops().swiglu_backward(*stream, x.gpu, dy.gpu);
    expect_close(x, "swiglu backward");
  }
}

TEST_P(CudaOpsTest, Elementwise) {
  const DType t = GetParam();
  const Dropout drop{0.3f, 1, 2, 3}, none{};
  Pair &x = make({64, 96}, t, 6), &y = make({64, 96}, t), &dy = make({64, 96}, t), &z = make({64, 96}, t),
       &w = make({64, 96}, t);
  for (Activation a : {Activation::gelu, Activation::gelu_tanh}) {
    cpu.ops().activation(*cpu_stream, a, x.cpu, y.cpu), cuda->ops().activation(*stream, a, x.gpu, y.gpu);
    expect_close(y, "gelu");
    cpu.ops().activation_backward(*cpu_stream, a, x.cpu, dy.cpu),
        cuda->ops().activation_backward(*stream, a, x.gpu, dy.gpu);
    expect_close(dy, "gelu backward");
  }
  for (const Dropout& d : {none, drop}) {
    cpu.ops().residual_add(*cpu_stream, x.cpu, y.cpu, z.cpu, d),
        cuda->ops().residual_add(*stream, x.gpu, y.gpu, z.gpu, d);
    expect_close(z, "residual add");
  }
  cpu.ops().dropout(*cpu_stream, x.cpu, w.cpu, drop), cuda->ops().dropout(*stream, x.gpu, w.gpu, drop);
  expect_close(w, "dropout");
  double sums[2];
  Tensor gpu_sum(arena->take("s", 8), DType::f64, {1});
  for (bool squared : {false, true}) {
    cpu.ops().sum(*cpu_stream, x.cpu, Tensor(&sums[0], DType::f64, {1}), squared);
    cuda->ops().sum(*stream, x.gpu, gpu_sum, squared);
    cpu_stream->synchronize(), stream->synchronize();
    MT_CUDA(cudaMemcpy(&sums[1], gpu_sum.data, 8, cudaMemcpyDeviceToHost));
    EXPECT_NEAR(sums[1], sums[0], 1e-5 * std::fabs(sums[0]) + 1e-3);
  }
}

TEST_P(CudaOpsTest, EmbeddingAndCrossEntropy) {
  const DType t = GetParam();
  const int64_t v = 61, seq = 20, n = 40 * seq, stride = 64;  // runs of equal tokens longer than a chunk
  std::vector<int32_t> tokens(static_cast<size_t>(n)), targets(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<int32_t>(random_u32(1, 2, i) % (i % 3 == 0 ? 1 : 50)),
    targets[i] = i % 7 == 0 ? -1 : static_cast<int32_t>(i % 61);
  Tensor ct(tokens.data(), DType::i32, {n}), cy(targets.data(), DType::i32, {n});
  Tensor gt(arena->take("t", n * 4), DType::i32, {n}), gy(arena->take("t", n * 4), DType::i32, {n});
  MT_CUDA(cudaMemcpy(gt.data, tokens.data(), tokens.size() * 4, cudaMemcpyHostToDevice));
  MT_CUDA(cudaMemcpy(gy.data, targets.data(), targets.size() * 4, cudaMemcpyHostToDevice));
  for (auto [c, p] : {std::pair{48, 0.0f}, {48, 0.25f}, {768, 0.0f}, {4096, 0.0f}}) {
    const Dropout d{p, 1, 2, 3};
    Pair &wte = make({v, c}, t), &wpe = make({seq, c}, t), &out = make({n, c}, t), &dout = make({n, c}, t),
         &dwte = make({v, c}, DType::f32), &dwpe = make({seq, c}, DType::f32);
    cpu.ops().embedding(*cpu_stream, {ct, wte.cpu, wpe.cpu, out.cpu, seq, d, {}}),
        cuda->ops().embedding(*stream, {gt, wte.gpu, wpe.gpu, out.gpu, seq, d, {}});
    expect_close(out, "embedding");
    cpu.ops().embedding_backward(*cpu_stream, {ct, dout.cpu, dwte.cpu, dwpe.cpu, seq, d}),
        cuda->ops().embedding_backward(*stream, {gt, dout.gpu, dwte.gpu, dwpe.gpu, seq, d});
    expect_close(dwte, "token gradient", 2e-6, 1e-5);
    expect_close(dwpe, "position gradient", 2e-6, 1e-5);
    std::vector<int32_t> at(static_cast<size_t>(n));
    for (size_t i = 0; i < at.size(); ++i) at[i] = static_cast<int32_t>((i * 7) % 20);
    const Tensor cpu_at(at.data(), DType::i32, {n}), gpu_at(arena->take("p", n * 4), DType::i32, {n});
    MT_CUDA(cudaMemcpy(gpu_at.data, at.data(), at.size() * 4, cudaMemcpyHostToDevice));
    cpu.ops().embedding(*cpu_stream, {ct, wte.cpu, wpe.cpu, out.cpu, seq, d, cpu_at}),
        cuda->ops().embedding(*stream, {gt, wte.gpu, wpe.gpu, out.gpu, seq, d, gpu_at});
    expect_close(out, "embedding at given positions");
    cpu.ops().embedding_backward(*cpu_stream, {ct, dout.cpu, dwte.cpu, dwpe.cpu, seq, d, cpu_at}),
        cuda->ops().embedding_backward(*stream, {gt, dout.gpu, dwte.gpu, dwpe.gpu, seq, d, gpu_at});
    expect_close(dwpe, "position gradient at given positions", 2e-6, 1e-5);
    cpu.ops().embedding(*cpu_stream, {ct, wte.cpu, {}, out.cpu, seq, d, {}}),
        cuda->ops().embedding(*stream, {gt, wte.gpu, {}, out.gpu, seq, d, {}});
    expect_close(out, "embedding without positions");
    cpu.ops().embedding_backward(*cpu_stream, {ct, dout.cpu, dwte.cpu, {}, seq, d}),
        cuda->ops().embedding_backward(*stream, {gt, dout.gpu, dwte.gpu, {}, seq, d});
    expect_close(dwte, "token gradient alone", 2e-6, 1e-5);
  }
  for (bool backward : {false, true}) {
    Pair &wide = make({n, stride}, t, 5), &losses = make({n}, DType::f32);
    const Tensor cl(wide.host.data(), DType::f32, {n, v}), gl(wide.gpu.data, t, {n, v});
    cpu.ops().cross_entropy(*cpu_stream, {cl, cy, losses.cpu, 0.125f, backward, stride});
    cuda->ops().cross_entropy(*stream, {gl, gy, losses.gpu, 0.125f, backward, stride});
    expect_close(losses, "losses", 2e-6, 1e-5);
    if (backward) expect_close(wide, "dlogits");
  }
}

TEST_P(CudaOpsTest, JoinPlanes) {
  std::vector<uint16_t> hi(1000), lo(1000);
  std::vector<float> want(1000);
  for (size_t i = 0; i < 1000; ++i) {
    want[i] = bits_float(random_u32(3, 4, i));
    hi[i] = split_float(want[i]).hi, lo[i] = split_float(want[i]).lo;
  }
  void *gh = arena->take("h", 2000), *gl = arena->take("l", 2000);
  MT_CUDA(cudaMemcpy(gh, hi.data(), 2000, cudaMemcpyHostToDevice));
  MT_CUDA(cudaMemcpy(gl, lo.data(), 2000, cudaMemcpyHostToDevice));
  const Tensor out = f32(1000);
  cuda->ops().join_planes(*stream, static_cast<uint16_t*>(gh), static_cast<uint16_t*>(gl), out);
  const auto got = fetch(out);
  EXPECT_EQ(std::memcmp(got.data(), want.data(), 4000), 0);
}

TEST_P(CudaOpsTest, StreamsWaitForTheHost) {
  const auto event = cuda->new_host_event();
  CpuStream host("host", 1);
  auto* pinned = static_cast<int32_t*>(cuda->allocate_pinned(4096));
  void* there = arena->take("x", 4096);
  for (int round = 1; round <= 20; ++round) {
    host.enqueue([=](ThreadPool&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      pinned[0] = round;
    });
    host.record(*event);
    stream->wait(*event);
    cuda->copy(*stream, there, pinned, 4096);
    stream->synchronize();
    int32_t seen = 0;
    MT_CUDA(cudaMemcpy(&seen, there, 4, cudaMemcpyDeviceToHost));
    EXPECT_EQ(seen, round);
  }
  cuda->release_pinned(pinned, 4096);
}

// Not close but equal, on every exponent: a home on the device may not change a run. NaNs may differ in their
// payload.
TEST_P(CudaOpsTest, AdamWHasTheHostsBits) {
  if (GetParam() == DType::bf16) GTEST_SKIP() << "one type only";
  const int64_t n = 1 << 20;
  struct Planes {
    std::vector<uint16_t> hi, lo;
    std::vector<float> m, v, g;
  } host;
  const auto random_float = [](uint64_t key, int64_t i) {  // all exponents alike, denormals included
    return bits_float(random_u32(17, key, static_cast<uint64_t>(i)));
  };
  const auto tame = [](float x) { return std::isfinite(x) ? x : 1.0f; };
  for (int64_t i = 0; i < n; ++i) {
    const SplitFloat w = split_float(tame(random_float(1, i)));
    const bool usual = i % 2 == 0;  // half of them as in a run
    host.hi.push_back(w.hi), host.lo.push_back(w.lo);
    host.m.push_back(usual ? 1e-3f * static_cast<float>(random_uniform(1, 2, static_cast<uint64_t>(i)) - 0.5)
                           : tame(random_float(2, i)));
    host.v.push_back(usual ? 1e-6f * static_cast<float>(random_uniform(1, 3, static_cast<uint64_t>(i)))
                           : std::fabs(tame(random_float(3, i))));
    host.g.push_back(usual ? 1e-2f * static_cast<float>(random_uniform(1, 4, static_cast<uint64_t>(i)) - 0.5)
                           : tame(random_float(4, i)));
  }
  for (const int64_t count : {n, int64_t{8 * 1000 + 5}})
    for (const float decay : {1.0f, 0.9999f}) {
      const AdamWStep step{0.9f, 0.95f, 1e-8f, decay, 1e-3f, 0.7f, 0.37f};
      Planes want = host;
      const auto put = [&](const auto& v) {
        void* p = arena->take("adamw", static_cast<int64_t>(v.size() * sizeof(v[0])));
        cuda->copy_now(p, v.data(), static_cast<int64_t>(v.size() * sizeof(v[0])));
        return p;
      };
      AdamWArgs a;
      a.hi = static_cast<uint16_t*>(put(host.hi)), a.lo = static_cast<uint16_t*>(put(host.lo));
      a.m = static_cast<float*>(put(host.m)), a.v = static_cast<float*>(put(host.v));
      a.gradient = static_cast<float*>(put(host.g)), a.count = count, a.step = step;
      for (int k = 0; k < 3; ++k) {
        cuda->ops().adamw(*stream, a);
        cpu_kernels().adamw(count, want.hi.data(), want.lo.data(), want.m.data(), want.v.data(),
                            want.g.data(), &step);
      }
      stream->synchronize();
      Planes got = host;
      cuda->copy_now(got.hi.data(), a.hi, n * 2), cuda->copy_now(got.lo.data(), a.lo, n * 2);
      cuda->copy_now(got.m.data(), a.m, n * 4), cuda->copy_now(got.v.data(), a.v, n * 4);
      int64_t differ = 0;
      for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
        const auto same = [](float x, float y) {
          return float_bits(x) == float_bits(y) || (std::isnan(x) && std::isnan(y));
        };
        const bool equal = same(join_float(got.hi[i], got.lo[i]), join_float(want.hi[i], want.lo[i])) &&
                           same(got.m[i], want.m[i]) && same(got.v[i], want.v[i]);
        if (!equal && differ++ < 3)
          ADD_FAILURE() << i << ": " << got.m[i] << " " << want.m[i] << ", " << got.v[i] << " " << want.v[i];
      }
      EXPECT_EQ(differ, 0);
    }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaOpsTest, ::testing::Values(DType::f32, DType::bf16),
                         [](auto& p) { return std::string(name_of(p.param)); });

}  // namespace
}  // namespace megatrain
