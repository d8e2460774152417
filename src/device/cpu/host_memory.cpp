#include "device/cpu/host_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "core/error.h"
#include "core/units.h"

namespace megatrain {
namespace {

int64_t mapped_size(int64_t bytes) {
  return (std::max<int64_t>(bytes, 1) + 4095) / 4096 * 4096;
}

int64_t mem_available() {
  std::ifstream in("/proc/meminfo");
  for (std::string key, rest; in >> key; std::getline(in, rest))
    if (key == "MemAvailable:") {
      int64_t kib = 0;
      in >> kib;
      return kib * 1024;
    }
  return std::numeric_limits<int64_t>::max();
}

// Free room under one cgroup v2 directory; "max" or no file means no limit.
int64_t cgroup_room(const std::string& dir) {
  int64_t limit = 0, used = 0;
  std::ifstream max_file(dir + "/memory.max"), use_file(dir + "/memory.current");
  if (!(max_file >> limit) || !(use_file >> used)) return std::numeric_limits<int64_t>::max();
  int64_t inactive = 0, value = 0;
  std::ifstream stat(dir + "/memory.stat");
  for (std::string key; stat >> key >> value;)
    if (key == "inactive_file") inactive = value;  // page cache the kernel gives back
  return std::max<int64_t>(0, limit - used + inactive);
}

}  // namespace

void* map_host_memory(int64_t bytes, const std::string& what) {
  const auto size = static_cast<size_t>(mapped_size(bytes));
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    fail(fmt::format("{}: the system refused {} of memory; use a smaller model or more RAM", what,
                     format_bytes(static_cast<double>(bytes))));
  madvise(p, size, MADV_HUGEPAGE);
  return p;
}

void unmap_host_memory(void* data, int64_t bytes) {
  if (data) munmap(data, static_cast<size_t>(mapped_size(bytes)));
}

int64_t available_host_memory() {
  int64_t room = mem_available();
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("0::", 0) != 0) continue;
    std::string path = line.substr(3);
    for (;;) {
      room = std::min(room, cgroup_room("/sys/fs/cgroup" + path));
      const size_t slash = path.rfind('/');
      if (path.empty() || slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  return room;
}

}  // namespace megatrain
