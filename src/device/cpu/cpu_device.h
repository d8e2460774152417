#pragma once
// defines: CpuDevice — the CPU as a device of its own: streams are threads, memory has a limit, so that
// "model larger than the device" is a unit test.

#include <atomic>

#include "device/cpu/cpu_stream.h"

namespace megatrain {

class CpuDevice : public Device {
 public:
  /// `memory_limit` in bytes; `threads` for the compute stream's work (0 = all cores).
  CpuDevice(int64_t memory_limit, int threads);
  ~CpuDevice() override;

  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string name() const override { return "the CPU device"; }
  int64_t memory_limit() const override { return limit_; }
  int64_t memory_used() const override { return used_; }
  int64_t memory_peak() const override { return peak_; }
  void* allocate(int64_t bytes) override;
  void release(void* data, int64_t bytes) override;
  using Device::allocate_pinned;
  void* allocate_pinned(int64_t bytes, const std::vector<int64_t>& parts) override;
  void release_pinned(void* data, int64_t bytes) override;
  int64_t pinned_used() const override { return pinned_; }

  std::unique_ptr<Stream> new_stream(const std::string& name) override;
  std::unique_ptr<Event> new_event() override { return std::make_unique<CpuEvent>(); }
  std::unique_ptr<CpuEvent> new_host_event() override { return std::make_unique<CpuEvent>(); }
  void copy(Stream& stream, void* to, const void* from, int64_t bytes) override;
  void copy_now(void* to, const void* from, int64_t bytes) override;
  void clear(void* data, int64_t bytes) override;
  Ops& ops() override { return *ops_; }

 private:
  int64_t limit_, used_ = 0, peak_ = 0, pinned_ = 0;
  int threads_;
  std::unique_ptr<Ops> ops_;
};

/// Cores this process may run on (affinity and cgroup quota respected).
int available_cores();

}  // namespace megatrain
