#pragma once
// defines: BlockReader, expand_inputs — the input files as blocks, always cut at the same places.

#include <memory>
#include <vector>

#include "data/prepare/worker.h"

namespace megatrain {

class BlockReader {
 public:
  /// `split` >= 0: the one text becomes two documents, cut behind that many code points.
  BlockReader(std::vector<std::string> files, RecordOptions options, int64_t split = -1);
  bool next(Block& block);
  double fraction() const;  ///< of the files' bytes
  int64_t total_bytes() const { return total_; }

 private:
  bool next_record(Record& r);
  void apply_split(Record& r);

  std::vector<std::string> files_;
  std::vector<int64_t> sizes_;
  RecordOptions options_;
  int64_t split_, points_ = 0;
  size_t file_ = 0;
  int64_t done_ = 0, total_ = 0, document_ = 0;
  std::unique_ptr<RecordReader> reader_;
  std::vector<Record> waiting_;  // the part of a record behind the split
  bool continues_ = false;
};

/// Files, and the files inside of directories (sorted by name); refuses what does not exist or is empty.
std::vector<std::string> expand_inputs(const std::vector<std::string>& inputs);
/// Code points in a text file, and whether it holds anything but blanks.
int64_t count_code_points(const std::string& path, bool& blank);

}  // namespace megatrain
