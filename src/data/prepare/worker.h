#pragma once
// defines: Block, EncodedBlock, BlockEncoder — a piece of the input and its tokens: what one thread does.

#include <string>
#include <vector>

#include "data/examples/encoder.h"
#include "data/prepare/records.h"

namespace megatrain {

/// About a MiB of records of one file; always the same ones for the same inputs and options.
struct Block {
  std::string path;
  std::vector<Record> records;
  int64_t first_document = 0;  ///< number of the document or row that its first record belongs to
  bool continues = false;      ///< the first record goes on with the document of the block before
};

/// One document or row; a preference pair is two in a row.
struct EncodedDocument {
  std::vector<int32_t> ids;
  std::vector<uint8_t> trained;  ///< empty: all
  bool begins = true;            ///< false: goes on with the document before
  int64_t number = 0;            ///< of the row
};

struct Refusal {
  std::string where, error;
};

struct EncodedBlock {
  std::vector<EncodedDocument> documents;
  std::vector<Refusal> refused;
  int64_t bytes = 0, rows = 0;
};

struct EncodingOptions {
  RowFormat format;
  /// marked: conversations and completions. pairs: chosen and rejected. text: documents for pre-training.
  enum Set { text, marked, pairs } set = text;
  bool end_documents = false;   ///< text: an end-of-text token behind each document
  bool whole_documents = true;  ///< text: with what the tokenizer puts around a text for the model
};

/// Thread-safe.
class BlockEncoder {
 public:
  BlockEncoder(const Tokenizer& tokenizer, const ExampleEncoder& examples, EncodingOptions options)
      : tokenizer_(tokenizer), examples_(examples), options_(std::move(options)) {}
  EncodedBlock encode(const Block& block) const;
  static EncodingOptions::Set set_of(const Record& first, const RowFormat& format);

 private:
  void encode_text(const Record& r, bool begins, EncodedBlock& out, int64_t number) const;
  void encode_row(const Row& row, EncodedBlock& out, int64_t number) const;
  const Tokenizer& tokenizer_;
  const ExampleEncoder& examples_;
  EncodingOptions options_;
};

}  // namespace megatrain
