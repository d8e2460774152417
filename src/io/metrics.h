#pragma once
// defines: MetricsFile (JSONL), TensorBoardWriter — what a run leaves behind about itself.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "io/file.h"

namespace megatrain {

using Scalars = std::vector<std::pair<std::string, double>>;

/// One JSON object a line, written at once (AppendFile). A new run starts the file anew; one that is resumed
/// keeps the lines up to and including step `keep`.
class MetricsFile {
 public:
  explicit MetricsFile(const std::string& path, int64_t keep = -1);
  void write(int64_t step, const Scalars& scalars);
  /// The kept lines have this value for this step.
  bool holds(int64_t step, const std::string& name) const;
  /// Every line is on disk, or Error: a checkpoint may not be newer than the record that leads to it.
  void sync() { file_.sync(); }

 private:
  std::string kept_;
  AppendFile file_;
};

/// A TensorBoard event file: TFRecord framing (length, masked CRC32C) around Event protobufs, written by
/// hand (tensorflow/core/util/event.proto).
class TensorBoardWriter {
 public:
  /// Creates events.out.tfevents.<time>.megatrain in `directory`. A run that is resumed after step `keep` has
  /// TensorBoard drop what earlier files say of later ones.
  explicit TensorBoardWriter(const std::string& directory, int64_t keep = -1);
  void write(int64_t step, const Scalars& scalars);

 private:
  void record(const std::string& event);
  AppendFile file_;
};

/// CRC-32C (Castagnoli), as TFRecord uses it.
uint32_t crc32c(const std::string& bytes);

}  // namespace megatrain
