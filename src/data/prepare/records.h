#pragma once
// defines: Record, RecordReader — the documents and rows of an input file, one after another.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace megatrain {

struct Record {
  enum Kind { text, json, refused };
  Kind kind = text;
  std::string data;    ///< UTF-8 text, a JSON value, or why the record cannot be had
  int64_t number = 0;  ///< line, or row, from 1
  bool more = false;   ///< text: the document goes on in the next record
};

/// Largest place at which a text may be cut into parts that are encoded one by one; 0: nowhere.
using CutFn = std::function<size_t(std::string_view)>;

struct RecordOptions {
  CutFn cut;                         ///< where long texts may be cut; null: nowhere
  std::string text_column = "text";  ///< Parquet
};

class RecordReader {
 public:
  virtual ~RecordReader() = default;
  /// False at the end.
  virtual bool next(Record& record) = 0;
  /// Of the file, read so far.
  virtual int64_t consumed() const = 0;
  /// Records that are left, without looking into them.
  virtual int64_t count_rest() {
    int64_t n = 0;
    for (Record r; next(r);) n += !r.more;
    return n;
  }

  /// By the name's ending: .jsonl or .ndjson (one a line), .json (an array), .parquet, else one text.
  static std::unique_ptr<RecordReader> open(const std::string& path, const RecordOptions& options);
};

/// "text", "lines", "array" or "parquet".
std::string input_kind(const std::string& path);

/// In parquet.cpp, where the build has Arrow; else refuses by name.
std::unique_ptr<RecordReader> open_parquet(const std::string& path, const RecordOptions& options);

}  // namespace megatrain
