#include "io/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/dtype.h"
#include "core/error.h"
#include "io/file.h"

namespace megatrain {
namespace {

constexpr int64_t kMaxHeader = 100'000'000;  // as the reference implementation

int64_t element_size(const std::string& dtype) {
  static const std::pair<const char*, int64_t> sizes[] = {
      {"F64", 8}, {"I64", 8}, {"U64", 8}, {"F32", 4}, {"I32", 4},  {"U32", 4},     {"F16", 2},    {"BF16", 2},
      {"I16", 2}, {"U16", 2}, {"I8", 1},  {"U8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  for (const auto& [name, size] : sizes)
    if (dtype == name) return size;
  return 0;
}

float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, exponent = (h >> 10) & 31u,
                 mantissa = h & 1023u;
  if (exponent == 31) return bits_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return bits_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1.0p-24f;
  return sign ? -magnitude : magnitude;
}

template <class T>
T load(const unsigned char* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

}  // namespace

int64_t SafetensorsEntry::numel() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(fmt::format("{}: cannot open ({}); check the path", path, std::strerror(errno)));
  struct stat st {};
  if (::fstat(fd, &st) == 0) size_ = st.st_size;
  void* map = size_ >= 8 && S_ISREG(st.st_mode)
                  ? ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_PRIVATE, fd, 0)
                  : MAP_FAILED;
  ::close(fd);
  if (map == MAP_FAILED) fail(path + ": is not a safetensors file (too short or not a regular file)");
  map_ = static_cast<const unsigned char*>(map);
  try {
    const auto length = load<uint64_t>(map_);
    if (length < 2 || length > kMaxHeader || static_cast<int64_t>(length) + 8 > size_)
      fail(fmt::format("{}: header of {} bytes does not fit a file of {}; truncated or not safetensors", path,
                       length, size_));
    parse(std::string(reinterpret_cast<const char*>(map_) + 8, length), static_cast<int64_t>(length) + 8);
  } catch (...) {
    ::munmap(map, static_cast<size_t>(size_));
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() {
  ::munmap(const_cast<unsigned char*>(map_), static_cast<size_t>(size_));
}

void SafetensorsFile::parse(const std::string& header, int64_t data_start) {
  const auto json = nlohmann::json::parse(header, nullptr, false);
  if (!json.is_object()) fail(path_ + ": the header is not a JSON object; the file is damaged");
  const int64_t data_bytes = size_ - data_start;
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
      ok = ok && offsets[0] >= 0 && offsets[0] <= offsets[1] && offsets[1] <= data_bytes &&
           offsets[1] - offsets[0] == bytes;
      if (!ok) fail(fmt::format("{}: tensor '{}' has a bad dtype, shape or offset", path_, name));
      e.data = map_ + data_start + offsets[0], e.bytes = bytes;
      entries_.emplace(name, std::move(e));
    } catch (const nlohmann::json::exception&) {
      fail(fmt::format("{}: the header entry of '{}' is malformed", path_, name));
    }
  }
  check_layout(data_bytes);
}

void SafetensorsFile::check_layout(int64_t data_bytes) const {
  std::vector<std::pair<const unsigned char*, const std::pair<const std::string, SafetensorsEntry>*>> order;
  for (const auto& e : entries_) order.emplace_back(e.second.data, &e);
  std::sort(order.begin(), order.end(), [](auto& a, auto& b) {
    return a.first != b.first ? a.first < b.first : a.second->second.bytes < b.second->second.bytes;
  });
  const unsigned char* at = map_ + size_ - data_bytes;
  for (const auto& [data, entry] : order) {
    if (data != at)
      fail(fmt::format("{}: tensor '{}' overlaps another or leaves a hole", path_, entry->first));
    at = data + entry->second.bytes;
  }
  if (at != map_ + size_) fail(path_ + ": bytes after the last tensor; the file is damaged");
}

const SafetensorsEntry* SafetensorsFile::find(const std::string& name) const {
  const auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second;
}

void SafetensorsFile::read_f32(const SafetensorsEntry& e, float* out) const {
  const int64_t n = e.numel();
  if (e.dtype == "F32")
    std::memcpy(out, e.data, static_cast<size_t>(e.bytes));
  else if (e.dtype == "BF16")
    for (int64_t i = 0; i < n; ++i)
      out[i] = bits_float(static_cast<uint32_t>(load<uint16_t>(e.data + 2 * i)) << 16);
  else if (e.dtype == "F16")
    for (int64_t i = 0; i < n; ++i) out[i] = half_to_float(load<uint16_t>(e.data + 2 * i));
  else
    fail(fmt::format("{}: a tensor of type {} where floating point was expected", path_, e.dtype));
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
