#include <cmath>
#include <cstring>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"

namespace megatrain {
namespace {
constexpr int64_t kGrain = 16384;  // elements per item, a multiple of 4 (Philox block)
}

void CpuOps::activation(Stream& s, Activation kind, Tensor x, Tensor y) {
  cpu_stream(s).enqueue([=](ThreadPool& pool) {
    pool.parallel_ranges(x.numel(), kGrain, [&](int64_t b, int64_t e) {
      cpu_kernels().gelu(e - b, kind == Activation::gelu_tanh, x.f32() + b, y.f32() + b);
    });
  });
}

void CpuOps::activation_backward(Stream& s, Activation kind, Tensor x, Tensor dy) {
  cpu_stream(s).enqueue([=](ThreadPool& pool) {
    pool.parallel_ranges(x.numel(), kGrain, [&](int64_t b, int64_t e) {
      cpu_kernels().gelu_backward(e - b, kind == Activation::gelu_tanh, x.f32() + b, dy.f32() + b);
    });
  });
}

void CpuOps::swiglu(Stream& s, Tensor gate_up, Tensor y) {
  cpu_stream(s).enqueue([=](ThreadPool& pool) {
    const int64_t f = y.shape[1];
    pool.parallel_ranges(y.shape[0], row_grain(f), [&](int64_t b, int64_t e) {
      for (int64_t r = b; r < e; ++r) {
        const float* gate = gate_up.f32() + 2 * r * f;
        cpu_kernels().swiglu(f, gate, gate + f, y.f32() + r * f);
      }
    });
  });
}

void CpuOps::swiglu_backward(Stream& s, Tensor gate_up, Tensor dy) {
  cpu_stream(s).enqueue([=](ThreadPool& pool) {
    const int64_t f = dy.shape[1];
    pool.parallel_ranges(dy.shape[0], row_grain(f), [&](int64_t b, int64_t e) {
      for (int64_t r = b; r < e; ++r) {
        float* gate = gate_up.f32() + 2 * r * f;
        cpu_kernels().swiglu_backward(f, gate, gate + f, dy.f32() + r * f);
      }
    });
  });
}

void CpuOps::residual_add(Stream& s, Tensor x, Tensor branch, Tensor y, const Dropout& d) {
  cpu_stream(s).enqueue([=](ThreadPool& pool) {
    pool.parallel_ranges(x.numel(), kGrain, [&](int64_t b, int64_t e) {
      const float *px = x.f32(), *pb = branch.f32();
      float* py = y.f32();
      if (d.probability <= 0) return cpu_kernels().add(e - b, px + b, pb + b, py + b);
      DropoutMask mask(d, static_cast<uint64_t>(b));
      for (int64_t i = b; i < e; ++i) py[i] = px[i] + pb[i] * mask.next();
    });
  });
}

void CpuOps::dropout(Stream& s, Tensor in, Tensor out, const Dropout& d) {
  cpu_stream(s).enqueue([=](ThreadPool& pool) {
    pool.parallel_ranges(in.numel(), kGrain, [&](int64_t b, int64_t e) {
      DropoutMask mask(d, static_cast<uint64_t>(b));
      for (int64_t i = b; i < e; ++i) out.f32()[i] = in.f32()[i] * mask.next();
    });
  });
}

void CpuOps::sum(Stream& s, Tensor x, Tensor out, bool squared) {
  cpu_stream(s).enqueue([=](ThreadPool& pool) {
    constexpr int64_t kParts = 1024;  // fixed, so that the order of addition is too
    double part[kParts] = {0};
    const int64_t grain = ((x.numel() + kParts - 1) / kParts + 7) / 8 * 8;
    pool.parallel_ranges(x.numel(), grain, [&](int64_t b, int64_t e) {
      part[b / grain] = cpu_kernels().sum(e - b, x.f32() + b, squared);
    });
    double total = 0;
    for (double p : part) total += p;
    *out.f64() = total;
  });
}

void CpuOps::adamw(Stream& s, const AdamWArgs& args) {
  cpu_stream(s).enqueue([a = args](ThreadPool& pool) {
    if (a.squared_norm && !std::isfinite(*a.squared_norm)) return;
    pool.parallel_ranges(a.count, 65536, [&](int64_t b, int64_t e) {
      cpu_kernels().adamw(e - b, a.hi + b, a.lo + b, a.m + b, a.v + b, a.gradient + b, &a.step);
    });
  });
}

void CpuOps::fill_bytes(Stream& s, void* data, int value, int64_t bytes) {
  cpu_stream(s).enqueue([=](ThreadPool& pool) {
    pool.parallel_ranges(bytes, int64_t{1} << 20, [&](int64_t b, int64_t e) {
      std::memset(static_cast<char*>(data) + b, value, static_cast<size_t>(e - b));
    });
  });
}

void CpuOps::join_planes(Stream& s, const uint16_t* hi, const uint16_t* lo, Tensor weights) {
  cpu_stream(s).enqueue([=](ThreadPool& pool) {
    pool.parallel_ranges(weights.numel(), kGrain, [&](int64_t b, int64_t e) {
      cpu_kernels().join(e - b, hi + b, lo + b, weights.f32() + b);
    });
  });
}

}  // namespace megatrain
