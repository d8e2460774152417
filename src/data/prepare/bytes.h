#pragma once
// defines: ByteReader — a file's bytes, decompressed on the way (.gz, .zst).

#include <cstdint>
#include <memory>
#include <string>

namespace megatrain {

class ByteReader {
 public:
  virtual ~ByteReader() = default;
  /// Up to `bytes` into `out`; 0 at the end. Throws Error for unreadable, damaged or cut-off files.
  virtual size_t read(char* out, size_t bytes) = 0;
  /// Bytes of the file consumed so far, for progress.
  virtual int64_t consumed() const = 0;

  static std::unique_ptr<ByteReader> open(const std::string& path);
};

/// "a.jsonl.zst" -> "a.jsonl".
std::string without_compression(const std::string& path);

}  // namespace megatrain
