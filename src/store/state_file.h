#pragma once
// defines: StateFile — the disk as a home of state: one file of blocks, each piece with a checksum.

#include <map>
#include <mutex>

#include "store/direct_io.h"

namespace megatrain {

/// The live state of a run, worth nothing without it: what a killed run left is never read again (its
/// checkpoints are), and the next run with the same path takes the file over. A header says what it is, so
/// that no other file is overwritten; a lock, that it is in use. Blocks move past the page cache where the
/// file system can. Of every piece that was written a checksum is kept in memory and compared when it is
/// read: a torn or changed file is an error that names it, not a wrong loss.
class StateFile {
 public:
  static constexpr int64_t kAlign = 4096, kPiece = int64_t{4} << 20;
  static int64_t padded(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  /// Takes `bytes` of disk, zeros, beside the header. Throws Error when the path is in use or is no state
  /// file, or the disk is full.
  StateFile(std::string path, int64_t bytes);
  /// Removes the file.
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  /// Whole ranges, page-aligned in memory and file (memory is padded to kAlign). One thread may read and one
  /// write at a time, different ranges.
  void read_block(int64_t offset, void* to, int64_t bytes);
  void write_block(int64_t offset, const void* from, int64_t bytes);
  /// Any range, by any thread, through the page cache: filling, checkpoints.
  void read_part(int64_t offset, void* to, int64_t bytes) const;
  void write_part(int64_t offset, const void* from, int64_t bytes);
  /// Memory that blocks will use; none before it is released.
  void register_memory(const std::vector<std::pair<void*, int64_t>>& ranges);

  const std::string& path() const { return path_; }
  const char* io_name() const { return reader_->name(); }
  bool direct() const { return direct_; }

 private:
  void open_and_lock();
  void take_room(int64_t bytes);
  void write_header(int64_t bytes) const;
  std::vector<IoPiece> pieces(int64_t offset, void* data, int64_t bytes) const;
  void note(int64_t offset, const void* data, int64_t bytes);
  void compare(int64_t offset, const void* data, int64_t bytes) const;

  std::string path_;
  int fd_ = -1, plain_fd_ = -1;
  bool direct_ = false;
  std::unique_ptr<DirectIo> reader_, writer_;
  struct Sum {
    uint64_t value = 0;
    int64_t bytes = 0;
  };
  mutable std::mutex mutex_;
  std::map<int64_t, Sum> sums_;  // by offset of the piece
};

}  // namespace megatrain
