#include "core/numa.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace megatrain {
namespace {

// "0-3,8,10-11"
std::vector<int> parse_list(const std::string& text) {
  std::vector<int> out;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    int first = 0, last = 0;
    char dash = 0;
    std::istringstream range(part);
    if (!(range >> first)) continue;
    last = range >> dash >> last ? last : first;
    for (int c = first; c <= last; ++c) out.push_back(c);
  }
  return out;
}

std::vector<int> allowed_processors() {
  cpu_set_t set;
  std::vector<int> out;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return out;
  for (int c = 0; c < CPU_SETSIZE; ++c)
    if (CPU_ISSET(c, &set)) out.push_back(c);
  return out;
}

}  // namespace

NumaNodes read_numa_nodes(const std::string& directory, const std::vector<int>& allowed) {
  std::map<int, std::vector<int>> found;
  std::error_code ignored;
  for (const auto& e : std::filesystem::directory_iterator(directory, ignored)) {
    const std::string name = e.path().filename().string();
    if (name.rfind("node", 0) != 0 || name.size() < 5 || name[4] < '0' || name[4] > '9') continue;
    std::ifstream in(e.path() / "cpulist");
    std::string list;
    std::getline(in, list);
    for (const int c : parse_list(list))
      if (std::count(allowed.begin(), allowed.end(), c)) found[std::stoi(name.substr(4))].push_back(c);
  }
  NumaNodes out;
  for (auto& [node, processors] : found) out.push_back(std::move(processors));
  if (out.empty()) out.push_back(allowed);
  return out;
}

const NumaNodes& numa_nodes() {
  static const NumaNodes nodes = read_numa_nodes("/sys/devices/system/node", allowed_processors());
  return nodes;
}

void run_on(const std::vector<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int c : processors) CPU_SET(static_cast<size_t>(c), &set);
  if (!processors.empty()) sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace megatrain
