#include "io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/error.h"

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
  const std::string old = path_ + ".old";
  std::error_code error;
  fs::remove_all(old, error);
  if (fs::exists(path_)) fs::rename(path_, old, error);
  if (!error) fs::rename(temporary_, path_, error);
  if (error) fail(fmt::format("{}: cannot move the new directory into place ({})", path_, error.message()));
  done_ = true;
  const fs::path parent = fs::path(path_).parent_path();
  sync_path(parent.empty() ? "." : parent.string());
  fs::remove_all(old, error);
}

}  // namespace megatrain
