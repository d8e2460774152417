#include "io/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "core/dtype.h"
#include "core/error.h"
#include "io/file.h"
#include "io/json.h"

namespace megatrain {
namespace {

constexpr int64_t kMaxHeader = 100'000'000;  // as the reference implementation

float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, exponent = (h >> 10) & 31u,
                 mantissa = h & 1023u;
  if (exponent == 31) return bits_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return bits_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1.0p-24f;
  return sign ? -magnitude : magnitude;
}

uint16_t float_to_half(float x) {
  const uint32_t bits = float_bits(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {                                               // subnormal: units of 2^-24
    const float units = std::nearbyint(bits_float(magnitude) * 0x1.0p24f);
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(units));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

template <class F>
void convert_halves(const std::vector<uint16_t>& raw, float* out, F f) {
  for (size_t i = 0; i < raw.size(); ++i) out[i] = f(raw[i]);
}

}  // namespace

int64_t SafetensorsEntry::numel() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) fail(fmt::format("{}: cannot open ({}); check the path", path, std::strerror(errno)));
  try {
    struct stat st {};
    if (::fstat(fd_, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < 8)
      fail(path + ": is not a safetensors file (too short or not a regular file)");
    size_ = st.st_size;
    SafetensorsEntry head;
    head.bytes = size_;
    uint64_t length = 0;
    read_bytes(head, 0, 8, &length);
    if (length < 2 || length > kMaxHeader || static_cast<int64_t>(length) + 8 > size_)
      fail(fmt::format("{}: header of {} bytes does not fit a file of {}; truncated or not safetensors", path,
                       length, size_));
    std::string header(length, '\0');
    read_bytes(head, 8, static_cast<int64_t>(length), header.data());
    parse(header, static_cast<int64_t>(length) + 8);
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() {
  ::close(fd_);
}

void SafetensorsFile::parse(const std::string& header, int64_t data_start) {
  const nlohmann::json json = parse_json(header, path_ + ": the header");
  if (!json.is_object()) fail(path_ + ": the header is not a JSON object; the file is damaged");
  int64_t should_be = 0;
  for (const auto& [name, value] : json.items()) {
    try {
      if (name == "__metadata__") {
        metadata_ = value.get<std::map<std::string, std::string>>();
        continue;
      }
      SafetensorsEntry e;
      e.dtype = value.at("dtype").get<std::string>();
      e.shape = value.at("shape").get<std::vector<int64_t>>();
      const auto offsets = value.at("data_offsets").get<std::vector<int64_t>>();
      int64_t bytes = element_size(e.dtype);
      bool ok = bytes > 0 && offsets.size() == 2;
      for (int64_t d : e.shape) ok = ok && d >= 0 && !__builtin_mul_overflow(bytes, d, &bytes);
      ok = ok && offsets[0] >= 0 && offsets[0] <= offsets[1] && offsets[1] - offsets[0] == bytes;
      if (!ok) fail(fmt::format("{}: tensor '{}' has a bad dtype, shape or offset", path_, name));
      should_be = std::max(should_be, offsets[1]);
      e.offset = data_start + offsets[0], e.bytes = bytes;
      entries_.emplace(name, std::move(e));
    } catch (const nlohmann::json::exception&) {
      fail(fmt::format("{}: the header entry of '{}' is malformed", path_, name));
    }
  }
  if (should_be > size_ - data_start)
    fail(fmt::format("{}: the file ends early: it has {} bytes and should have {}; download or copy it again",
                     path_, size_, data_start + should_be));
  check_layout(data_start);
}

void SafetensorsFile::check_layout(int64_t data_start) const {
  std::vector<std::pair<int64_t, const std::pair<const std::string, SafetensorsEntry>*>> order;
  for (const auto& e : entries_) order.emplace_back(e.second.offset, &e);
  std::sort(order.begin(), order.end(), [](auto& a, auto& b) {
    return a.first != b.first ? a.first < b.first : a.second->second.bytes < b.second->second.bytes;
  });
  int64_t at = data_start;
  for (const auto& [offset, entry] : order) {
    if (offset != at)
      fail(fmt::format("{}: tensor '{}' overlaps another or leaves a hole", path_, entry->first));
    at = offset + entry->second.bytes;
  }
  if (at != size_) fail(path_ + ": bytes after the last tensor; the file is damaged");
}

const SafetensorsEntry* SafetensorsFile::find(const std::string& name) const {
  const auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second;
}

void SafetensorsFile::read_bytes(const SafetensorsEntry& e, int64_t first, int64_t bytes, void* out) const {
  if (first < 0 || bytes < 0 || first > e.bytes - bytes)
    throw std::logic_error(path_ + ": read out of range");
  auto* at = static_cast<char*>(out);
  for (int64_t offset = e.offset + first; bytes > 0;) {
    const ssize_t n = ::pread(fd_, at, static_cast<size_t>(bytes), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      fail(fmt::format("{}: cannot read ({}); copy the file again", path_,
                       n < 0 ? std::strerror(errno) : "it became shorter"));
    at += n, offset += n, bytes -= n;
  }
}

void SafetensorsFile::read_f32(const SafetensorsEntry& e, int64_t first, int64_t count, float* out) const {
  if (e.dtype == "F32") return read_bytes(e, first * 4, count * 4, out);
  if (!is_float_dtype(e.dtype))
    fail(fmt::format("{}: a tensor of type {} where F32, F16 or BF16 was expected", path_, e.dtype));
  std::vector<uint16_t> raw(static_cast<size_t>(count));
  read_bytes(e, first * 2, count * 2, raw.data());
  if (e.dtype == "BF16")
    convert_halves(raw, out, [](uint16_t h) { return bits_float(static_cast<uint32_t>(h) << 16); });
  else
    convert_halves(raw, out, half_to_float);
}

bool is_float_dtype(const std::string& dtype) {
  return dtype == "F32" || dtype == "BF16" || dtype == "F16";
}

bool encode_f32(const float* values, int64_t count, const std::string& dtype, void* out) {
  auto* halves = static_cast<uint16_t*>(out);
  bool fits = true;
  if (dtype == "F32") {
    std::memcpy(out, values, static_cast<size_t>(count) * 4);
  } else if (dtype == "BF16") {
    for (int64_t i = 0; i < count; ++i) halves[i] = split_float(values[i]).hi;
  } else {
    for (int64_t i = 0; i < count; ++i) {
      halves[i] = float_to_half(values[i]);
      fits &= !std::isfinite(values[i]) || (halves[i] & 0x7c00u) != 0x7c00u;
    }
  }
  return fits;
}

int64_t element_size(const std::string& dtype) {
  static const std::pair<const char*, int64_t> sizes[] = {
      {"F64", 8}, {"I64", 8}, {"U64", 8}, {"F32", 4}, {"I32", 4},  {"U32", 4},     {"F16", 2},    {"BF16", 2},
      {"I16", 2}, {"U16", 2}, {"I8", 1},  {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  for (const auto& [name, size] : sizes)
    if (dtype == name) return size;
  return 0;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void SafetensorsWriter::declare(const std::string& name, const std::string& dtype,
                                std::vector<int64_t> shape) {
  SafetensorsEntry e;
  e.dtype = dtype, e.shape = std::move(shape);
  e.bytes = e.numel() * element_size(dtype);
  declared_ += e.bytes;
  tensors_.emplace_back(name, std::move(e));
}

void SafetensorsWriter::begin() {
  nlohmann::ordered_json json;
  json["__metadata__"] = {{"format", "pt"}};  // transformers refuses a file without it
  int64_t at = 0;
  for (const auto& [name, e] : tensors_) {
    json[name] = {{"dtype", e.dtype}, {"shape", e.shape}, {"data_offsets", {at, at + e.bytes}}};
    at += e.bytes;
  }
  std::string header = json.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(fmt::format("{}: cannot create ({})", path_, std::strerror(errno)));
  write_all(fd_, &length, 8, path_);
  write_all(fd_, header.data(), static_cast<int64_t>(header.size()), path_);
}

void SafetensorsWriter::append(const void* data, int64_t bytes) {
  write_all(fd_, data, bytes, path_);
  written_ += bytes;
}

void SafetensorsWriter::finish() {
  if (written_ != declared_) throw std::logic_error(path_ + ": declared and written bytes differ");
  if (::fsync(fd_) != 0) fail(fmt::format("{}: fsync failed ({})", path_, std::strerror(errno)));
  ::close(fd_);
  fd_ = -1;
}

}  // namespace megatrain
