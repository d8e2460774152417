#pragma once
// defines: Tokenizer and its makers — byte, char and GPT-2 byte-level BPE.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace megatrain {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string kind() const = 0;  ///< "byte", "char" or "bpe"
  virtual int64_t vocab_size() const = 0;
  /// Id that ends a document, or -1.
  virtual int32_t end_of_text() const { return -1; }
  /// Appends the ids of `text`. `progress` (may be empty) is told bytes done. Throws Error for text the
  /// vocabulary cannot express.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids,
                      const std::function<void(size_t)>& progress = {}) const = 0;
  /// Bytes of one token; concatenated they are the text.
  virtual std::string decode(int32_t id) const = 0;
  /// Writes what load_tokenizer needs into a directory.
  virtual void save(const std::string& directory) const = 0;
};

std::unique_ptr<Tokenizer> make_byte_tokenizer();
/// Vocabulary = the sorted code points of `text` (nanoGPT's shakespeare_char).
std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view text);
/// GPT-2's byte-level BPE from tokenizer.json, or from a directory with tokenizer.json or with vocab.json
/// and merges.txt.
std::unique_ptr<Tokenizer> load_bpe_tokenizer(const std::string& path);
/// The tokenizer saved in a data or model directory; null if there is none.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& directory);

/// Splits off the next UTF-8 code point of `text` at `at`; returns its length, 0 if malformed.
size_t next_code_point(std::string_view text, size_t at);

}  // namespace megatrain
