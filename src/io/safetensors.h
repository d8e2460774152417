#pragma once
// defines: SafetensorsFile (mmap reader), SafetensorsWriter — the only weight format this project reads.
// Format: 8-byte little-endian header length, JSON header, tensor bytes without holes.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace megatrain {

struct SafetensorsEntry {
  std::string dtype;  ///< "F32", "BF16", "F16", "I32", ...
  std::vector<int64_t> shape;
  const unsigned char* data = nullptr;  ///< inside the mapped file
  int64_t bytes = 0;
  int64_t numel() const;
};

/// Maps a file and checks everything before use: header size, JSON, dtypes, shapes, offsets inside the
/// file, without overlap. Throws Error naming the file and the tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  const SafetensorsEntry* find(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }
  /// Converts a floating-point tensor (F32, F16, BF16) to fp32. `out` has numel() elements.
  void read_f32(const SafetensorsEntry& entry, float* out) const;

 private:
  void parse(const std::string& header, int64_t data_start);
  void check_layout(int64_t data_bytes) const;

  std::string path_;
  const unsigned char* map_ = nullptr;
  int64_t size_ = 0;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

/// Writes one file in two passes: declare every tensor, then append their bytes in the same order.
/// The file is written and fsynced under the given path; the caller renames. Throws Error when the disk
/// is full or the path is not writable.
class SafetensorsWriter {
 public:
  explicit SafetensorsWriter(std::string path) : path_(std::move(path)) {}
  ~SafetensorsWriter();
  void declare(const std::string& name, const std::string& dtype, std::vector<int64_t> shape);
  /// Writes the header. No more declare() afterwards.
  void begin();
  void append(const void* data, int64_t bytes);
  /// Checks that all declared bytes came, flushes and closes.
  void finish();

 private:
  std::string path_;
  std::vector<std::pair<std::string, SafetensorsEntry>> tensors_;
  int64_t declared_ = 0, written_ = 0;
  int fd_ = -1;
};

}  // namespace megatrain
