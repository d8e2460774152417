#include "io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>  // renameat2
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "core/say.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

std::string reason() {
  return std::strerror(errno);
}

}  // namespace

std::string read_text_file(const std::string& path) {
  if (fs::is_directory(path)) fail(path + ": is a directory, a file was expected");
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(fmt::format("{}: cannot open ({}); check the path", path, reason()));
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

void write_all(int fd, const void* data, int64_t bytes, const std::string& path) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd, p, static_cast<size_t>(bytes < (1 << 30) ? bytes : (1 << 30)));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      fail(fmt::format("{}: write failed ({}); free some space or choose another place", path, reason()));
    p += n, bytes -= n;
  }
}

void sync_path(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY);
  if (fd < 0) fail(fmt::format("{}: cannot open for sync ({})", path, reason()));
  const int rc = ::fsync(fd);
  const std::string why = reason();
  ::close(fd);
  if (rc != 0) fail(fmt::format("{}: fsync failed ({})", path, why));
}

void write_file_atomically(const std::string& path, const std::string& content) {
  const std::string temporary = path + ".tmp";
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) fail(fmt::format("{}: cannot create ({}); check the path and its permissions", path, reason()));
  try {
    write_all(fd, content.data(), static_cast<int64_t>(content.size()), path);
  } catch (...) {
    ::close(fd);
    ::unlink(temporary.c_str());
    throw;
  }
  const bool ok = ::fsync(fd) == 0;
  if (::close(fd) != 0 || !ok || ::rename(temporary.c_str(), path.c_str()) != 0)
    fail(fmt::format("{}: cannot finish writing ({})", path, reason()));
}

void ensure_writable_directory(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  const std::string probe = path + "/.megatrain-probe";
  const int fd = error ? -1 : ::open(probe.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0)
    fail(fmt::format("{}: cannot write there ({}); choose another output directory", path,
                     error ? error.message() : reason()));
  ::close(fd);
  ::unlink(probe.c_str());
}

int64_t free_bytes(const std::string& path) {
  struct statvfs s {};
  if (::statvfs(path.c_str(), &s) != 0)
    fail(fmt::format("{}: cannot tell what is free ({})", path, reason()));
  return static_cast<int64_t>(s.f_bavail) * static_cast<int64_t>(s.f_frsize);
}

void replace_directory(const std::string& from, const std::string& to) {
  const std::string old = from + ".old";
  std::error_code error;
  fs::remove_all(old, error);
  const bool exchanged =
      fs::exists(to) && ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0;
  if (!exchanged && fs::exists(to)) fs::rename(to, old, error);
  if (!exchanged && !error) fs::rename(from, to, error);
  if (error) fail(fmt::format("{}: cannot move the new directory into place ({})", to, error.message()));
  const fs::path parent = fs::path(to).parent_path();
  sync_path(parent.empty() ? "." : parent.string());
  fs::remove_all(exchanged ? from : old, error);
}

AppendFile::AppendFile(std::string path, int flags)
    : path_(std::move(path)), fd_(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | flags, 0644)) {
  if (fd_ < 0) fail(fmt::format("{}: cannot open ({}); choose another out_dir", path_, reason()));
}

AppendFile::~AppendFile() {
  write_pending();
  ::close(fd_);
}

void AppendFile::append(const std::string& record) {
  pending_ += record;
  if (write_pending() || complained_) return;
  warn("{}: write failed ({}); it is tried again with what follows\n", path_, reason());
  complained_ = true;
}

bool AppendFile::write_pending() {
  while (!pending_.empty()) {
    const ssize_t n = ::write(fd_, pending_.data(), pending_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    pending_.erase(0, static_cast<size_t>(n));
  }
  complained_ = false;
  return true;
}

void AppendFile::sync() {
  if (!write_pending() || ::fsync(fd_) != 0)
    fail(fmt::format("{}: cannot be brought to disk ({}); free some space", path_, reason()));
}

DirectoryLock::DirectoryLock(const std::string& directory) {
  const std::string path = directory + "/.lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(fmt::format("{}: cannot create ({}); choose another directory", path, reason()));
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) {
    const std::string pid = fmt::format("{}\n", ::getpid());
    if (::ftruncate(fd_, 0) == 0) write_all(fd_, pid.data(), static_cast<int64_t>(pid.size()), path);
    return;
  }
  if (errno != EWOULDBLOCK) return;  // a file system without locks
  ::close(fd_);
  std::string pid = read_text_file(path);
  pid.erase(pid.find_last_not_of('\n') + 1);
  fail(
      fmt::format("{}: another megatrain (process {}) writes there; wait for it, or choose another directory",
                  directory, pid));
}

DirectoryLock::~DirectoryLock() {
  ::close(fd_);
}

DirectoryWriter::DirectoryWriter(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {
  std::error_code error;
  fs::remove_all(temporary_, error);
  ensure_writable_directory(temporary_);
}

DirectoryWriter::~DirectoryWriter() {
  std::error_code ignored;
  if (!done_) fs::remove_all(temporary_, ignored);
}

void DirectoryWriter::commit() {
  for (const auto& entry : fs::directory_iterator(temporary_)) sync_path(entry.path());
  sync_path(temporary_);
  replace_directory(temporary_, path_);
  done_ = true;
}

}  // namespace megatrain
