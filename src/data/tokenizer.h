#pragma once
// defines: Tokenizer and its makers — byte, char and the BPE tokenizers of Hugging Face directories.

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
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
  /// Id of a token by its written form, or -1.
  virtual int32_t find(const std::string&) const { return -1; }
  /// Control tokens, which a text shown to people leaves out.
  virtual bool is_special(int32_t) const { return false; }
  /// With what the tokenizer puts around a text for the model (Llama's <s>).
  virtual std::vector<int32_t> with_special_tokens(const std::vector<int32_t>& ids) const { return ids; }
  /// Appends the ids of `text`. `progress` (may be empty) is told bytes done. Throws Error for text the
  /// vocabulary cannot express.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids,
                      const std::function<void(size_t)>& progress = {}) const = 0;
  /// The same, but what looks like a special token is plain text: for corpora (tiktoken's encode_ordinary).
  virtual void encode_ordinary(std::string_view text, std::vector<int32_t>& ids) const { encode(text, ids); }
  /// Largest place where `text` may be cut so that its parts, encoded one by one, give the ids of the whole;
  /// 0: nowhere that is known.
  virtual size_t cut(std::string_view) const { return 0; }
  /// Bytes of one token; concatenated they are the text.
  virtual std::string decode(int32_t id) const = 0;
  /// Of the bytes of every token: equal for tokenizers with the same vocabulary, never 0.
  uint64_t hash() const;
  /// Writes what load_tokenizer needs into a directory.
  virtual void save(const std::string& directory) const = 0;
};

std::unique_ptr<Tokenizer> make_byte_tokenizer();
/// Vocabulary = the sorted code points of `text` (nanoGPT's shakespeare_char).
std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view text);
/// The same from characters gathered piece by piece (UTF-8 order is code point order).
void add_characters(std::string_view text, std::set<std::string, std::less<>>& seen);
std::unique_ptr<Tokenizer> make_char_tokenizer(const std::set<std::string, std::less<>>& seen);
/// Hugging Face's tokenizer.json (BPE: byte-level as GPT-2, Llama 3, Qwen; or SentencePiece-like as Llama 2,
/// Mistral), or a directory with it or with GPT-2's vocab.json and merges.txt. Gives the same ids as the
/// tokenizers package; what it does not understand it refuses.
std::unique_ptr<Tokenizer> load_bpe_tokenizer(const std::string& path);
/// The same from the text of a tokenizer.json; `where` starts the errors.
std::unique_ptr<Tokenizer> parse_tokenizer(const std::string& tokenizer_json, const std::string& where);
/// The tokenizer saved in a data or model directory; null if there is none.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& directory);

/// Splits off the next UTF-8 code point of `text` at `at`; returns its length, 0 if malformed.
size_t next_code_point(std::string_view text, size_t at);
/// True for text with a UTF-16 mark, or zeros where UTF-16 has them.
bool looks_like_utf16(std::string_view text);
/// What to say of text that is not UTF-8 at `at`: what it looks like, and how to convert it.
std::string not_utf8(std::string_view text, size_t at);

}  // namespace megatrain
