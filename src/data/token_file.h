#pragma once
// defines: TokenFile, TokenFileWriter — nanoGPT's .bin: uint16 token ids, no header.

#include <cstdint>
#include <string>
#include <vector>

namespace megatrain {

/// Maps a .bin read-only. Refuses missing, empty or odd-sized files, and token ids >= vocab_size (files up
/// to 1 GiB are read through at once; larger ones are checked as their tokens are used).
class TokenFile {
 public:
  TokenFile(const std::string& path, int64_t vocab_size);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  int64_t size() const { return size_; }  ///< in tokens
  const std::string& path() const { return path_; }
  /// Copies tokens [first, first + count), checked against the vocabulary.
  void read(int64_t first, int64_t count, int32_t* out) const;

 private:
  std::string path_;
  int64_t vocab_size_, size_ = 0;
  const uint16_t* data_ = nullptr;
};

/// Writes ids as uint16 under a temporary name; returns when the file is whole on disk.
void write_token_file(const std::string& path, const std::vector<int32_t>& ids);

}  // namespace megatrain
