#pragma once
// defines: write_unit, read_unit — one unit's state as a safetensors file.

#include "checkpoint/manifest.h"
#include "store/state_store.h"

namespace megatrain {

/// Writes hi, lo (U16) and m, v (F32), each [numel], from wherever they live, in pieces of 16 MiB, and brings
/// them to disk; the page cache holds no more than a few pieces of it. Returns the file's entry.
Manifest::File write_unit(const std::string& directory, int unit, const UnitLayout& layout,
                          const StateStore& store);
/// Reads one back and checks its hash. Throws Error naming the file; the store may be half filled then.
void read_unit(const std::string& directory, int unit, const Manifest::File& file, StateStore& store);
/// Memory that write_unit takes: a piece of the file, and what passes by from a home outside host memory (a
/// piece of the state file, so that its checksum is compared).
inline constexpr int64_t kWriterBytes = int64_t{16} << 20, kPassingBytes = StateFile::kPiece;

std::string unit_file_name(int unit);
/// Size of such a file, to the byte.
int64_t unit_file_bytes(const UnitLayout& layout);

}  // namespace megatrain
