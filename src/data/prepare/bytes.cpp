#include "data/prepare/bytes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "core/error.h"

namespace megatrain {
namespace {

class PlainReader : public ByteReader {
 public:
  explicit PlainReader(std::string path) : path_(std::move(path)) {
    fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) fail(fmt::format("{}: cannot open ({}); check the path", path_, std::strerror(errno)));
  }
  ~PlainReader() override { ::close(fd_); }
  PlainReader(const PlainReader&) = delete;
  PlainReader& operator=(const PlainReader&) = delete;

  size_t read(char* out, size_t bytes) override {
    while (true) {
      const ssize_t n = ::read(fd_, out, bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail(fmt::format("{}: cannot read ({})", path_, std::strerror(errno)));
      consumed_ += n;
      return static_cast<size_t>(n);
    }
  }
  int64_t consumed() const override { return consumed_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
  int64_t consumed_ = 0;
};

/// Bytes of the file that a decompressor has not taken yet.
struct Input {
  explicit Input(const std::string& path) : file(path), buffer(size_t{1} << 17) {}
  bool refill() {
    begin = 0;
    end = file.read(buffer.data(), buffer.size());
    return end > 0;
  }
  PlainReader file;
  std::vector<char> buffer;
  size_t begin = 0, end = 0;
};

class GzipReader : public ByteReader {
 public:
  explicit GzipReader(const std::string& path) : in_(path) {
    if (inflateInit2(&z_, 15 + 16) != Z_OK) fail("zlib cannot be initialised");
  }
  ~GzipReader() override { inflateEnd(&z_); }
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  size_t read(char* out, size_t bytes) override {
    z_.next_out = reinterpret_cast<Bytef*>(out), z_.avail_out = static_cast<uInt>(bytes);
    while (z_.avail_out == bytes) {
      if (in_.begin == in_.end && !in_.refill()) {
        if (!between_) fail(in_.file.path() + ": ends in the middle of its gzip data");
        return 0;
      }
      if (between_) inflateReset(&z_), between_ = false;  // members follow one another
      z_.next_in = reinterpret_cast<Bytef*>(&in_.buffer[in_.begin]);
      z_.avail_in = static_cast<uInt>(in_.end - in_.begin);
      const int rc = inflate(&z_, Z_NO_FLUSH);
      in_.begin = in_.end - z_.avail_in;
      if (rc == Z_STREAM_END)
        between_ = true;
      else if (rc != Z_OK && rc != Z_BUF_ERROR)
        fail(in_.file.path() + ": is damaged (gzip)");
    }
    return bytes - z_.avail_out;
  }
  int64_t consumed() const override { return in_.file.consumed(); }

 private:
  Input in_;
  z_stream z_{};
  bool between_ = true;
};

class ZstdReader : public ByteReader {
 public:
  explicit ZstdReader(const std::string& path) : in_(path), z_(ZSTD_createDStream()) {
    ZSTD_DCtx_setParameter(z_, ZSTD_d_windowLogMax, 31);
  }
  ~ZstdReader() override { ZSTD_freeDStream(z_); }
  ZstdReader(const ZstdReader&) = delete;
  ZstdReader& operator=(const ZstdReader&) = delete;

  size_t read(char* out, size_t bytes) override {
    ZSTD_outBuffer o{out, bytes, 0};
    while (o.pos == 0) {
      if (in_.begin == in_.end && !in_.refill()) {
        if (pending_ != 0) fail(in_.file.path() + ": ends in the middle of its zstd data");
        return 0;
      }
      ZSTD_inBuffer i{in_.buffer.data(), in_.end, in_.begin};
      pending_ = ZSTD_decompressStream(z_, &o, &i);
      in_.begin = i.pos;
      if (ZSTD_isError(pending_))
        fail(fmt::format("{}: is damaged (zstd: {})", in_.file.path(), ZSTD_getErrorName(pending_)));
    }
    return o.pos;
  }
  int64_t consumed() const override { return in_.file.consumed(); }

 private:
  Input in_;
  ZSTD_DStream* z_;
  size_t pending_ = 0;
};

}  // namespace

std::unique_ptr<ByteReader> ByteReader::open(const std::string& path) {
  if (path.ends_with(".gz")) return std::make_unique<GzipReader>(path);
  if (path.ends_with(".zst")) return std::make_unique<ZstdReader>(path);
  return std::make_unique<PlainReader>(path);
}

std::string without_compression(const std::string& path) {
  for (const char* ending : {".gz", ".zst"})
    if (path.ends_with(ending)) return path.substr(0, path.size() - std::strlen(ending));
  return path;
}

}  // namespace megatrain
