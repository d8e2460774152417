#include "device/cpu/cpu_device.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "core/error.h"
#include "core/units.h"
#include "device/cpu/host_memory.h"
#include "ops/cpu/cpu_ops.h"

namespace megatrain {

int available_cores() {
  cpu_set_t set;
  int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  std::ifstream quota("/sys/fs/cgroup/cpu.max");
  std::string limit;
  double period = 0;
  if (quota >> limit >> period && limit != "max" && period > 0)
    cores = std::min(cores, static_cast<int>(std::ceil(std::stod(limit) / period)));
  return std::max(cores, 1);
}

CpuDevice::CpuDevice(int64_t memory_limit, int threads)
    : limit_(memory_limit),
      threads_(threads > 0 ? threads : available_cores()),
      ops_(std::make_unique<CpuOps>()) {}

CpuDevice::~CpuDevice() = default;

void* CpuDevice::allocate(int64_t bytes) {
  if (used_ + bytes > limit_)
    fail(fmt::format("the CPU device: {} asked, {} of its limit of {} held; raise memory_limit",
                     format_bytes(static_cast<double>(bytes)), format_bytes(static_cast<double>(used_)),
                     format_bytes(static_cast<double>(limit_))));
  void* p = map_host_memory(bytes, "the CPU device");
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  return p;
}

void CpuDevice::release(void* data, int64_t bytes) {
  if (!data) return;
  unmap_host_memory(data, bytes);
  used_ -= bytes;
}

void* CpuDevice::allocate_pinned(int64_t bytes, const std::vector<int64_t>& parts) {
  void* p = map_host_memory(bytes, "host memory");
  if (numa_nodes().size() > 1) touch_pages(p, bytes, parts, threads_, numa_nodes());
  pinned_ += bytes;
  return p;
}

void CpuDevice::release_pinned(void* data, int64_t bytes) {
  if (!data) return;
  unmap_host_memory(data, bytes);
  pinned_ -= bytes;
}

std::unique_ptr<Stream> CpuDevice::new_stream(const std::string& name) {
  return std::make_unique<CpuStream>(name, name == "compute" ? threads_ : 1);
}

void CpuDevice::copy(Stream& stream, void* to, const void* from, int64_t bytes) {
  static_cast<CpuStream&>(stream).enqueue(
      [=](ThreadPool&) { std::memcpy(to, from, static_cast<size_t>(bytes)); });
}

void CpuDevice::copy_now(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void CpuDevice::clear(void* data, int64_t bytes) {
  std::memset(data, 0, static_cast<size_t>(bytes));
}

}  // namespace megatrain
