#pragma once
// defines: PrepareJournal — how far a preparation has come, so that one that was killed goes on.

#include <optional>
#include <string>

#include "data/token_file.h"

namespace megatrain {

struct PrepareCounts {
  int64_t rows = 0, examples = 0, skipped = 0, untrained = 0, tokens = 0, trained = 0, longest = 0, bytes = 0;
  int64_t val_examples = 0;
};

/// Belongs to one command over unchanged files: `fingerprint` says which.
struct PrepareJournal {
  uint64_t fingerprint = 0;
  int64_t blocks = 0;  ///< whose tokens are in the files
  bool whole = false;  ///< all of them are
  TokenWriter::State train, val;
  PrepareCounts counts;

  void save(const std::string& path) const;
  /// Nothing when there is none, or it is of something else.
  static std::optional<PrepareJournal> load(const std::string& path, uint64_t fingerprint);
};

}  // namespace megatrain
