#pragma once
// defines: NumaNodes, numa_nodes, run_on — which processors lie at which memory.

#include <cstdint>
#include <string>
#include <vector>

namespace megatrain {

/// Processors of each node that this process may run on; nodes without any are left out.
using NumaNodes = std::vector<std::vector<int>>;
/// Of this machine, read once: one node where there is one, or where the system does not say.
const NumaNodes& numa_nodes();
/// The same from a directory like /sys/devices/system/node; `allowed`: processors that may be used.
NumaNodes read_numa_nodes(const std::string& directory, const std::vector<int>& allowed);
/// The calling thread runs on these processors from now on (where the system lets it).
void run_on(const std::vector<int>& processors);

/// [0, n) in as many contiguous shares as there are nodes: what of a block belongs to which. Pages of a share
/// are touched, and so placed, by the node whose threads will update them.
inline int64_t share_begin(int64_t n, int share, int shares) {
  return n / shares * share + n % shares * share / shares;
}

}  // namespace megatrain
