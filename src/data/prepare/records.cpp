#include "data/prepare/records.h"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "core/error.h"
#include "data/prepare/bytes.h"

namespace megatrain {
namespace {

constexpr size_t kMaxRow = size_t{64} << 20;
constexpr size_t kSegment = size_t{1} << 20;  // of a text that may be cut

/// Bytes with a look-ahead buffer.
class Scanner {
 public:
  explicit Scanner(const std::string& path) : in_(ByteReader::open(path)), buffer_(size_t{1} << 18) {}
  /// What is there, refilled when nothing is left; empty at the end.
  std::string_view peek() {
    if (at_ == end_) at_ = 0, end_ = in_->read(buffer_.data(), buffer_.size());
    return {&buffer_[at_], end_ - at_};
  }
  void skip(size_t n) { at_ += n; }
  int64_t consumed() const { return in_->consumed(); }

 private:
  std::unique_ptr<ByteReader> in_;
  std::vector<char> buffer_;
  size_t at_ = 0, end_ = 0;
};

/// Adds to a row, or only counts when the row is beyond the limit, so that no line takes more memory.
struct RowBuffer {
  std::string& data;
  size_t size = 0;
  void add(std::string_view piece) {
    size += piece.size();
    if (size <= kMaxRow) data += piece;
  }
  void finish(Record& r) const {
    r.kind = Record::json;
    if (size <= kMaxRow) return;
    r.kind = Record::refused;
    r.data = fmt::format("is {} MB long; at most {} MB are read", size / 1'000'000, kMaxRow / 1'000'000);
  }
};

class LineReader : public RecordReader {
 public:
  explicit LineReader(const std::string& path) : in_(path) {}
  int64_t consumed() const override { return in_.consumed(); }

  bool next(Record& r) override {
    do {
      if (!line(r)) return false;
    } while (r.kind == Record::json && r.data.find_first_not_of(" \t\r") == std::string::npos);
    return true;
  }

 private:
  bool line(Record& r) {
    r = {};
    RowBuffer row{r.data};
    bool any = false;
    for (std::string_view piece = in_.peek(); !piece.empty(); piece = in_.peek()) {
      any = true;
      const size_t end = piece.find('\n');
      row.add(piece.substr(0, end));
      in_.skip(end == std::string_view::npos ? piece.size() : end + 1);
      if (end != std::string_view::npos) break;
    }
    if (!any) return false;
    row.finish(r);
    r.number = ++number_;
    return true;
  }
  Scanner in_;
  int64_t number_ = 0;
};

/// The values of a JSON array, cut apart without parsing them.
class ArrayReader : public RecordReader {
 public:
  explicit ArrayReader(const std::string& path) : path_(path), in_(path) {
    if (blank() != '[')
      fail(path + ": a list of examples was expected; for one a line, name the file .jsonl");
    in_.skip(1);
  }
  int64_t consumed() const override { return in_.consumed(); }

  bool next(Record& r) override {
    char c = blank();
    if (c == ',' && number_ > 0) in_.skip(1), c = blank();
    if (c == ']') return false;
    r = {};
    RowBuffer row{r.data};
    value(row);
    row.finish(r);
    r.number = ++number_;
    return true;
  }

 private:
  // The next character that is not blank.
  char blank() {
    for (std::string_view piece = in_.peek(); !piece.empty(); piece = in_.peek()) {
      const size_t at = piece.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
      if (at != std::string_view::npos) {
        in_.skip(at);
        return piece[at];
      }
      in_.skip(piece.size());
    }
    fail(path_ + ": ends before its list does");
  }
  void value(RowBuffer& row) {
    int64_t depth = 0;
    bool in_text = false, escaped = false;
    while (true) {
      const std::string_view piece = in_.peek();
      if (piece.empty()) fail(path_ + ": ends before its list does");
      for (size_t i = 0; i < piece.size(); ++i) {
        const char c = piece[i];
        if (in_text) {
          in_text = escaped || c != '"', escaped = !escaped && c == '\\';
          continue;
        }
        in_text = c == '"';
        if (depth == 0 && (c == ',' || c == ']')) {
          row.add(piece.substr(0, i));
          return in_.skip(i);
        }
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
      }
      row.add(piece);
      in_.skip(piece.size());
    }
  }
  std::string path_;
  Scanner in_;
  int64_t number_ = 0;
};

/// One document; in parts where it may be cut.
class TextReader : public RecordReader {
 public:
  TextReader(const std::string& path, CutFn cut) : in_(path), cut_(std::move(cut)) {}
  int64_t consumed() const override { return in_.consumed(); }

  bool next(Record& r) override {
    if (done_) return false;
    r = {};
    r.number = ++number_;
    while (true) {
      const std::string_view piece = in_.peek();
      if (piece.empty()) break;
      rest_ += piece;
      in_.skip(piece.size());
      if (!cut_ || rest_.size() < kSegment) continue;
      const size_t at = cut_(rest_);
      if (at == 0) continue;
      r.data = rest_.substr(0, at), r.more = true;
      rest_.erase(0, at);
      return true;
    }
    r.data.swap(rest_);
    done_ = true;
    return true;
  }

 private:
  Scanner in_;
  CutFn cut_;
  std::string rest_;
  bool done_ = false;
  int64_t number_ = 0;
};

}  // namespace

std::string input_kind(const std::string& path) {
  const std::string name = without_compression(path);
  if (name.ends_with(".jsonl") || name.ends_with(".ndjson")) return "lines";
  if (name.ends_with(".json")) return "array";
  return name.ends_with(".parquet") ? "parquet" : "text";
}

std::unique_ptr<RecordReader> RecordReader::open(const std::string& path, const RecordOptions& o) {
  const std::string kind = input_kind(path);
  if (kind == "lines") return std::make_unique<LineReader>(path);
  if (kind == "array") return std::make_unique<ArrayReader>(path);
  if (kind == "parquet") return open_parquet(path, o);
  return std::make_unique<TextReader>(path, o.cut);
}

}  // namespace megatrain
