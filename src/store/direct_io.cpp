#include "store/direct_io.h"

#include <fmt/format.h>
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "core/error.h"
#include "core/thread_pool.h"

namespace megatrain {
namespace {

constexpr unsigned kDepth = 16;                       // pieces in flight
constexpr int64_t kLargestBuffer = int64_t{1} << 30;  // of one registration

[[noreturn]] void failed(const std::string& path, bool write, int error) {
  fail(fmt::format("{}: {} failed ({}); checkpoints are as they were: {}, then go on with --resume", path,
                   write ? "write" : "read", std::strerror(error),
                   error == ENOSPC ? "free some space or set state_dir to another disk"
                                   : "check the disk or set state_dir to another one"));
}

// What is left behind a short transfer, from a block's start again: past the page cache others are refused.
void advance(IoPiece& p, int64_t moved) {
  constexpr int64_t kBlock = 4096;
  const int64_t whole = moved / kBlock * kBlock;
  p.data += whole, p.offset += whole, p.bytes -= whole;
}
constexpr int kMostShort = 100;  // transfers in a row that moved less than a block

[[noreturn]] void ended(const std::string& path) {
  fail(path + ": the file ends early; something cut it; checkpoints are as they were: go on with --resume");
}

class UringIo : public DirectIo {
 public:
  UringIo(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~UringIo() override {
    if (open_) io_uring_queue_exit(&ring_);
  }
  UringIo(const UringIo&) = delete;
  UringIo& operator=(const UringIo&) = delete;
  bool open() {
    open_ = io_uring_queue_init(kDepth, &ring_, 0) == 0;
    return open_;
  }
  const char* name() const override { return "io_uring"; }

  void register_memory(const std::vector<std::pair<void*, int64_t>>& ranges) override {
    // What was registered before may be gone: another mapping at its address would be passed by.
    if (!registered_.empty()) io_uring_unregister_buffers(&ring_);
    registered_.clear();
    std::vector<iovec> parts;
    for (const auto& [data, bytes] : ranges)
      for (int64_t at = 0; at < bytes; at += kLargestBuffer)
        parts.push_back(
            {static_cast<char*>(data) + at, static_cast<size_t>(std::min(kLargestBuffer, bytes - at))});
    if (parts.empty() ||
        io_uring_register_buffers(&ring_, parts.data(), static_cast<unsigned>(parts.size())) != 0)
      return;
    registered_ = std::move(parts);
  }

  void transfer(bool write, const std::vector<IoPiece>& pieces, const std::function<void(size_t)>& before,
                const std::function<void(size_t)>& after) override {
    std::vector<IoPiece> rest = pieces;  // what is left of each
    size_t next = 0, flying = 0;
    int error = 0, shorts = 0;
    while ((next < rest.size() && error == 0) || flying > 0) {
      while (next < rest.size() && flying < kDepth && error == 0) {
        before(next);
        queue(write, rest[next], next);
        ++next, ++flying;
      }
      io_uring_submit(&ring_);
      io_uring_cqe* cqe = nullptr;
      const int rc = io_uring_wait_cqe(&ring_, &cqe);
      if (rc == -EINTR) continue;
      if (rc < 0) failed(path_, write, -rc);
      const auto i = static_cast<size_t>(cqe->user_data);
      const int result = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      --flying;
      if (result == -EINTR || result == -EAGAIN) {
        queue(write, rest[i], i), ++flying;
      } else if (result <= 0) {
        if (error == 0) error = result == 0 ? -1 : -result;
      } else if (result < rest[i].bytes && (result >= 4096 || ++shorts < kMostShort)) {
        advance(rest[i], result);
        queue(write, rest[i], i), ++flying;
      } else if (result < rest[i].bytes) {
        if (error == 0) error = write ? EIO : -1;
      } else if (error == 0) {
        after(i);
      }
    }
    if (error == -1 && !write) ended(path_);
    if (error != 0) failed(path_, write, error == -1 ? EIO : error);
  }

 private:
  void queue(bool write, const IoPiece& p, size_t i) {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    const auto n = static_cast<unsigned>(p.bytes);
    const auto at = static_cast<uint64_t>(p.offset);
    const int buffer = find(p);
    if (buffer >= 0 && write)
      io_uring_prep_write_fixed(sqe, fd_, p.data, n, at, buffer);
    else if (buffer >= 0)
      io_uring_prep_read_fixed(sqe, fd_, p.data, n, at, buffer);
    else if (write)
      io_uring_prep_write(sqe, fd_, p.data, n, at);
    else
      io_uring_prep_read(sqe, fd_, p.data, n, at);
    io_uring_sqe_set_data64(sqe, i);
  }
  int find(const IoPiece& p) const {
    for (size_t b = 0; b < registered_.size(); ++b) {
      const char* base = static_cast<char*>(registered_[b].iov_base);
      if (p.data >= base && p.data + p.bytes <= base + registered_[b].iov_len) return static_cast<int>(b);
    }
    return -1;
  }

  int fd_;
  std::string path_;
  io_uring ring_{};
  bool open_ = false;
  std::vector<iovec> registered_;
};

class ThreadIo : public DirectIo {
 public:
  ThreadIo(int fd, std::string path) : fd_(fd), path_(std::move(path)), pool_(kThreads) {}
  const char* name() const override { return "threads"; }

  void transfer(bool write, const std::vector<IoPiece>& pieces, const std::function<void(size_t)>& before,
                const std::function<void(size_t)>& after) override {
    for (size_t first = 0; first < pieces.size(); first += kDepth) {
      const size_t count = std::min<size_t>(kDepth, pieces.size() - first);
      for (size_t i = 0; i < count; ++i) before(first + i);
      std::mutex mutex;
      int error = 0;
      pool_.parallel_for(static_cast<int64_t>(count), [&](int64_t i) {
        const int e = move(write, pieces[first + static_cast<size_t>(i)]);
        const std::lock_guard lock(mutex);
        if (error == 0) error = e;
      });
      if (error == -1) ended(path_);
      if (error != 0) failed(path_, write, error);
      for (size_t i = 0; i < count; ++i) after(first + i);
    }
  }

 private:
  static constexpr int kThreads = 8;
  // 0, an errno, or -1 at the file's end.
  int move(bool write, IoPiece p) const {
    for (int shorts = 0; p.bytes > 0;) {
      const ssize_t n = write ? ::pwrite(fd_, p.data, static_cast<size_t>(p.bytes), p.offset)
                              : ::pread(fd_, p.data, static_cast<size_t>(p.bytes), p.offset);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return errno;
      if (n == 0) return write ? EIO : -1;
      if (n == p.bytes) return 0;
      if (n < 4096 && ++shorts == kMostShort) return write ? EIO : -1;
      advance(p, n);
    }
    return 0;
  }
  int fd_;
  std::string path_;
  ThreadPool pool_;
};

}  // namespace

std::unique_ptr<DirectIo> make_direct_io(int fd, const std::string& path) {
  const char* forced = std::getenv("MEGATRAIN_IO");
  if (!forced || std::string(forced) != "threads") {
    auto ring = std::make_unique<UringIo>(fd, path);
    if (ring->open()) return ring;
  }
  return std::make_unique<ThreadIo>(fd, path);
}

}  // namespace megatrain
