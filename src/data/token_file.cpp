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
  map_file();
  try {
    read_header(vocab_size);
    for (int64_t i = 0; i < std::min(size_, kScanLimit); ++i)
      if (token(i) >= static_cast<uint64_t>(vocab_size_)) refuse_token(i);
  } catch (...) {
    ::munmap(map_, static_cast<size_t>(mapped_));
    throw;
  }
}

void TokenFile::map_file() {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    fail(fmt::format("{}: cannot open ({}); make it with 'megatrain prepare' or check the path", path_,
                     std::strerror(errno)));
  struct stat st {};
  ::fstat(fd, &st);
  mapped_ = S_ISREG(st.st_mode) ? st.st_size : -1;
  map_ =
      mapped_ > 0 ? ::mmap(nullptr, static_cast<size_t>(mapped_), PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
  const std::string why = std::strerror(errno);
  ::close(fd);
  if (mapped_ < 0) fail(path_ + ": is not a file");
  if (mapped_ == 0) fail(path_ + ": is empty; make it with 'megatrain prepare'");
  if (map_ == MAP_FAILED) fail(fmt::format("{}: cannot map ({})", path_, why));
}

void TokenFile::read_header(int64_t vocab_size) {
  data_ = static_cast<const unsigned char*>(map_);
  TokenFileHeader h;
  const bool headed = mapped_ >= 8 && std::memcmp(data_, h.magic, 8) == 0;
  if (!headed) {
    if (mapped_ % 2 != 0)
      fail(fmt::format("{}: has {} bytes, an odd number; a .bin holds uint16 tokens, so it is damaged", path_,
                       mapped_));
    size_ = mapped_ / 2;
    return;
  }
  if (mapped_ < static_cast<int64_t>(sizeof h)) fail(path_ + ": ends inside its header; it is damaged");
  std::memcpy(&h, data_, sizeof h);
  if (h.version != 1)
    fail(fmt::format("{}: is of version {}, this program reads version 1; prepare the data again", path_,
                     h.version));
  const bool known = h.token_bytes == 2 || h.token_bytes == 4;
  const auto room = static_cast<uint64_t>(mapped_) - sizeof h;
  if (!known || h.tokens == 0 || h.tokens > room / h.token_bytes)
    fail(path_ + ": its header does not fit its size; it is damaged");
  if (h.vocab_size > static_cast<uint64_t>(vocab_size))
    fail(fmt::format("{}: was made with a vocabulary of {}, the model has {}", path_, h.vocab_size,
                     vocab_size));
  data_ += sizeof h;
  marked_ = (h.flags & TokenFileHeader::kMarked) != 0;
  if (marked_ && h.token_bytes != 4)
    fail(path_ + ": its header is not one that this program writes; it is damaged");
  wide_ = h.token_bytes == 4, size_ = static_cast<int64_t>(h.tokens);
  read_documents(h);
}

void TokenFile::read_documents(const TokenFileHeader& h) {
  if (h.documents == 0) return;
  const uint64_t at = (h.tokens * h.token_bytes + 7) / 8 * 8,
                 room = static_cast<uint64_t>(mapped_) - sizeof h;
  if (at > room || h.documents >= (room - at) / 8)
    fail(path_ + ": its documents do not fit its size; it is damaged");
  starts_ = reinterpret_cast<const uint64_t*>(data_ + at);
  documents_ = static_cast<int64_t>(h.documents);
  for (int64_t i = 0; i < documents_; ++i)
    if (starts_[i] > starts_[i + 1]) fail(path_ + ": its documents overlap; it is damaged");
  if (starts_[0] != 0 || starts_[documents_] != h.tokens)
    fail(path_ + ": its documents do not cover it; it is damaged");
}

std::pair<int64_t, int64_t> TokenFile::document(int64_t i) const {
  return {static_cast<int64_t>(starts_[i]), static_cast<int64_t>(starts_[i + 1] - starts_[i])};
}

void TokenFile::refuse_token(int64_t position) const {
  fail(fmt::format(
      "{}: token {} at position {} is outside the vocabulary of {}; the data was made with another tokenizer",
      path_, token(position), position, vocab_size_));
}

TokenFile::~TokenFile() {
  ::munmap(map_, static_cast<size_t>(mapped_));
}

void TokenFile::read(int64_t first, int64_t count, int32_t* out) const {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t t = token(first + i);
    if (t >= static_cast<uint64_t>(vocab_size_)) refuse_token(first + i);
    out[i] = static_cast<int32_t>(t);
  }
}

std::string token_file_name(const std::string& stem, int64_t vocab_size) {
  return stem + (vocab_size > 65536 ? ".mtbin" : ".bin");
}

void write_token_file(const std::string& path, const std::vector<int32_t>& ids, int64_t vocab_size) {
  std::string bytes;
  if (path.ends_with(".mtbin")) {
    TokenFileHeader h;
    h.tokens = ids.size(), h.vocab_size = static_cast<uint64_t>(vocab_size);
    bytes.assign(reinterpret_cast<const char*>(&h), sizeof h);
    bytes.append(reinterpret_cast<const char*>(ids.data()), ids.size() * 4);
  } else {
    bytes.resize(ids.size() * 2);
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto t = static_cast<uint16_t>(ids[i]);
      std::memcpy(&bytes[2 * i], &t, 2);
    }
  }
  write_file_atomically(path, bytes);
}

DocumentWriter::DocumentWriter(const std::string& path, int64_t vocab_size)
    : path_(path), temporary_(path + ".tmp"), vocab_size_(vocab_size) {
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(fmt::format("{}: cannot create ({})", path, std::strerror(errno)));
  buffer_.assign(sizeof(TokenFileHeader), '\0');  // filled in by finish()
}

DocumentWriter::~DocumentWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void DocumentWriter::flush() {
  write_all(fd_, buffer_.data(), static_cast<int64_t>(buffer_.size()), path_);
  buffer_.clear();
}

void DocumentWriter::add(const std::vector<int32_t>& ids, const std::vector<bool>& trained) {
  starts_.push_back(tokens_);
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t t = static_cast<uint32_t>(ids[i]) | (trained[i] ? 0 : TokenFileHeader::kContext);
    buffer_.append(reinterpret_cast<const char*>(&t), sizeof t);
  }
  tokens_ += ids.size();
  if (buffer_.size() > (size_t{8} << 20)) flush();
}

void DocumentWriter::finish() {
  buffer_.append(tokens_ % 2 * 4, '\0');
  TokenFileHeader h;
  h.tokens = tokens_, h.documents = starts_.size(), h.vocab_size = static_cast<uint64_t>(vocab_size_);
  h.flags = TokenFileHeader::kMarked;
  flush();
  starts_.push_back(tokens_);
  write_all(fd_, starts_.data(), static_cast<int64_t>(starts_.size() * 8), path_);
  starts_.pop_back();
  const bool whole = ::pwrite(fd_, &h, sizeof h, 0) == static_cast<ssize_t>(sizeof h) && ::fsync(fd_) == 0;
  if (!whole || ::rename(temporary_.c_str(), path_.c_str()) != 0)
    fail(fmt::format("{}: cannot finish writing ({})", path_, std::strerror(errno)));
  ::close(fd_);
  fd_ = -1;
}

}  // namespace megatrain
