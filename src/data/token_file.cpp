#include "data/token_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "io/file.h"

namespace megatrain {
namespace {

constexpr int64_t kScanLimit = int64_t{1} << 29;  // tokens

}  // namespace

TokenFile::TokenFile(const std::string& path, int64_t vocab_size) : path_(path), vocab_size_(vocab_size) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    fail(fmt::format("{}: cannot open ({}); make it with 'megatrain prepare' or check the path", path,
                     std::strerror(errno)));
  struct stat st {};
  ::fstat(fd, &st);
  const int64_t bytes = S_ISREG(st.st_mode) ? st.st_size : -1;
  void* map = bytes > 0 && bytes % 2 == 0
                  ? ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ, MAP_SHARED, fd, 0)
                  : MAP_FAILED;
  ::close(fd);
  if (bytes < 0) fail(path + ": is not a file");
  if (bytes == 0) fail(path + ": is empty; make it with 'megatrain prepare'");
  if (bytes % 2 != 0)
    fail(fmt::format("{}: has {} bytes, an odd number; a .bin holds uint16 tokens, so it is damaged", path,
                     bytes));
  if (map == MAP_FAILED) fail(fmt::format("{}: cannot map ({})", path, std::strerror(errno)));
  data_ = static_cast<const uint16_t*>(map);
  size_ = bytes / 2;
  const int64_t scan = std::min(size_, kScanLimit);
  const auto* bad = std::find_if(data_, data_ + scan, [&](uint16_t t) { return t >= vocab_size; });
  if (bad == data_ + scan) return;
  const auto where = bad - data_;
  const int token = *bad;
  ::munmap(map, static_cast<size_t>(bytes));
  fail(fmt::format(
      "{}: token {} at position {} is outside the vocabulary of {}; the data was made with another tokenizer",
      path, token, where, vocab_size));
}

TokenFile::~TokenFile() {
  ::munmap(const_cast<uint16_t*>(data_), static_cast<size_t>(size_) * 2);
}

void TokenFile::read(int64_t first, int64_t count, int32_t* out) const {
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t t = data_[first + i];
    if (t >= vocab_size_)
      fail(fmt::format("{}: token {} at position {} is outside the vocabulary of {}", path_, t, first + i,
                       vocab_size_));
    out[i] = t;
  }
}

void write_token_file(const std::string& path, const std::vector<int32_t>& ids) {
  std::string bytes(ids.size() * 2, '\0');
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto t = static_cast<uint16_t>(ids[i]);
    std::memcpy(&bytes[2 * i], &t, 2);
  }
  write_file_atomically(path, bytes);
}

}  // namespace megatrain
