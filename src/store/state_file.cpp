#include "store/state_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"
#include "core/units.h"

namespace megatrain {
namespace {

struct Header {
  char magic[8] = {'M', 'T', 'S', 'T', 'A', 'T', 'E', '1'};
  int64_t bytes = 0, process = 0;
  uint64_t checksum = 0;  // of what is before
};

uint64_t sum_of(const void* data, int64_t bytes) {
  return XXH3_64bits(data, static_cast<size_t>(bytes));
}

uint64_t header_sum(const Header& h) {
  return sum_of(&h, static_cast<int64_t>(offsetof(Header, checksum)));
}

}  // namespace

StateFile::StateFile(std::string path, int64_t bytes) : path_(std::move(path)) {
  open_and_lock();
  try {
    take_room(kAlign + bytes);
    write_header(bytes);
    fd_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC | O_DIRECT);
    direct_ = fd_ >= 0;
    if (!direct_) fd_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
    if (fd_ < 0) fail(fmt::format("{}: cannot open ({})", path_, std::strerror(errno)));
    reader_ = make_direct_io(fd_, path_), writer_ = make_direct_io(fd_, path_);
  } catch (...) {
    ::unlink(path_.c_str());
    ::close(plain_fd_);
    throw;
  }
}

StateFile::~StateFile() {
  reader_.reset(), writer_.reset();
  ::unlink(path_.c_str());
  ::close(fd_);
  ::close(plain_fd_);
}

void StateFile::open_and_lock() {
  plain_fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (plain_fd_ < 0)
    fail(fmt::format("{}: cannot create ({}); set state_dir to a directory on a local disk", path_,
                     std::strerror(errno)));
  const auto refuse = [&](const std::string& why) {
    ::close(plain_fd_);
    fail(path_ + ": " + why);
  };
  Header h;
  h.process = 0;
  const ssize_t n = ::pread(plain_fd_, &h, sizeof(h), 0);
  const bool ours = n == static_cast<ssize_t>(sizeof(h)) && std::memcmp(h.magic, Header{}.magic, 8) == 0 &&
                    h.checksum == header_sum(h);
  if (::flock(plain_fd_, LOCK_EX | LOCK_NB) != 0)
    refuse(
        fmt::format("is in use by process {}; wait for it or set state_dir to another directory", h.process));
  struct stat s {};
  if (::fstat(plain_fd_, &s) == 0 && s.st_size > 0 && !ours) {
    char first[8] = {0};
    const bool cut = ::pread(plain_fd_, first, 8, 0) == 8 && std::memcmp(first, Header{}.magic, 8) == 0;
    if (!cut) refuse("is there and is no state file of this program; move it or set state_dir elsewhere");
  }
}

void StateFile::take_room(int64_t bytes) {
  // The old content goes: fresh blocks read as zeros, which is what moments start from.
  if (::ftruncate(plain_fd_, 0) != 0)
    fail(fmt::format("{}: cannot be cut ({})", path_, std::strerror(errno)));
  if (::fallocate(plain_fd_, 0, 0, bytes) == 0) return;
  if (errno == EOPNOTSUPP || errno == ENOSYS) {
    if (::ftruncate(plain_fd_, bytes) == 0) return;
  }
  fail(fmt::format("{}: no room for {} ({}); free some space or set state_dir to another disk", path_,
                   format_bytes(static_cast<double>(bytes)), std::strerror(errno)));
}

void StateFile::write_header(int64_t bytes) const {
  Header h;
  h.bytes = bytes, h.process = ::getpid();
  h.checksum = header_sum(h);
  if (::pwrite(plain_fd_, &h, sizeof(h), 0) != static_cast<ssize_t>(sizeof(h)))
    fail(fmt::format("{}: write failed ({})", path_, std::strerror(errno)));
}

std::vector<IoPiece> StateFile::pieces(int64_t offset, void* data, int64_t bytes) const {
  std::vector<IoPiece> out;
  for (int64_t at = 0; at < bytes; at += kPiece)
    out.push_back(
        {static_cast<char*>(data) + at, kAlign + offset + at, padded(std::min(kPiece, bytes - at))});
  return out;
}

void StateFile::note(int64_t offset, const void* data, int64_t bytes) {
  const Sum sum{sum_of(data, bytes), bytes};
  const std::lock_guard lock(mutex_);
  sums_[offset] = sum;
}

void StateFile::compare(int64_t offset, const void* data, int64_t bytes) const {
  Sum want;
  {
    const std::lock_guard lock(mutex_);
    const auto it = sums_.find(offset);
    if (it == sums_.end() || it->second.bytes != bytes) return;  // never written as a block, or other pieces
    want = it->second;
  }
  if (sum_of(data, bytes) != want.value)
    fail(
        fmt::format("{}: what was read at byte {} is not what was written; something changed the file or the "
                    "disk is failing; checkpoints are as they were: go on with --resume, on another disk "
                    "(state_dir)",
                    path_, kAlign + offset));
}

void StateFile::read_block(int64_t offset, void* to, int64_t bytes) {
  const auto all = pieces(offset, to, bytes);
  reader_->transfer(
      false, all, [](size_t) {},
      [&](size_t i) {
        const int64_t at = static_cast<int64_t>(i) * kPiece;
        compare(offset + at, all[i].data, std::min(kPiece, bytes - at));
      });
}

void StateFile::write_block(int64_t offset, const void* from, int64_t bytes) {
  const auto all = pieces(offset, const_cast<void*>(from), bytes);
  writer_->transfer(
      true, all,
      [&](size_t i) {
        const int64_t at = static_cast<int64_t>(i) * kPiece;
        note(offset + at, all[i].data, std::min(kPiece, bytes - at));
      },
      [](size_t) {});
}

void StateFile::read_part(int64_t offset, void* to, int64_t bytes) const {
  auto* out = static_cast<char*>(to);
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n =
        ::pread(plain_fd_, out + done, static_cast<size_t>(bytes - done), kAlign + offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      fail(fmt::format("{}: read failed ({})", path_, n == 0 ? "the file ends early" : std::strerror(errno)));
    done += n;
  }
  for (int64_t at = 0; at < bytes; at += kPiece) compare(offset + at, out + at, std::min(kPiece, bytes - at));
}

void StateFile::write_part(int64_t offset, const void* from, int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    sums_.erase(sums_.lower_bound(offset - kPiece + 1), sums_.lower_bound(offset + bytes));
  }
  const auto* in = static_cast<const char*>(from);
  for (int64_t done = 0; done < bytes;) {
    const ssize_t n =
        ::pwrite(plain_fd_, in + done, static_cast<size_t>(bytes - done), kAlign + offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      fail(fmt::format("{}: write failed ({}); free some space or set state_dir to another disk", path_,
                       std::strerror(errno)));
    done += n;
  }
}

void StateFile::register_memory(const std::vector<std::pair<void*, int64_t>>& ranges) {
  reader_->register_memory(ranges);
  writer_->register_memory(ranges);
}

}  // namespace megatrain
