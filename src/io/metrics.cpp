#include "io/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"
#include "io/file.h"

namespace megatrain {
namespace {

double wall_time() {
  using namespace std::chrono;
  return duration<double>(system_clock::now().time_since_epoch()).count();
}

template <class T>
std::string raw(T v) {
  std::string s(sizeof v, '\0');
  std::memcpy(s.data(), &v, sizeof v);
  return s;
}

// Protobuf wire format: varints, and fields of type 0 (varint), 1 (64 bit), 2 (bytes), 5 (32 bit).
std::string varint(uint64_t v) {
  std::string s;
  for (; v >= 128; v >>= 7) s += static_cast<char>((v & 127) | 128);
  return s + static_cast<char>(v);
}

std::string bytes_field(unsigned number, const std::string& body) {
  return varint(number << 3 | 2) + varint(body.size()) + body;
}

std::string event(int64_t step, const std::string& payload) {
  return varint(1 << 3 | 1) + raw(wall_time()) + varint(2 << 3) + varint(static_cast<uint64_t>(step)) +
         payload;
}

uint32_t masked_crc(const std::string& bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace

uint32_t crc32c(const std::string& bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = c & 1 ? 0x82f63b78u ^ (c >> 1) : c >> 1;
      t[i] = c;
    }
    return t;
  }();
  uint32_t crc = ~0u;
  for (char b : bytes) crc = table[(crc ^ static_cast<unsigned char>(b)) & 255] ^ (crc >> 8);
  return ~crc;
}

namespace {

// Lines of steps up to `keep`; what a kill cut off has no end of line.
std::string kept_lines(const std::string& path, int64_t keep) {
  std::string out;
  if (keep < 0 || !std::filesystem::exists(path)) return out;
  std::istringstream in(read_text_file(path));
  for (std::string line; std::getline(in, line) && !in.eof();) {
    const auto j = nlohmann::json::parse(line, nullptr, false);
    if (j.is_object() && j.contains("step") && j["step"].is_number_integer() &&
        j["step"].get<int64_t>() <= keep)
      out += line + "\n";
  }
  return out;
}

std::string write_kept(const std::string& path, int64_t keep) {
  std::string kept = kept_lines(path, keep);
  write_file_atomically(path, kept);
  return kept;
}

// A name of its own, also when two runs begin in one second.
std::string event_file(const std::string& directory) {
  for (int i = 0;; ++i) {
    std::string path = fmt::format("{}/events.out.tfevents.{}.{}megatrain", directory,
                                   static_cast<int64_t>(wall_time()), i == 0 ? "" : std::to_string(i) + ".");
    if (!std::filesystem::exists(path)) return path;
  }
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, int64_t keep)
    : kept_(write_kept(path, keep)), file_(path, 0) {}

bool MetricsFile::holds(int64_t step, const std::string& name) const {
  std::istringstream in(kept_);
  for (std::string line; std::getline(in, line);) {
    const auto j = nlohmann::json::parse(line, nullptr, false);
    if (j["step"].get<int64_t>() == step && j.contains(name)) return true;
  }
  return false;
}

void MetricsFile::write(int64_t step, const Scalars& scalars) {
  nlohmann::ordered_json line;
  line["step"] = step;
  for (const auto& [name, value] : scalars) line[name] = value;
  file_.append(line.dump() + "\n");
}

TensorBoardWriter::TensorBoardWriter(const std::string& directory, int64_t keep)
    : file_(event_file(directory), O_CREAT) {
  record(event(0, bytes_field(3, "brain.Event:2")));     // file_version
  const std::string start = varint(1 << 3) + varint(1);  // SessionLog.status = START
  if (keep >= 0) record(event(keep + 1, bytes_field(7, start)));
}

void TensorBoardWriter::record(const std::string& body) {
  const std::string length = raw(static_cast<uint64_t>(body.size()));
  file_.append(length + raw(masked_crc(length)) + body + raw(masked_crc(body)));
}

void TensorBoardWriter::write(int64_t step, const Scalars& scalars) {
  std::string summary;  // Summary.value = 1; Value.tag = 1, Value.simple_value = 2
  for (const auto& [name, value] : scalars)
    summary += bytes_field(1, bytes_field(1, name) + varint(2 << 3 | 5) + raw(static_cast<float>(value)));
  record(event(step, bytes_field(5, summary)));
}

}  // namespace megatrain
