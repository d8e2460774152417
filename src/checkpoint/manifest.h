#pragma once
// defines: Manifest — what a checkpoint says about itself; whoever has one that fits has a whole checkpoint.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/layer_template.h"

namespace megatrain {

/// <out_dir>/checkpoints/step-N/manifest.json, written last. Holds a checksum of itself.
struct Manifest {
  struct File {
    std::string name, unit;  ///< "unit-0003.safetensors", "h.2"
    int64_t numel = 0, bytes = 0;
    std::string hash;  ///< XXH3-64 of the planes hi, lo, m, v in this order
  };
  int64_t step = 0;             ///< optimizer steps begun, skipped ones included: where the data goes on
  int64_t optimizer_steps = 0;  ///< applied
  int64_t skipped = 0;          ///< the last ones in a row that were not finite
  std::string program;          ///< version that wrote it
  std::map<std::string, std::string> options;  ///< the run's, as text
  std::string data;                            ///< fingerprint of the data sets
  std::vector<File> files;

  std::string text() const;
  /// Throws Error for one that is damaged or of another format.
  static Manifest parse(const std::string& text, const std::string& where);
  int64_t bytes() const;
};

/// A checkpoint with a manifest whose files are there in full length (their hashes are checked when they are
/// read). Newest first, by what the manifests say, not by the names of directories.
struct CheckpointEntry {
  std::string path;
  Manifest manifest;
};
/// `complaints` gets a line for each directory that is not whole.
std::vector<CheckpointEntry> list_checkpoints(const std::string& directory,
                                              std::vector<std::string>& complaints);
/// Removes what killed runs left half written or half deleted.
void remove_leftovers(const std::string& directory);
/// Keeps the newest `keep` and, if `every` > 0, those at multiples of it.
void prune_checkpoints(const std::string& directory, int64_t keep, int64_t every);

}  // namespace megatrain
