#pragma once
// defines: MetricsFile (JSONL), TensorBoardWriter — what a run leaves behind about itself.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace megatrain {

using Scalars = std::vector<std::pair<std::string, double>>;

/// One JSON object a line, written at once. A new run starts the file anew; one that is resumed keeps the
/// lines up to and including step `keep`.
class MetricsFile {
 public:
  explicit MetricsFile(const std::string& path, int64_t keep = -1);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  void write(int64_t step, const Scalars& scalars);
  /// The kept lines have this value for this step.
  bool holds(int64_t step, const std::string& name) const;

 private:
  std::string path_, kept_;
  int fd_;
};

/// A TensorBoard event file: TFRecord framing (length, masked CRC32C) around Event protobufs, written by
/// hand (tensorflow/core/util/event.proto).
class TensorBoardWriter {
 public:
  /// Creates events.out.tfevents.<time>.megatrain in `directory`.
  explicit TensorBoardWriter(const std::string& directory);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;
  void write(int64_t step, const Scalars& scalars);

 private:
  void record(const std::string& event);
  std::string path_;
  int fd_;
};

/// CRC-32C (Castagnoli), as TFRecord uses it.
uint32_t crc32c(const std::string& bytes);

}  // namespace megatrain
