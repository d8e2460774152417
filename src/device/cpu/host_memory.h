#pragma once
// defines: map_host_memory, unmap_host_memory, available_host_memory.

#include <cstdint>
#include <string>

namespace megatrain {

/// Page-aligned zeroed memory with huge pages advised. Throws Error naming `what` when refused.
void* map_host_memory(int64_t bytes, const std::string& what);
void unmap_host_memory(void* data, int64_t bytes);

/// Bytes this process can still take: the least of MemAvailable, every limit of the cgroups (v1 or v2) it is
/// in, and its limit of address space. `root` stands before /proc and /sys (tests).
int64_t available_host_memory(const std::string& root = "");

}  // namespace megatrain
