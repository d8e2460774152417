#pragma once
// defines: read_text_file, write_file_atomically, DirectoryWriter — small file helpers, all errors named.

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
