#include "device/cuda/cuda_device.h"

#include <cuda.h>
#include <cudnn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "core/units.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/host_memory.h"
#include "device/cuda/cuda_check.h"
#include "ops/cuda/cuda_ops.h"

namespace megatrain {
namespace {

constexpr int64_t kDriverReserve = int64_t{768} << 20;  // context, cuBLAS and cuDNN kernels
constexpr int64_t kPinPiece = int64_t{64} << 30;        // one registration of 512 GiB or more fails

double host_now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

// The driver is not linked, so that the program starts on machines without one.
using WaitValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
WaitValue wait_value() {
  static const WaitValue function = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    MT_CUDA(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &f, 12000, cudaEnableDefault, &found));
#else
    MT_CUDA(cudaGetDriverEntryPoint("cuStreamWaitValue32", &f, cudaEnableDefault, &found));
#endif
    if (!f) fail("CUDA: this driver has no cuStreamWaitValue32; update it");
    return reinterpret_cast<WaitValue>(f);
  }();
  return function;
}

}  // namespace

cudaStream_t cuda_stream(Stream& s) {
  return static_cast<CudaStream&>(s).handle();
}

CudaEvent::CudaEvent() {
  MT_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync));
}
CudaEvent::~CudaEvent() {
  cudaEventDestroy(event_);
}
void CudaEvent::synchronize() {
  MT_CUDA(cudaEventSynchronize(event_));
}

CudaHostEvent::CudaHostEvent() {
  void* p = nullptr;
  MT_CUDA(cudaHostAlloc(&p, sizeof(uint32_t), cudaHostAllocMapped));
  flag_ = static_cast<volatile uint32_t*>(p);
  *flag_ = 0;
}
CudaHostEvent::~CudaHostEvent() {
  cudaFreeHost(const_cast<uint32_t*>(flag_));
}

void CudaHostEvent::signal(uint64_t ticket) {
  CpuEvent::signal(ticket);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // the data the flag speaks of is out first
  *flag_ = static_cast<uint32_t>(ticket);
}

void CudaHostEvent::wait_on(cudaStream_t stream) {
  void* address = nullptr;
  MT_CUDA(cudaHostGetDevicePointer(&address, const_cast<uint32_t*>(flag_), 0));
  const CUresult rc = wait_value()(stream, reinterpret_cast<CUdeviceptr>(address),
                                   static_cast<uint32_t>(recorded()), CU_STREAM_WAIT_VALUE_GEQ);
  if (rc != CUDA_SUCCESS)
    fail(fmt::format("CUDA: cuStreamWaitValue32 failed with error {}", static_cast<int>(rc)));
}

CudaStream::CudaStream() {
  MT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  MT_CUDA(cudaEventCreate(&base_));
}

CudaStream::~CudaStream() {
  cudaStreamSynchronize(stream_);
  for (auto e : stamps_) cudaEventDestroy(e);
  cudaEventDestroy(base_);
  cudaStreamDestroy(stream_);
}

void CudaStream::record(Event& event) {
  MT_CUDA(cudaEventRecord(static_cast<CudaEvent&>(event).handle(), stream_));
}

void CudaStream::wait(Event& event) {
  if (auto* e = dynamic_cast<CudaHostEvent*>(&event)) return e->wait_on(stream_);
  MT_CUDA(cudaStreamWaitEvent(stream_, static_cast<CudaEvent&>(event).handle(), 0));
}

void CudaStream::synchronize() {
  MT_CUDA(cudaStreamSynchronize(stream_));
}

void CudaStream::reserve_stamps(int slots) {
  while (stamps_.size() < static_cast<size_t>(slots)) {
    stamps_.emplace_back();
    MT_CUDA(cudaEventCreate(&stamps_.back()));
  }
  MT_CUDA(cudaEventRecord(base_, stream_));
  MT_CUDA(cudaEventSynchronize(base_));
  base_seconds_ = host_now();
}

void CudaStream::stamp(int slot) {
  MT_CUDA(cudaEventRecord(stamps_[static_cast<size_t>(slot)], stream_));
}

double CudaStream::stamp_seconds(int slot) const {
  float ms = 0;
  MT_CUDA(cudaEventElapsedTime(&ms, base_, stamps_[static_cast<size_t>(slot)]));
  return base_seconds_ + static_cast<double>(ms) / 1e3;
}

std::string CudaDevice::unavailable() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return count == 0 ? "no CUDA device" : "";
}

std::vector<std::string> CudaDevice::versions() {
  int driver = 0, runtime = 0;
  if (!unavailable().empty()) return {};
  MT_CUDA(cudaDriverGetVersion(&driver));
  MT_CUDA(cudaRuntimeGetVersion(&runtime));
  const auto text = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
  const auto cudnn = static_cast<int>(cudnnGetVersion());
  return {fmt::format("driver for CUDA {}, runtime {}, cuDNN {}.{}.{}", text(driver), text(runtime),
                      cudnn / 10000, cudnn / 100 % 100, cudnn % 100)};
}

std::string CudaDevice::device_name() {
  cudaDeviceProp p{};
  MT_CUDA(cudaGetDeviceProperties(&p, 0));
  return p.name;
}

int64_t CudaDevice::usable_memory() {
  size_t free = 0, total = 0;
  if (!unavailable().empty() || cudaMemGetInfo(&free, &total) != cudaSuccess) return 0;
  return std::max<int64_t>(0, static_cast<int64_t>(free) - kDriverReserve);
}

CudaDevice::CudaDevice(int64_t memory_limit) {
  const std::string why = unavailable();
  if (!why.empty()) fail("device: cuda cannot be used here (" + why + "); set device to cpu");
  MT_CUDA(cudaSetDevice(0));
  cudaDeviceProp p{};
  MT_CUDA(cudaGetDeviceProperties(&p, 0));
  name_ = p.name;
  limit_ = memory_limit > 0 ? memory_limit : usable_memory();
  ops_ = std::make_unique<CudaOps>();
}

CudaDevice::~CudaDevice() = default;

void* CudaDevice::allocate(int64_t bytes) {
  if (used_ + bytes > limit_)
    fail(fmt::format("{}: {} asked, {} of {} held; raise memory_limit", name_,
                     format_bytes(static_cast<double>(bytes)), format_bytes(static_cast<double>(used_)),
                     format_bytes(static_cast<double>(limit_))));
  void* p = nullptr;
  const cudaError_t error = cudaMalloc(&p, static_cast<size_t>(bytes));
  if (error != cudaSuccess) {
    cudaGetLastError();
    fail(fmt::format(
        "{}: the driver refused {} ({}); another program may be using the GPU, or set memory_limit", name_,
        format_bytes(static_cast<double>(bytes)), cudaGetErrorString(error)));
  }
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return p;
}

void CudaDevice::release(void* data, int64_t bytes) {
  if (!data) return;
  cudaFree(data);
  used_ -= bytes;
}

bool CudaDevice::pin(char* data, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kPinPiece) {
    const auto piece = static_cast<size_t>(std::min(kPinPiece, bytes - at));
    const cudaError_t error = cudaHostRegister(data + at, piece, cudaHostRegisterDefault);
    if (error == cudaSuccess) continue;
    cudaGetLastError();  // sticky otherwise: it would surface in an unrelated call
    for (int64_t done = 0; done < at; done += kPinPiece) cudaHostUnregister(data + done);
    if (!warned_)
      fmt::print(stderr,
                 "warning: the system does not pin host memory ({}; raise 'ulimit -l' or the container's "
                 "memlock limit); copies will not overlap and run at about a third of the speed\n",
                 cudaGetErrorString(error));
    warned_ = true;
    return false;
  }
  return true;
}

void* CudaDevice::allocate_pinned(int64_t bytes, const std::vector<int64_t>& parts) {
  auto* p = static_cast<char*>(map_host_memory(bytes, "host memory"));
  // First touch in parallel: page faults are what pinning waits for.
  touch_pages(p, bytes, parts, bytes < (int64_t{64} << 20) ? 1 : available_cores(), numa_nodes());
  registered_[p] = pin(p, bytes);
  pinned_ += bytes;
  return p;
}

void CudaDevice::release_pinned(void* data, int64_t bytes) {
  if (!data) return;
  if (registered_[data])
    for (int64_t at = 0; at < bytes; at += kPinPiece) cudaHostUnregister(static_cast<char*>(data) + at);
  registered_.erase(data);
  unmap_host_memory(data, bytes);
  pinned_ -= bytes;
}

std::unique_ptr<Stream> CudaDevice::new_stream(const std::string&) {
  return std::make_unique<CudaStream>();
}

void CudaDevice::copy(Stream& stream, void* to, const void* from, int64_t bytes) {
  MT_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, cuda_stream(stream)));
}

void CudaDevice::copy_now(void* to, const void* from, int64_t bytes) {
  MT_CUDA(cudaSetDevice(0));  // threads that never used CUDA may come here
  MT_CUDA(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault));
}

void CudaDevice::clear(void* data, int64_t bytes) {
  MT_CUDA(cudaMemset(data, 0, static_cast<size_t>(bytes)));
  MT_CUDA(cudaDeviceSynchronize());
}

}  // namespace megatrain
