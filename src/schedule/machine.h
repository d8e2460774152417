#pragma once
// defines: MachineProfile — what a machine can do, as `megatrain doctor` measures it: rates of its links,
// memories, disk and operations. The planner's costs are read from it, so it plans machines that are not
// there.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace megatrain {

/// Rates in bytes or operations per second, times in seconds. Shares are of `gemm` (flops) and `device_copy`
/// (bytes), so that a profile of another machine may leave the tables out.
struct MachineProfile {
  std::string name, device = "cpu", device_name, source;
  int64_t cores = 1, device_memory = 0, host_memory = 0, disk_free = 0;
  double link_up = 0, link_down = 0;     ///< one way at a time
  double link_both = 0;                  ///< each way, both at once
  double link_busy = 0;                  ///< each way, both at once, while all cores stream memory
  double dram = 0;                       ///< a = 0.9·a + b on all cores
  double adam = 0, adam_busy = 0;        ///< host AdamW, 28 bytes a parameter; busy: with the link at work
  double device_adam = 0;                ///< the same on the device
  double device_copy = 0, gemm = 0;      ///< largest rates
  double disk_read = 0, disk_write = 0;  ///< past the page cache, many pieces at once
  double disk_both = 0;                  ///< each, both at once
  double op_seconds = 0;                 ///< host time to issue one operation
  double task_seconds = 0;               ///< and to issue a task's waits and events
  double step_seconds = 0;               ///< around a step: batch, events, results

  /// Shares of `gemm` of products [m, k] x [k, n] at m, n, k in axis (m slowest): into bf16, and added to
  /// fp32.
  std::vector<double> gemm_axis, gemm_share, gradient_share;
  /// Shares of `gemm` of attention, of causal flops: by sequence length, for head widths 64 and 128.
  std::vector<double> attention_axis, attention_share, attention_backward_share;
  /// Shares of device_copy of the memory-bound ops, by name; "other" for the rest.
  std::map<std::string, double> op_share;

  double gemm_seconds(double m, double n, double k, bool accumulate) const;
  double attention_seconds(double flops, double seq_len, double head_dim, bool backward) const;
  double bytes_seconds(const std::string& op, double bytes) const;
};

/// Calls f(name, member, scale, unit) for every number of a profile, in file order.
template <class Profile, class F>
void for_each_number(Profile& p, F&& f) {
  constexpr double kGiB = 1073741824.0;
  f("cores", p.cores, 1.0, "");
  f("device_memory", p.device_memory, kGiB, "GiB that a plan may use");
  f("host_memory", p.host_memory, kGiB, "GiB that a plan may use");
  f("disk_free", p.disk_free, kGiB, "GiB");
  f("link_up", p.link_up, 1e9, "GB/s, host to device");
  f("link_down", p.link_down, 1e9, "GB/s, device to host");
  f("link_both", p.link_both, 1e9, "GB/s each way, both at once");
  f("link_busy", p.link_busy, 1e9, "GB/s each way, both at once, all cores streaming memory");
  f("dram", p.dram, 1e9, "GB/s, a = 0.9 a + b on all cores");
  f("adam", p.adam, 1e9, "GB/s of host AdamW (28 bytes a parameter)");
  f("adam_busy", p.adam_busy, 1e9, "GB/s, with the link at work both ways");
  f("device_adam", p.device_adam, 1e9, "GB/s of AdamW on the device");
  f("device_copy", p.device_copy, 1e9, "GB/s, read and written");
  f("gemm", p.gemm, 1e12, "TFLOP/s, the largest product");
  f("disk_read", p.disk_read, 1e9, "GB/s, direct");
  f("disk_write", p.disk_write, 1e9, "GB/s, direct");
  f("disk_both", p.disk_both, 1e9, "GB/s each, both at once");
  f("op_seconds", p.op_seconds, 1e-6, "us to issue an operation");
  f("task_seconds", p.task_seconds, 1e-6, "us to issue a task");
  f("step_seconds", p.step_seconds, 1e-6, "us around a step");
}

/// Calls f(name, member) for every table.
template <class Profile, class F>
void for_each_table(Profile& p, F&& f) {
  f("gemm_axis", p.gemm_axis);
  f("gemm_share", p.gemm_share);
  f("gradient_share", p.gradient_share);
  f("attention_axis", p.attention_axis);
  f("attention_share", p.attention_share);
  f("attention_backward_share", p.attention_backward_share);
}

/// Fills the tables that a profile leaves out with shares measured on other machines of its kind.
void complete_tables(MachineProfile& profile);

/// Profiles that are built in, for machines that were not measured: by the device's name, else of the CPU.
MachineProfile built_in_profile(const std::string& device, const std::string& device_name, int64_t cores);

}  // namespace megatrain
