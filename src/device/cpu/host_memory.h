#pragma once
// defines: map_host_memory, unmap_host_memory, touch_pages, available_host_memory.

#include <cstdint>
#include <string>
#include <vector>

#include "core/numa.h"

namespace megatrain {

/// Page-aligned zeroed memory with huge pages advised. Throws Error naming `what` when refused.
void* map_host_memory(int64_t bytes, const std::string& what);
void unmap_host_memory(void* data, int64_t bytes);

/// Touches every page, with threads on the nodes where each share of each part is to lie.
void touch_pages(void* data, int64_t bytes, const std::vector<int64_t>& parts, int threads,
                 const NumaNodes& nodes);

/// Bytes this process can still take: the least of MemAvailable, every limit of the cgroups (v1 or v2) it is
/// in, and its limit of address space. `root` stands before /proc and /sys (tests).
int64_t available_host_memory(const std::string& root = "");

}  // namespace megatrain
