#pragma once
// defines: read_text_file, write_file_atomically, AppendFile, DirectoryLock, replace_directory,
// DirectoryWriter — small file helpers, all errors named.

#include <cstdint>
#include <string>

namespace megatrain {

std::string read_text_file(const std::string& path);
/// Writes `path` through a temporary name, fsync and rename: whole or absent.
void write_file_atomically(const std::string& path, const std::string& content);
/// write(2) until all bytes are out. Throws Error ("disk full", ...).
void write_all(int fd, const void* data, int64_t bytes, const std::string& path);
/// fsync of a file or directory by path.
void sync_path(const std::string& path);
/// Creates `path` (and parents) and proves that a file can be written there. Throws Error otherwise.
void ensure_writable_directory(const std::string& path);

/// What may still be written where `path` is.
int64_t free_bytes(const std::string& path);

/// Moves the directory `from` to `to`, in place of what was there: at every instant one of the two is at `to`
/// (where the file system cannot exchange names, at `to` or `from`.old). Throws Error.
void replace_directory(const std::string& from, const std::string& to);

/// A file that grows by records. What a full disk refuses is kept and tried again with the next record, so
/// that it costs neither the run nor a record; the first refusal is said on stderr.
class AppendFile {
 public:
  /// `flags`: of open(2), beside O_WRONLY | O_APPEND.
  AppendFile(std::string path, int flags);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  void append(const std::string& record);
  /// Everything is on disk. Throws Error when it cannot be brought there.
  void sync();
  const std::string& path() const { return path_; }

 private:
  bool write_pending();
  std::string path_, pending_;
  int fd_;
  bool complained_ = false;
};

/// Holds a directory against other processes until it is destroyed, or the process ends in any way. Throws
/// Error that names who holds it.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& directory);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int fd_;
};

/// Fills a directory under a temporary name; commit() makes it appear at `path` whole, replacing what was
/// there; without commit() nothing is left behind.
class DirectoryWriter {
 public:
  explicit DirectoryWriter(std::string path);
  ~DirectoryWriter();
  DirectoryWriter(const DirectoryWriter&) = delete;
  DirectoryWriter& operator=(const DirectoryWriter&) = delete;
  std::string file(const std::string& name) const { return temporary_ + "/" + name; }
  void commit();

 private:
  std::string path_, temporary_;
  bool done_ = false;
};

}  // namespace megatrain
