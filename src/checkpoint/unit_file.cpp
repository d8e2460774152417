#include "checkpoint/unit_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>

#include "checkpoint/hash.h"
#include "core/error.h"
#include "io/file.h"
#include "io/safetensors.h"

namespace megatrain {
namespace {

struct Part {
  const char *name, *dtype;
  Plane plane;
  int64_t bytes;
};

std::vector<Part> parts_of(int64_t n) {
  return {{"hi", "U16", Plane::hi, n * 2},
          {"lo", "U16", Plane::lo, n * 2},
          {"m", "F32", Plane::m, n * 4},
          {"v", "F32", Plane::v, n * 4}};
}

std::string header_of(const UnitLayout& layout) {
  nlohmann::ordered_json j;
  j["__metadata__"] = {{"format", "megatrain"}, {"unit", layout.name}};
  int64_t at = 0;
  for (const Part& p : parts_of(layout.numel)) {
    j[p.name] = {{"dtype", p.dtype}, {"shape", {layout.numel}}, {"data_offsets", {at, at + p.bytes}}};
    at += p.bytes;
  }
  std::string text = j.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + text;
}

/// Page-aligned memory.
class Buffer {
 public:
  explicit Buffer(int64_t bytes)
      : data_(static_cast<char*>(std::aligned_alloc(4096, static_cast<size_t>(bytes)))) {
    if (!data_) throw std::bad_alloc();
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  char* data() const { return data_; }

 private:
  char* data_;
};

/// A file that is written once, from front to back, past the page cache where the file system can (O_DIRECT:
/// half as fast again on the H200 machine's disk), else with its pages let go.
class StreamedFile {
 public:
  explicit StreamedFile(std::string path) : path_(std::move(path)), buffer_(kWriterBytes) {
    constexpr int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    fd_ = ::open(path_.c_str(), flags | O_DIRECT, 0644);
    direct_ = fd_ >= 0;
    if (!direct_) fd_ = ::open(path_.c_str(), flags, 0644);
    if (fd_ < 0) fail(fmt::format("{}: cannot create ({})", path_, std::strerror(errno)));
  }
  ~StreamedFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  StreamedFile(const StreamedFile&) = delete;
  StreamedFile& operator=(const StreamedFile&) = delete;

  void write(const void* data, int64_t bytes) {
    const auto* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const int64_t n = std::min(bytes, kWriterBytes - used_);
      std::memcpy(buffer_.data() + used_, from, static_cast<size_t>(n));
      from += n, bytes -= n, used_ += n;
      if (used_ == kWriterBytes) flush();
    }
  }
  int64_t finish() {
    if (direct_) {  // the tail is no whole number of blocks
      ::fcntl(fd_, F_SETFL, 0);
      direct_ = false;
    }
    flush();
    if (::fsync(fd_) != 0) fail(fmt::format("{}: cannot bring it to disk ({})", path_, std::strerror(errno)));
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
    const int rc = ::close(fd_);
    fd_ = -1;
    if (rc != 0) fail(fmt::format("{}: cannot be closed ({})", path_, std::strerror(errno)));
    return at_;
  }

 private:
  void flush() {
    int64_t done = 0;
    if (direct_) done = write_direct();
    write_all(fd_, buffer_.data() + done, used_ - done, path_);
    at_ += used_, used_ = 0;
    if (direct_ || at_ - flushed_ < 4 * kWriterBytes) return;
    const int64_t until = at_ - 2 * kWriterBytes;  // nearly on disk by now: wait for it and let its pages go
    ::sync_file_range(fd_, flushed_, until - flushed_,
                      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    ::posix_fadvise(fd_, flushed_, until - flushed_, POSIX_FADV_DONTNEED);
    flushed_ = until;
  }

  // One write past the cache. What a short one left, and all that a file system refuses, goes through it.
  int64_t write_direct() {
    const ssize_t n = ::write(fd_, buffer_.data(), static_cast<size_t>(used_));
    if (n == used_) return n;
    if (n < 0 && errno != EINVAL && errno != EINTR)
      fail(fmt::format("{}: write failed ({}); free some space or choose another place", path_,
                       std::strerror(errno)));
    ::fcntl(fd_, F_SETFL, 0);
    direct_ = false;
    return std::max<int64_t>(n, 0);
  }

  std::string path_;
  Buffer buffer_;
  int fd_ = -1;
  bool direct_ = false;
  int64_t used_ = 0, at_ = 0, flushed_ = 0;
};

}  // namespace

std::string unit_file_name(int unit) {
  return fmt::format("unit-{:04}.safetensors", unit);
}

int64_t unit_file_bytes(const UnitLayout& layout) {
  return static_cast<int64_t>(header_of(layout).size()) + layout.numel * 12;
}

Manifest::File write_unit(const std::string& directory, int unit, const UnitLayout& layout,
                          const StateStore& store) {
  const std::string name = unit_file_name(unit);
  StreamedFile file(directory + "/" + name);
  const std::string header = header_of(layout);
  file.write(header.data(), static_cast<int64_t>(header.size()));
  Hash64 hash;
  const Buffer piece(kPassingBytes);
  for (const Part& p : parts_of(layout.numel)) {
    const char* home = store.host_address(unit, p.plane);
    const int64_t step = home ? kWriterBytes : kPassingBytes;
    for (int64_t at = 0; at < p.bytes; at += step) {
      const int64_t n = std::min(step, p.bytes - at);
      if (!home) store.read(unit, p.plane, at, piece.data(), n);
      const char* from = home ? home + at : piece.data();
      hash.add(from, static_cast<size_t>(n));
      file.write(from, n);
    }
  }
  return {name, layout.name, layout.numel, file.finish(), hash.hex()};
}

void read_unit(const std::string& directory, int unit, const Manifest::File& f, StateStore& store) {
  const SafetensorsFile file(directory + "/" + f.name);
  Hash64 hash;
  const Buffer piece(kPassingBytes);
  for (const Part& p : parts_of(f.numel)) {
    const SafetensorsEntry* e = file.find(p.name);
    if (!e || e->dtype != p.dtype || e->bytes != p.bytes)
      fail(fmt::format("{}: tensor {} is not what the manifest says; it is damaged", file.path(), p.name));
    char* home = store.host_address(unit, p.plane);
    const int64_t step = home ? kWriterBytes : kPassingBytes;
    for (int64_t at = 0; at < p.bytes; at += step) {
      const int64_t n = std::min(step, p.bytes - at);
      char* to = home ? home + at : piece.data();
      file.read_bytes(*e, at, n, to);
      hash.add(to, static_cast<size_t>(n));
      if (!home) store.write(unit, p.plane, at, to, n);
    }
  }
  if (hash.hex() != f.hash) fail(file.path() + ": its checksum does not fit; it is damaged");
}

}  // namespace megatrain
