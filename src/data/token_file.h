#pragma once
// defines: TokenFile, write_token_file, DocumentWriter — nanoGPT's .bin (uint16 token ids, no header) and
// .mtbin (a header, uint16 or uint32), told apart by the header's magic.

#include <cstdint>
#include <string>
#include <vector>

namespace megatrain {

/// The first 64 bytes of a .mtbin, little-endian. The tokens follow and, at the next multiple of 8, the index
/// of each document's first token and the number of tokens (uint64, documents + 1 of them; none when
/// documents is 0). Zero means "not said" for hash and checksum.
struct TokenFileHeader {
  char magic[8] = {'M', 'T', 'B', 'I', 'N', '\n', 0, 0};
  uint32_t version = 1;
  uint32_t token_bytes = 4;  ///< 2 or 4
  uint64_t tokens = 0, documents = 0, vocab_size = 0, vocabulary_hash = 0, checksum = 0, flags = 0;
  /// Fine-tuning sets: bit 31 of a token says that it is context, not a target.
  static constexpr uint64_t kMarked = 1;
  static constexpr uint32_t kContext = uint32_t{1} << 31;
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
  /// 0: one stream of text.
  int64_t documents() const { return documents_; }
  /// First token of document i and its number of tokens.
  std::pair<int64_t, int64_t> document(int64_t i) const;
  /// False for tokens that are context only.
  bool trained(int64_t i) const { return !marked_ || !(raw(i) & TokenFileHeader::kContext); }

 private:
  void map_file();
  void read_header(int64_t vocab_size);
  void read_documents(const TokenFileHeader& header);
  uint32_t token(int64_t i) const { return marked_ ? raw(i) & ~TokenFileHeader::kContext : raw(i); }
  uint32_t raw(int64_t i) const {
    return wide_ ? reinterpret_cast<const uint32_t*>(data_)[i] : reinterpret_cast<const uint16_t*>(data_)[i];
  }
  [[noreturn]] void refuse_token(int64_t position) const;

  std::string path_;
  int64_t vocab_size_, size_ = 0, mapped_ = 0;
  void* map_ = nullptr;
  const unsigned char* data_ = nullptr;  // the first token
  bool wide_ = false, marked_ = false;
  int64_t documents_ = 0;
  const uint64_t* starts_ = nullptr;
};

/// Writes a .mtbin of documents one by one, under a temporary name until finish().
class DocumentWriter {
 public:
  DocumentWriter(const std::string& path, int64_t vocab_size);
  ~DocumentWriter();
  DocumentWriter(const DocumentWriter&) = delete;
  DocumentWriter& operator=(const DocumentWriter&) = delete;
  /// `trained`: one per id.
  void add(const std::vector<int32_t>& ids, const std::vector<bool>& trained);
  void finish();
  int64_t documents() const { return static_cast<int64_t>(starts_.size()); }
  int64_t tokens() const { return static_cast<int64_t>(tokens_); }

 private:
  void flush();
  std::string path_, temporary_, buffer_;
  int fd_ = -1;
  int64_t vocab_size_;
  uint64_t tokens_ = 0;
  std::vector<uint64_t> starts_;
};

/// "train" becomes train.bin or, for vocabularies beyond 65,536, train.mtbin.
std::string token_file_name(const std::string& stem, int64_t vocab_size);
/// Writes ids in the form that the name's ending asks for, under a temporary name; returns when the file is
/// whole on disk.
void write_token_file(const std::string& path, const std::vector<int32_t>& ids, int64_t vocab_size = 0);

}  // namespace megatrain
