#pragma once
// defines: TokenFile, write_token_file — nanoGPT's .bin (uint16 token ids, no header) and .mtbin (a header,
// uint16 or uint32), told apart by the header's magic.

#include <cstdint>
#include <string>
#include <vector>

namespace megatrain {

/// The first 64 bytes of a .mtbin, little-endian; the tokens follow. Zero means "not said" for hash, checksum
/// and documents (version 1 writes none of the three).
struct TokenFileHeader {
  char magic[8] = {'M', 'T', 'B', 'I', 'N', '\n', 0, 0};
  uint32_t version = 1;
  uint32_t token_bytes = 4;  ///< 2 or 4
  uint64_t tokens = 0, documents = 0, vocab_size = 0, vocabulary_hash = 0, checksum = 0, reserved = 0;
};
static_assert(sizeof(TokenFileHeader) == 64);

/// Maps a token file read-only. Refuses missing, empty, damaged or odd-sized files, and token ids >=
/// vocab_size (files up to 512 M tokens are read through at once; larger ones are checked as their tokens are
/// used).
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
  void map_file();
  void read_header(int64_t vocab_size);
  uint32_t token(int64_t i) const {
    return wide_ ? reinterpret_cast<const uint32_t*>(data_)[i] : reinterpret_cast<const uint16_t*>(data_)[i];
  }
  [[noreturn]] void refuse_token(int64_t position) const;

  std::string path_;
  int64_t vocab_size_, size_ = 0, mapped_ = 0;
  void* map_ = nullptr;
  const unsigned char* data_ = nullptr;  // the first token
  bool wide_ = false;
};

/// "train" becomes train.bin or, for vocabularies beyond 65,536, train.mtbin.
std::string token_file_name(const std::string& stem, int64_t vocab_size);
/// Writes ids in the form that the name's ending asks for, under a temporary name; returns when the file is
/// whole on disk.
void write_token_file(const std::string& path, const std::vector<int32_t>& ids, int64_t vocab_size = 0);

}  // namespace megatrain
