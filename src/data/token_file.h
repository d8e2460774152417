#pragma once
// defines: TokenFile, TokenWriter — nanoGPT's .bin (uint16 token ids, no header) and .mtbin (a header, uint16
// or uint32, documents), told apart by the header's magic.

#include <cstdint>
#include <string>
#include <vector>

#include "core/progress.h"

namespace megatrain {

/// The first 64 bytes of a .mtbin, little-endian. The tokens follow and, at the next multiple of 8, the index
/// of each document's first token and the number of tokens (uint64, documents + 1 of them; none when
/// documents is 0). A vocabulary hash of
/// zero means "not said". Checksum is over tokens, index, then this header.
struct TokenFileHeader {
  char magic[8] = {'M', 'T', 'B', 'I', 'N', '\n', 0, 0};
  uint32_t version = 2;
  uint32_t token_bytes = 4;  ///< 2 or 4
  uint64_t tokens = 0, documents = 0, vocab_size = 0, vocabulary_hash = 0, checksum = 0, flags = 0;
  /// Fine-tuning sets: bit 31 of a token says that it is context, not a target.
  static constexpr uint64_t kMarked = 1;
  /// Preference pairs: documents 2i and 2i + 1 are the chosen and the rejected answer.
  static constexpr uint64_t kPairs = 2;
  static constexpr uint32_t kContext = uint32_t{1} << 31;
};
static_assert(sizeof(TokenFileHeader) == 64);

/// Runs over a file's values; each step can be undone, so no single changed value goes unseen.
struct Checksum {
  uint64_t state = 0;
  void add(uint64_t value) {
    state = (state ^ value) * 0x9E3779B97F4A7C15ull;
    state ^= state >> 32;
  }
  void add(const TokenFileHeader& h) {
    for (const uint64_t v : {h.tokens, h.documents, h.vocab_size, h.vocabulary_hash, h.flags}) add(v);
  }
};

/// A token file, read piece by piece (no mapping: a file that shrinks is an error, not a SIGBUS). Refuses
/// missing, empty, damaged or odd-sized files, and token ids >= vocab_size (files up to 512 M tokens are
/// read through at once, the checksum included; larger ones are checked as their tokens are used).
class TokenFile {
 public:
  TokenFile(const std::string& path, int64_t vocab_size);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  int64_t size() const { return static_cast<int64_t>(header_.tokens); }
  const std::string& path() const { return path_; }
  /// Copies tokens [first, first + count), checked against the vocabulary. `context` (may be null) gets 1 for
  /// tokens that are no targets. Safe to call from several threads.
  void read(int64_t first, int64_t count, int32_t* out, uint8_t* context = nullptr) const;
  /// 0: one stream of text.
  int64_t documents() const { return static_cast<int64_t>(header_.documents); }
  /// First token of document i and its number of tokens.
  std::pair<int64_t, int64_t> document(int64_t i) const;
  bool marked() const { return header_.flags & TokenFileHeader::kMarked; }
  bool pairs() const { return header_.flags & TokenFileHeader::kPairs; }
  uint64_t vocabulary_hash() const { return header_.vocabulary_hash; }
  uint64_t vocab_size() const { return header_.vocab_size; }
  /// Reads everything: ids in range, checksum right (where the file has one). Throws Error. Returns the
  /// checksum of what is there.
  uint64_t verify(const ProgressFn& progress) const;
  /// Of the contents; what the header says for files too large to read through, else 0.
  uint64_t checksum() const { return checksum_; }

 private:
  void open_file();
  void read_header(int64_t vocab_size);
  void read_documents();
  void read_bytes(int64_t at, void* out, int64_t bytes) const;
  [[noreturn]] void refuse_token(uint32_t token, int64_t position) const;

  std::string path_;
  int64_t vocab_size_, bytes_ = 0, first_byte_ = 0;
  int fd_ = -1;
  TokenFileHeader header_;
  std::vector<uint64_t> starts_;
  uint64_t checksum_ = 0;
};

/// What a token file holds besides tokens.
struct TokenFormat {
  bool headed = true, wide = true;
  uint64_t vocab_size = 0, vocabulary_hash = 0, flags = 0;
  /// .bin for vocabularies up to 65,536 without documents, else .mtbin.
  static TokenFormat plain(int64_t vocab_size);
  std::string file_name(const std::string& stem) const { return stem + (headed ? ".mtbin" : ".bin"); }
};

/// Writes a token file piece by piece, under temporary names until finish().
class TokenWriter {
 public:
  /// Where a writer stands; with the files as they were at sync() it can go on from there.
  struct State {
    uint64_t tokens = 0, documents = 0, checksum = 0;
  };
  TokenWriter(const std::string& path, const TokenFormat& format);
  /// Goes on from a state that sync() returned: what was written later is cut off. Throws Error when the
  /// files hold less.
  TokenWriter(const std::string& path, const TokenFormat& format, const State& state);
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  /// Tokens of the document in progress; `trained` (one per token, null: all).
  void add(const int32_t* ids, int64_t count, const uint8_t* trained = nullptr);
  void begin_document();
  /// Brings all to disk.
  State sync();
  void finish();
  /// Leaves the temporary files where they are if finish() is not called.
  void keep() { keep_ = true; }
  /// Removes them.
  void discard() { keep_ = false; }
  const State& state() const { return state_; }

 private:
  void open_files(const State& from);
  void flush();
  std::string path_, tokens_path_, index_path_, buffer_, index_buffer_;
  TokenFormat format_;
  int fd_ = -1, index_fd_ = -1;
  State state_;
  bool keep_ = false;
};

/// Writes one stream of ids in the form that the name's ending asks for; returns when the file is whole on
/// disk.
void write_token_file(const std::string& path, const std::vector<int32_t>& ids, int64_t vocab_size = 0);

}  // namespace megatrain
