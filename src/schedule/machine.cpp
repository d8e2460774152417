#include "schedule/machine.h"

#include <algorithm>
#include <cmath>

namespace megatrain {
namespace {

// Where x lies on an axis of growing values: index of the left neighbour and the weight of the right one, in
// logarithms; clamped.
struct Position {
  size_t left = 0, right = 0;
  double weight = 0;
};
Position place_on(const std::vector<double>& axis, double x) {
  if (axis.size() < 2 || x <= axis.front()) return {};
  if (x >= axis.back()) return {axis.size() - 1, axis.size() - 1, 0};
  const auto right = static_cast<size_t>(std::upper_bound(axis.begin(), axis.end(), x) - axis.begin());
  return {right - 1, right, std::log(x / axis[right - 1]) / std::log(axis[right] / axis[right - 1])};
}

// Below the axis a product takes as long as one at its start: tiles stay empty.
double filled(const std::vector<double>& axis, double x) {
  return axis.empty() || x >= axis.front() ? 1 : x / axis.front();
}

}  // namespace

void complete_tables(MachineProfile& p) {
  if (p.gemm_share.empty() && p.device == "cuda") {
    p.gemm_axis = {256, 1024, 4096, 16384};
    for (const double m : p.gemm_axis)
      for (const double n : p.gemm_axis)
        for (const double k : p.gemm_axis) {
          const double size = std::cbrt(m * n * k);
          p.gemm_share.push_back(std::min(1.0, 0.93 * size / (size + 500)));
          p.gradient_share.push_back(std::min(1.0, 0.90 * size / (size + 500)));
        }
  }
  if (p.attention_share.empty()) {
    p.attention_axis = {512, 2048, 8192};
    p.attention_share = {0.30, 0.40, 0.55, 0.70, 0.60, 0.75},
    p.attention_backward_share = {0.18, 0.25, 0.35, 0.48, 0.40, 0.55};
  }
  if (p.op_share.empty())
    p.op_share = {{"layer_norm", 0.87},
                  {"layer_norm_backward", 0.75},
                  {"rope", 0.73},
                  {"swiglu", 1.0},
                  {"swiglu_backward", 1.0},
                  {"activation", 0.87},
                  {"residual_add", 1.0},
                  {"column_sum", 0.95},
                  {"embedding", 0.87},
                  {"embedding_backward", 0.29},
                  {"cross_entropy", 0.63},
                  {"sum", 0.81},
                  {"rope_backward_norms", 0.21},
                  {"activation_backward", 1.0},
                  {"fill", 0.6},
                  {"other", 0.7}};
}

double MachineProfile::gemm_seconds(double m, double n, double k, bool accumulate) const {
  const std::vector<double>& table = accumulate && !gradient_share.empty() ? gradient_share : gemm_share;
  double share = 0.8;
  if (!table.empty()) {
    const Position a = place_on(gemm_axis, m), b = place_on(gemm_axis, n), c = place_on(gemm_axis, k);
    const size_t size = gemm_axis.size();
    share = 0;
    for (int corner = 0; corner < 8; ++corner) {
      const auto pick = [&](const Position& p, int bit) { return corner >> bit & 1 ? p.right : p.left; };
      const auto weight = [&](const Position& p, int bit) {
        return corner >> bit & 1 ? p.weight : 1 - p.weight;
      };
      // Times are what adds up: interpolate their logarithms' linear part, the inverse of the share.
      share += weight(a, 2) * weight(b, 1) * weight(c, 0) *
               std::log(table[(pick(a, 2) * size + pick(b, 1)) * size + pick(c, 0)]);
    }
    share = std::exp(share) * filled(gemm_axis, m) * filled(gemm_axis, n) * filled(gemm_axis, k);
  }
  return 2 * m * n * k / (gemm * share);
}

double MachineProfile::attention_seconds(double flops, double seq_len, double head_dim, bool backward) const {
  const auto& table = backward ? attention_backward_share : attention_share;
  double share = backward ? 0.45 : 0.65;
  if (!table.empty()) {
    const Position t = place_on(attention_axis, seq_len);
    const auto at = [&](size_t i) {  // pairs of widths 64 and 128
      const double w = std::clamp(std::log2(std::max(head_dim, 1.0) / 64), 0.0, 1.0);
      return table[2 * i] * (1 - w) + table[2 * i + 1] * w;
    };
    share = at(t.left) * (1 - t.weight) + at(t.right) * t.weight;
  }
  return flops / (gemm * share);
}

double MachineProfile::bytes_seconds(const std::string& op, double bytes) const {
  auto it = op_share.find(op);
  if (it == op_share.end()) it = op_share.find("other");
  return bytes / (device_copy * (it == op_share.end() ? 0.8 : it->second));
}

namespace {

// Datasheet rates of devices that were never measured, times what the H200 reaches of its own (80% of dense
// bf16 flops with fp32 accumulation, 88% of the memory's rate).
struct KnownDevice {
  const char* match;
  double gemm, copy, link;
};
constexpr KnownDevice kKnown[] = {
    {"GH200", 790e12, 3.5e12, 370e9}, {"H200", 790e12, 4.2e12, 55e9},  {"H100", 750e12, 2.9e12, 55e9},
    {"A100", 250e12, 1.7e12, 25e9},   {"4090", 150e12, 0.89e12, 25e9}, {"3090", 65e12, 0.82e12, 25e9},
    {"B200", 1800e12, 7e12, 55e9},    {"L40", 150e12, 0.76e12, 25e9},  {"A6000", 125e12, 0.68e12, 25e9},
};

MachineProfile generic_cuda() {
  MachineProfile p;
  p.device = "cuda", p.gemm = 250e12, p.device_copy = 1.5e12, p.link_up = p.link_down = 25e9;
  return p;
}

}  // namespace

MachineProfile built_in_profile(const std::string& device, const std::string& device_name, int64_t cores) {
  MachineProfile p;
  p.cores = cores, p.source = "built in";
  const auto n = static_cast<double>(cores);
  p.dram = std::min(150e9, 20e9 + 9e9 * n);
  if (device == "cuda") {
    p = generic_cuda();
    for (const KnownDevice& k : kKnown) {
      if (device_name.find(k.match) == std::string::npos) continue;
      p.gemm = k.gemm, p.device_copy = k.copy, p.link_up = p.link_down = k.link;
      break;
    }
    p.cores = cores, p.dram = std::min(150e9, 20e9 + 9e9 * n), p.source = "built in";
    p.device_adam = 0.85 * p.device_copy;
    p.op_seconds = 4e-6, p.task_seconds = 12e-6, p.step_seconds = 2e-3;
    p.gemm_axis = {256, 1024, 4096, 16384};
  } else {
    p.gemm = 60e9 * n, p.device_copy = 0.8 * p.dram, p.link_up = p.link_down = 8e9,
    p.device_adam = 0.7 * p.dram;
    p.op_seconds = 1e-6, p.task_seconds = 10e-6, p.step_seconds = 2e-4;
  }
  p.device = device, p.device_name = p.name = device_name;
  p.link_both = 0.88 * p.link_up, p.link_busy = 0.58 * p.link_up;
  p.adam = 0.9 * p.dram, p.adam_busy = 0.75 * p.dram;
  p.disk_read = p.disk_write = 1e9, p.disk_both = 0.6e9;
  complete_tables(p);
  return p;
}

}  // namespace megatrain
