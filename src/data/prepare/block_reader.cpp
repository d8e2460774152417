#include "data/prepare/block_reader.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "data/prepare/bytes.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

constexpr int64_t kBlockBytes = int64_t{1} << 20;
constexpr size_t kBlockRecords = 4096;

bool starts_point(char c) {
  return (c & 0xc0) != 0x80;
}

bool known_ending(const fs::path& p) {
  const std::string name = without_compression(p.string());
  for (const char* e : {".txt", ".md", ".jsonl", ".ndjson", ".json", ".parquet"})
    if (name.ends_with(e)) return p.filename() != "dataset_info.json";
  return false;
}

}  // namespace

std::vector<std::string> expand_inputs(const std::vector<std::string>& inputs) {
  std::vector<std::string> files;
  for (const std::string& input : inputs) {
    if (!fs::is_directory(input)) {
      files.push_back(input);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& e : fs::recursive_directory_iterator(input))
      if (e.is_regular_file() && known_ending(e.path())) inside.push_back(e.path().string());
    if (inside.empty()) fail(input + ": holds no .txt, .md, .jsonl, .json or .parquet (.gz, .zst) file");
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  for (const std::string& f : files) {
    if (!fs::is_regular_file(f))
      fail(f + ": cannot open: it does not exist or is not a file; check the path");
    if (fs::file_size(f) == 0) fail(f + ": is empty, it has no text");
  }
  return files;
}

int64_t count_code_points(const std::string& path, bool& blank) {
  const auto in = ByteReader::open(path);
  std::vector<char> buffer(size_t{1} << 18);
  int64_t points = 0;
  blank = true;
  while (const size_t n = in->read(buffer.data(), buffer.size())) {
    points += std::count_if(buffer.begin(), buffer.begin() + static_cast<int64_t>(n), starts_point);
    blank =
        blank && std::string_view(buffer.data(), n).find_first_not_of(" \t\r\n") == std::string_view::npos;
  }
  return points;
}

BlockReader::BlockReader(std::vector<std::string> files, RecordOptions options, int64_t split)
    : files_(std::move(files)), options_(std::move(options)), split_(split) {
  for (const std::string& f : files_) {
    sizes_.push_back(static_cast<int64_t>(fs::file_size(f)));
    total_ += sizes_.back();
  }
}

double BlockReader::fraction() const {
  const int64_t at = done_ + (reader_ ? reader_->consumed() : 0);
  return std::min(1.0, static_cast<double>(at) / static_cast<double>(std::max<int64_t>(total_, 1)));
}

// Next record of the file in work; false at its end.
bool BlockReader::next_record(Record& r) {
  if (!waiting_.empty()) {
    r = std::move(waiting_.back());
    waiting_.pop_back();
    return true;
  }
  if (!reader_->next(r)) return false;
  if (split_ >= 0) apply_split(r);
  return true;
}

void BlockReader::apply_split(Record& r) {
  const int64_t before = points_;
  points_ += std::count_if(r.data.begin(), r.data.end(), starts_point);
  if (before >= split_ || points_ < split_) return;
  size_t at = 0;
  for (int64_t left = split_ - before; at < r.data.size(); ++at)
    if (starts_point(r.data[at]) && left-- == 0) break;
  if (at < r.data.size()) {
    Record rest = r;
    rest.data = r.data.substr(at);
    r.data.resize(at);
    waiting_.push_back(std::move(rest));
  }
  r.more = false;
}

bool BlockReader::next(Block& block) {
  block = {};
  int64_t bytes = 0;
  while (block.records.empty()) {
    if (!reader_) {
      if (file_ == files_.size()) return false;
      reader_ = RecordReader::open(files_[file_], options_);
    }
    block.path = files_[file_], block.first_document = document_, block.continues = continues_;
    Record r;
    bool more = true;
    while (bytes < kBlockBytes && block.records.size() < kBlockRecords && (more = next_record(r))) {
      bytes += static_cast<int64_t>(r.data.size());
      document_ += !r.more, continues_ = r.more;
      block.records.push_back(std::move(r));
      r = {};
    }
    if (more) return true;
    reader_.reset();
    done_ += sizes_[file_++];
  }
  return true;
}

}  // namespace megatrain
