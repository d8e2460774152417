#pragma once
// defines: SafetensorsFile (reader), SafetensorsWriter, encode_f32 — the only weight format this project
// reads. Format: 8-byte little-endian header length, JSON header, tensor bytes without holes.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace megatrain {

struct SafetensorsEntry {
  std::string dtype;  ///< "F32", "BF16", "F16", "I32", ...
  std::vector<int64_t> shape;
  int64_t offset = 0;  ///< in the file
  int64_t bytes = 0;
  int64_t numel() const;
};

/// Opens a file and checks everything before use: header size, JSON, dtypes, shapes, offsets inside the
/// file, without overlap. Throws Error naming the file and the tensor. Reads are positioned (pread), so that
/// threads share one file and a file that shrinks meanwhile is an error, not a signal.
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
  /// `bytes` from `first` on, within the tensor.
  void read_bytes(const SafetensorsEntry& entry, int64_t first, int64_t bytes, void* out) const;
  /// Elements [first, first + count) of a floating-point tensor (F32, F16, BF16) as fp32.
  void read_f32(const SafetensorsEntry& entry, int64_t first, int64_t count, float* out) const;
  /// All of them.
  void read_f32(const SafetensorsEntry& entry, float* out) const { read_f32(entry, 0, entry.numel(), out); }

 private:
  void parse(const std::string& header, int64_t data_start);
  void check_layout(int64_t data_start) const;

  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

/// True for the three types that weights come in.
bool is_float_dtype(const std::string& dtype);
/// fp32 to F32, to BF16 (the very weight that streams: rounded half up) or to F16 (to nearest even); `out`
/// has `count` elements of that type. False when a finite value became infinite (F16).
bool encode_f32(const float* values, int64_t count, const std::string& dtype, void* out);
int64_t element_size(const std::string& dtype);  ///< bytes; 0: unknown

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
