#pragma once
// defines: CudaDevice, CudaStream, CudaEvent — thin over CUDA.

#include <cuda_runtime.h>

#include <map>
#include <vector>

#include "device/cpu/cpu_stream.h"
#include "device/device.h"

namespace megatrain {

class CudaEvent : public Event {
 public:
  CudaEvent();
  ~CudaEvent() override;
  void synchronize() override;
  cudaEvent_t handle() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// An event of the host lane that CUDA streams can wait for without a host thread: the host writes the
/// ticket into pinned memory, the stream waits for the value (cuStreamWaitValue32).
class CudaHostEvent : public CpuEvent {
 public:
  CudaHostEvent();
  ~CudaHostEvent() override;
  void signal(uint64_t ticket) override;
  void wait_on(cudaStream_t stream);

 private:
  volatile uint32_t* flag_ = nullptr;
};

class CudaStream : public Stream {
 public:
  CudaStream();
  ~CudaStream() override;
  void record(Event& event) override;
  void wait(Event& event) override;
  void synchronize() override;
  void stamp(int slot) override;
  double stamp_seconds(int slot) const override;
  void reserve_stamps(int slots) override;
  cudaStream_t handle() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
  std::vector<cudaEvent_t> stamps_;
  cudaEvent_t base_ = nullptr;  // stamps are measured from here
  double base_seconds_ = 0;
};

class CudaDevice : public Device {
 public:
  /// `memory_limit` 0: what is free now, less a reserve for the driver.
  explicit CudaDevice(int64_t memory_limit);
  ~CudaDevice() override;

  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string name() const override { return name_; }
  int64_t memory_limit() const override { return limit_; }
  int64_t memory_used() const override { return used_; }
  int64_t memory_peak() const override { return peak_; }
  void* allocate(int64_t bytes) override;
  void release(void* data, int64_t bytes) override;
  /// Huge pages, touched in parallel, registered in pieces of at most 64 GiB. When the system refuses to pin
  /// (WSL, memlock limit), the memory stays pageable and one warning says what it costs.
  using Device::allocate_pinned;
  void* allocate_pinned(int64_t bytes, const std::vector<int64_t>& parts) override;
  void release_pinned(void* data, int64_t bytes) override;
  int64_t pinned_used() const override { return pinned_; }

  std::unique_ptr<Stream> new_stream(const std::string& name) override;
  std::unique_ptr<Event> new_event() override { return std::make_unique<CudaEvent>(); }
  std::unique_ptr<CpuEvent> new_host_event() override { return std::make_unique<CudaHostEvent>(); }
  void copy(Stream& stream, void* to, const void* from, int64_t bytes) override;
  void copy_now(void* to, const void* from, int64_t bytes) override;
  void clear(void* data, int64_t bytes) override;
  Ops& ops() override { return *ops_; }

  /// Bytes of device memory that a plan may use: free memory less a reserve, 0 without a CUDA device.
  static int64_t usable_memory();
  /// Driver, runtime and cuDNN.
  static std::vector<std::string> versions();
  /// As the driver calls it.
  static std::string device_name();
  /// Why no CUDA device can be used, or empty.
  static std::string unavailable();

 private:
  bool pin(char* data, int64_t bytes);

  std::string name_;
  int64_t limit_ = 0, used_ = 0, peak_ = 0, pinned_ = 0;
  bool warned_ = false;
  std::map<void*, bool> registered_;
  std::unique_ptr<Ops> ops_;
};

}  // namespace megatrain
