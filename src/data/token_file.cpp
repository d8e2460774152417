#include "data/token_file.h"

#include <fcntl.h>
#include <fmt/format.h>
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
constexpr int64_t kPiece = int64_t{1} << 18;      // tokens read at a time

}  // namespace

TokenFile::TokenFile(const std::string& path, int64_t vocab_size) : path_(path), vocab_size_(vocab_size) {
  open_file();
  try {
    read_header(vocab_size);
    read_documents();
    checksum_ = size() <= kScanLimit ? verify({}) : header_.checksum;
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

TokenFile::~TokenFile() {
  ::close(fd_);
}

void TokenFile::open_file() {
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0)
    fail(fmt::format("{}: cannot open ({}); make it with 'megatrain prepare' or check the path", path_,
                     std::strerror(errno)));
  struct stat st {};
  ::fstat(fd_, &st);
  bytes_ = S_ISREG(st.st_mode) ? st.st_size : -1;
  if (bytes_ > 0) return;
  ::close(fd_);
  fail(path_ + (bytes_ < 0 ? ": is not a file" : ": is empty; make it with 'megatrain prepare'"));
}

void TokenFile::read_bytes(int64_t at, void* out, int64_t bytes) const {
  auto* p = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_, p, static_cast<size_t>(bytes), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(fmt::format("{}: cannot read ({})", path_, std::strerror(errno)));
    if (n == 0) fail(path_ + ": has become shorter while it is in use; prepare the data again");
    p += n, at += n, bytes -= n;
  }
}

void TokenFile::read_header(int64_t vocab_size) {
  const TokenFileHeader usual;
  const int64_t n = std::min<int64_t>(bytes_, sizeof header_);
  read_bytes(0, &header_, n);
  if (n < 8 || std::memcmp(header_.magic, usual.magic, 8) != 0) {
    header_ = usual;
    if (path_.ends_with(".mtbin")) fail(path_ + ": does not begin as a .mtbin does; it is damaged");
    if (bytes_ % 2 != 0)
      fail(fmt::format("{}: has {} bytes, an odd number; a .bin holds uint16 tokens, so it is damaged", path_,
                       bytes_));
    header_.token_bytes = 2, header_.tokens = static_cast<uint64_t>(bytes_ / 2);
    return;
  }
  if (n < static_cast<int64_t>(sizeof header_)) fail(path_ + ": ends inside its header; it is damaged");
  const TokenFileHeader& h = header_;
  if (h.version != usual.version)
    fail(fmt::format("{}: is of version {}, this program reads version {}; prepare the data again", path_,
                     h.version, usual.version));
  first_byte_ = sizeof h;
  const bool known = h.token_bytes == 2 || h.token_bytes == 4;
  const auto room = static_cast<uint64_t>(bytes_ - first_byte_);
  if (!known || h.tokens == 0 || h.tokens > room / h.token_bytes || (marked() && h.token_bytes != 4))
    fail(path_ + ": its header does not fit its size; it is damaged");
  if (h.vocab_size > static_cast<uint64_t>(vocab_size))
    fail(fmt::format("{}: was made with a vocabulary of {}, the model has {}", path_, h.vocab_size,
                     vocab_size));
}

void TokenFile::read_documents() {
  const TokenFileHeader& h = header_;
  const uint64_t bare = h.tokens * h.token_bytes, at = (bare + 7) / 8 * 8,
                 room = static_cast<uint64_t>(bytes_ - first_byte_);
  const bool fits = h.documents == 0 ? room == at || room == bare
                                     : at < room && room % 8 == 0 && h.documents == (room - at) / 8 - 1;
  if (!fits) fail(path_ + ": its header does not fit its size; it is damaged");
  if (h.documents == 0) return;
  starts_.resize(h.documents + 1);
  read_bytes(first_byte_ + static_cast<int64_t>(at), starts_.data(),
             static_cast<int64_t>(starts_.size() * 8));
  if (!std::is_sorted(starts_.begin(), starts_.end())) fail(path_ + ": its documents overlap; it is damaged");
  if (starts_.front() != 0 || starts_.back() != h.tokens)
    fail(path_ + ": its documents do not cover it; it is damaged");
  if (pairs() && h.documents % 2 != 0) fail(path_ + ": a preference pair is not whole; it is damaged");
}

std::pair<int64_t, int64_t> TokenFile::document(int64_t i) const {
  const auto at = static_cast<size_t>(i);
  return {static_cast<int64_t>(starts_[at]), static_cast<int64_t>(starts_[at + 1] - starts_[at])};
}

void TokenFile::refuse_token(uint32_t token, int64_t position) const {
  fail(fmt::format(
      "{}: token {} at position {} is outside the vocabulary of {}; the data was made with another tokenizer",
      path_, token, position, vocab_size_));
}

void TokenFile::read(int64_t first, int64_t count, int32_t* out, uint8_t* context) const {
  const bool wide = header_.token_bytes == 4, marks = marked();
  std::vector<uint16_t> narrow(wide ? 0 : static_cast<size_t>(count));
  read_bytes(first_byte_ + first * header_.token_bytes, wide ? static_cast<void*>(out) : narrow.data(),
             count * header_.token_bytes);
  for (int64_t i = 0; i < count; ++i) {
    uint32_t t = wide ? static_cast<uint32_t>(out[i]) : narrow[static_cast<size_t>(i)];
    if (context) context[i] = marks && (t & TokenFileHeader::kContext);
    if (marks) t &= ~TokenFileHeader::kContext;
    if (t >= static_cast<uint64_t>(vocab_size_)) refuse_token(t, first + i);
    out[i] = static_cast<int32_t>(t);
  }
}

uint64_t TokenFile::verify(const ProgressFn& progress) const {
  Checksum sum;
  std::vector<int32_t> tokens(static_cast<size_t>(std::min(kPiece, size())));
  std::vector<uint8_t> context(tokens.size());
  for (int64_t at = 0; at < size(); at += kPiece) {
    const int64_t n = std::min(kPiece, size() - at);
    read(at, n, tokens.data(), context.data());
    for (size_t i = 0; i < static_cast<size_t>(n); ++i)
      sum.add(static_cast<uint32_t>(tokens[i]) | (context[i] ? TokenFileHeader::kContext : 0));
    if (progress) progress(static_cast<double>(at + n) / static_cast<double>(size()));
  }
  for (uint64_t s : starts_) sum.add(s);
  if (first_byte_ == 0) return sum.state;  // a .bin has none to compare with
  sum.add(header_);
  if (header_.checksum != sum.state)
    fail(path_ + ": its checksum does not fit what it holds; it is damaged, prepare the data again");
  return sum.state;
}

TokenFormat TokenFormat::plain(int64_t vocab_size) {
  TokenFormat f;
  f.headed = f.wide = vocab_size > 65536;
  f.vocab_size = static_cast<uint64_t>(vocab_size);
  return f;
}

TokenWriter::TokenWriter(const std::string& path, const TokenFormat& format)
    : TokenWriter(path, format, State{}) {}

TokenWriter::TokenWriter(const std::string& path, const TokenFormat& format, const State& state)
    : path_(path), tokens_path_(path + ".tmp"), index_path_(path + ".index.tmp"), format_(format) {
  try {
    open_files(state);
  } catch (...) {
    if (fd_ >= 0) ::close(fd_);
    if (index_fd_ >= 0) ::close(index_fd_);
    throw;
  }
}

// Cuts the files to where `from` says that they were; a fresh one starts from nothing.
void TokenWriter::open_files(const State& from) {
  auto open_at = [&](const std::string& name, uint64_t bytes) {
    const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) fail(fmt::format("{}: cannot create ({})", name, std::strerror(errno)));
    struct stat st {};
    ::fstat(fd, &st);
    if (static_cast<uint64_t>(st.st_size) < bytes) {
      ::close(fd);
      fail(name + ": holds less than its progress record says; delete the output directory and start again");
    }
    if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0 || ::lseek(fd, 0, SEEK_END) < 0) {
      ::close(fd);
      fail(fmt::format("{}: cannot be cut ({})", name, std::strerror(errno)));
    }
    return fd;
  };
  const bool fresh = from.tokens == 0 && from.documents == 0;
  const uint64_t head = format_.headed && !fresh ? sizeof(TokenFileHeader) : 0;
  fd_ = open_at(tokens_path_, head + from.tokens * (format_.wide ? 4 : 2));
  if (format_.headed) index_fd_ = open_at(index_path_, from.documents * 8);
  state_ = from;
  if (format_.headed && fresh) buffer_.assign(sizeof(TokenFileHeader), '\0');  // filled in by finish()
}

TokenWriter::~TokenWriter() {
  if (fd_ >= 0) ::close(fd_);
  if (index_fd_ >= 0) ::close(index_fd_);
  if (fd_ < 0 || keep_) return;
  ::unlink(tokens_path_.c_str());
  ::unlink(index_path_.c_str());
}

void TokenWriter::flush() {
  std::string out;
  out.swap(buffer_);
  write_all(fd_, out.data(), static_cast<int64_t>(out.size()), path_);
  out.clear();
  out.swap(index_buffer_);
  if (index_fd_ >= 0) write_all(index_fd_, out.data(), static_cast<int64_t>(out.size()), index_path_);
}

void TokenWriter::begin_document() {
  if (!format_.headed) return;
  index_buffer_.append(reinterpret_cast<const char*>(&state_.tokens), 8);
  ++state_.documents;
}

void TokenWriter::add(const int32_t* ids, int64_t count, const uint8_t* trained) {
  Checksum sum{state_.checksum};
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t t =
        static_cast<uint32_t>(ids[i]) | (trained && !trained[i] ? TokenFileHeader::kContext : 0);
    sum.add(t);
    buffer_.append(reinterpret_cast<const char*>(&t), format_.wide ? 4 : 2);  // little-endian
  }
  state_.checksum = sum.state;
  state_.tokens += static_cast<uint64_t>(count);
  if (buffer_.size() > (size_t{8} << 20)) flush();
}

TokenWriter::State TokenWriter::sync() {
  flush();
  if (::fsync(fd_) != 0 || (index_fd_ >= 0 && ::fsync(index_fd_) != 0))
    fail(fmt::format("{}: cannot bring it to disk ({})", path_, std::strerror(errno)));
  return state_;
}

void TokenWriter::finish() {
  flush();
  if (format_.headed) {
    const uint64_t token_bytes = format_.wide ? 4 : 2, pad = (8 - state_.tokens * token_bytes % 8) % 8;
    Checksum sum{state_.checksum};
    buffer_.append(pad, '\0');
    std::vector<uint64_t> piece(size_t{1} << 16);
    for (uint64_t at = 0; at < state_.documents; at += piece.size()) {
      piece.resize(std::min<uint64_t>(piece.size(), state_.documents - at));
      const auto bytes = static_cast<ssize_t>(piece.size() * 8);
      if (::pread(index_fd_, piece.data(), static_cast<size_t>(bytes), static_cast<off_t>(at * 8)) != bytes)
        fail(index_path_ + ": cannot be read back");
      for (uint64_t s : piece) sum.add(s);
      buffer_.append(reinterpret_cast<const char*>(piece.data()), static_cast<size_t>(bytes));
      write_all(fd_, buffer_.data(), static_cast<int64_t>(buffer_.size()), path_);
      buffer_.clear();
    }
    if (state_.documents > 0) {
      sum.add(state_.tokens);
      buffer_.append(reinterpret_cast<const char*>(&state_.tokens), 8);
    }
    flush();
    TokenFileHeader h;
    h.token_bytes = static_cast<uint32_t>(token_bytes), h.tokens = state_.tokens,
    h.documents = state_.documents, h.vocab_size = format_.vocab_size,
    h.vocabulary_hash = format_.vocabulary_hash, h.flags = format_.flags;
    sum.add(h);
    h.checksum = sum.state;
    if (::pwrite(fd_, &h, sizeof h, 0) != static_cast<ssize_t>(sizeof h))
      fail(fmt::format("{}: cannot finish writing ({})", path_, std::strerror(errno)));
  }
  if (::fsync(fd_) != 0 || ::rename(tokens_path_.c_str(), path_.c_str()) != 0)
    fail(fmt::format("{}: cannot finish writing ({})", path_, std::strerror(errno)));
  ::close(fd_);
  fd_ = -1;
  ::unlink(index_path_.c_str());
}

void write_token_file(const std::string& path, const std::vector<int32_t>& ids, int64_t vocab_size) {
  TokenFormat f = TokenFormat::plain(vocab_size);
  f.headed = path.ends_with(".mtbin"), f.wide = f.headed;
  TokenWriter w(path, f);
  w.add(ids.data(), static_cast<int64_t>(ids.size()));
  w.finish();
}

}  // namespace megatrain
