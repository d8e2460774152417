#include "device/cpu/host_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <thread>

#include "core/error.h"
#include "core/units.h"

namespace megatrain {
namespace {

int64_t mapped_size(int64_t bytes) {
  return (std::max<int64_t>(bytes, 1) + 4095) / 4096 * 4096;
}

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

int64_t mem_available(const std::string& root) {
  std::ifstream in(root + "/proc/meminfo");
  for (std::string key, rest; in >> key; std::getline(in, rest))
    if (key == "MemAvailable:") {
      int64_t kib = 0;
      in >> kib;
      return kib * 1024;
    }
  return kNoLimit;
}

// The names by which a cgroup tells its limit, its use, and how much of that is page cache that would be
// given back.
struct CgroupFiles {
  const char *mount, *limit, *used, *cache;
};
constexpr CgroupFiles kV2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
constexpr CgroupFiles kV1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                             "total_inactive_file"};

// Room under one cgroup's directory; "max" or no file means no limit.
int64_t cgroup_room(const std::string& dir, const CgroupFiles& names) {
  int64_t limit = 0, used = 0;
  std::ifstream max_file(dir + "/" + names.limit), use_file(dir + "/" + names.used);
  if (!(max_file >> limit) || !(use_file >> used)) return kNoLimit;
  int64_t cache = 0, value = 0;
  std::ifstream stat(dir + "/memory.stat");
  for (std::string key; stat >> key >> value;)
    if (key == names.cache) cache = value;
  return std::max<int64_t>(0, limit - used + cache);
}

// The least of a cgroup and all above it. In a container the path may be the host's and not exist; the top
// does.
int64_t least_room(const std::string& root, std::string path, const CgroupFiles& names) {
  int64_t room = kNoLimit;
  for (;;) {
    room = std::min(room, cgroup_room(fmt::format("{}{}{}", root, names.mount, path), names));
    const size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) return room;
    path.resize(slash);
  }
}

// A line of /proc/self/cgroup: "0::/path" (v2) or "4:cpu,memory:/path" (v1).
int64_t room_of(const std::string& root, const std::string& line) {
  const size_t first = line.find(':'), second = line.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) return kNoLimit;
  const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",",
                    path = line.substr(second + 1);
  if (line.rfind("0::", 0) == 0) return least_room(root, path, kV2);
  return controllers.find(",memory,") == std::string::npos ? kNoLimit : least_room(root, path, kV1);
}

// What 'ulimit -v' leaves.
int64_t address_space_room() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kNoLimit;
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - pages * sysconf(_SC_PAGESIZE));
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

void touch_pages(void* data, int64_t bytes, const std::vector<int64_t>& parts, int threads,
                 const NumaNodes& nodes) {
  constexpr int64_t kPage = 4096;
  const int count = static_cast<int>(nodes.size()), team = std::max(threads, count);
  const auto work = [&](int t) {
    const int node = count * t / team;
    if (count > 1) run_on(nodes[static_cast<size_t>(node)]);
    const int first = (node * team + count - 1) / count, last = ((node + 1) * team + count - 1) / count;
    for (size_t part = 0; part < parts.size(); ++part) {
      const int64_t end = part + 1 < parts.size() ? parts[part + 1] : bytes, n = end - parts[part];
      const int64_t from = share_begin(n, node, count), size = share_begin(n, node + 1, count) - from;
      const int64_t a = parts[part] + from + share_begin(size, t - first, last - first),
                    b = parts[part] + from + share_begin(size, t - first + 1, last - first);
      for (int64_t at = (a + kPage - 1) / kPage * kPage; at < b; at += kPage)
        static_cast<volatile char*>(data)[at] = 0;
    }
  };
  std::vector<std::thread> others;
  for (int t = 0; t < team && team > 1; ++t) others.emplace_back(work, t);
  if (team == 1) work(0);
  for (std::thread& t : others) t.join();
}

int64_t available_host_memory(const std::string& root) {
  int64_t room = std::min(mem_available(root), root.empty() ? address_space_room() : kNoLimit);
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) room = std::min(room, room_of(root, line));
  return room;
}

}  // namespace megatrain
