#include "data/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "io/file.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

constexpr const char* kMetaFile = "/meta.json";  // byte and char vocabularies

// Length of the text without a code point that its end cuts in two.
size_t whole_code_points(std::string_view text) {
  size_t end = text.size();
  while (end > 0 && text.size() - end < 3 && (text[end - 1] & 0xc0) == 0x80) --end;
  if (end == 0) return text.size();
  return next_code_point(text, end - 1) > 0 ? text.size() : end - 1;
}

class ByteTokenizer : public Tokenizer {
 public:
  std::string kind() const override { return "byte"; }
  int64_t vocab_size() const override { return 256; }
  void encode(std::string_view text, std::vector<int32_t>& ids,
              const std::function<void(size_t)>&) const override {
    for (char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  size_t cut(std::string_view text) const override { return text.size(); }
  std::string decode(int32_t id) const override { return std::string(1, static_cast<char>(id)); }
  void save(const std::string& directory) const override {
    write_file_atomically(directory + kMetaFile,
                          nlohmann::json{{"tokenizer", "byte"}, {"vocab_size", 256}}.dump(1));
  }
};

class CharTokenizer : public Tokenizer {
 public:
  explicit CharTokenizer(std::vector<std::string> chars) : chars_(std::move(chars)) {
    for (size_t i = 0; i < chars_.size(); ++i) ids_[chars_[i]] = static_cast<int32_t>(i);
  }
  std::string kind() const override { return "char"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(chars_.size()); }
  void encode(std::string_view text, std::vector<int32_t>& ids,
              const std::function<void(size_t)>& progress) const override {
    for (size_t at = 0, n; at < text.size(); at += n) {
      n = next_code_point(text, at);
      const auto it = n ? ids_.find(text.substr(at, n)) : ids_.end();
      if (it == ids_.end())
        fail(n ? fmt::format("character '{}' at byte {} is not in this vocabulary of {}", text.substr(at, n),
                             at, chars_.size())
               : not_utf8(text, at));
      ids.push_back(it->second);
      if (progress && ids.size() % 1000000 == 0) progress(at);
    }
  }
  size_t cut(std::string_view text) const override { return whole_code_points(text); }
  std::string decode(int32_t id) const override {
    return id >= 0 && id < vocab_size() ? chars_[static_cast<size_t>(id)] : "";
  }
  void save(const std::string& directory) const override {
    nlohmann::json j = {{"tokenizer", "char"}, {"vocab_size", chars_.size()}, {"chars", chars_}};
    write_file_atomically(directory + kMetaFile, j.dump(1));
  }

 private:
  std::vector<std::string> chars_;
  std::map<std::string, int32_t, std::less<>> ids_;
};

}  // namespace

// FNV-1a.
uint64_t Tokenizer::hash() const {
  uint64_t h = 0xcbf29ce484222325ull;
  for (int64_t id = 0; id < vocab_size(); ++id) {
    for (char c : decode(static_cast<int32_t>(id)))
      h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    h = (h ^ 256) * 0x100000001b3ull;
  }
  return std::max<uint64_t>(h, 1);
}

size_t next_code_point(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  const unsigned lead = byte(0);
  const size_t n = lead < 0x80                   ? 1
                   : lead >= 0xc2 && lead < 0xe0 ? 2
                   : lead >= 0xe0 && lead < 0xf0 ? 3
                   : lead >= 0xf0 && lead < 0xf5 ? 4
                                                 : 0;
  for (size_t i = 1; i < n; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  if ((lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) > 0x9f) ||
      (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) > 0x8f))
    return 0;  // overlong, surrogate, beyond U+10FFFF
  return n;
}

bool looks_like_utf16(std::string_view text) {
  const std::string_view start = text.substr(0, 4096);
  if (start.rfind("\xff\xfe", 0) == 0 || start.rfind("\xfe\xff", 0) == 0) return true;
  return start.size() >= 8 &&
         std::count(start.begin(), start.end(), '\0') * 5 > static_cast<std::ptrdiff_t>(start.size());
}

std::string not_utf8(std::string_view text, size_t at) {
  const std::string convert = "convert it with iconv -f {} -t UTF-8 FILE > FILE.utf8";
  const std::string what = fmt::format("byte {} is not valid UTF-8", at);
  if (looks_like_utf16(text)) {
    // Without a mark, the half of each unit that is zero tells the order: text is mostly Latin letters and
    // spaces.
    int64_t zeros[2] = {0, 0};
    for (size_t i = 0; i < std::min<size_t>(text.size(), 4096); ++i) zeros[i % 2] += text[i] == '\0';
    const bool marked = text.rfind("\xff\xfe", 0) == 0 || text.rfind("\xfe\xff", 0) == 0;
    const char* name = marked ? "UTF-16" : zeros[1] >= zeros[0] ? "UTF-16LE" : "UTF-16BE";
    return fmt::format("{}: the text looks like {}; {}", what, name,
                       fmt::format(fmt::runtime(convert), name));
  }
  // Letters of Western European texts, one byte each, among ASCII.
  int64_t letters = 0, controls = 0, c1 = 0, total = 0;
  for (const char c : text.substr(0, 65536)) {
    const auto b = static_cast<unsigned char>(c);
    ++total, letters += b >= 0xc0, c1 += b >= 0x80 && b < 0xa0, controls += b < 9;
  }
  if (controls == 0 && letters + c1 > 0 && (letters + c1) * 3 < total) {
    const char* name = c1 > 0 ? "WINDOWS-1252" : "ISO-8859-1";
    return fmt::format("{}: the text may be {} (Latin-1); {}", what, name,
                       fmt::format(fmt::runtime(convert), name));
  }
  return what + "; if it is no text at all, use the byte tokenizer";
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

void add_characters(std::string_view text, std::set<std::string, std::less<>>& seen) {
  for (size_t at = 0, n; at < text.size(); at += n) {
    n = next_code_point(text, at);
    if (n == 0 || (text[at] == '\0' && looks_like_utf16(text))) fail(not_utf8(text, at));
    if (!seen.contains(text.substr(at, n))) seen.emplace(text.substr(at, n));
  }
}

std::unique_ptr<Tokenizer> make_char_tokenizer(const std::set<std::string, std::less<>>& seen) {
  return std::make_unique<CharTokenizer>(std::vector<std::string>(seen.begin(), seen.end()));
}

std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view text) {
  std::set<std::string, std::less<>> seen;
  add_characters(text, seen);
  return make_char_tokenizer(seen);
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& directory) {
  const std::string meta = directory + kMetaFile;
  if (fs::exists(meta)) {
    const auto j = nlohmann::json::parse(read_text_file(meta), nullptr, false);
    const std::string kind = j.is_object() ? j.value("tokenizer", "") : "";
    if (kind == "byte") return make_byte_tokenizer();
    if (kind == "char" && j.contains("chars") && j["chars"].is_array()) {
      std::vector<std::string> chars;
      for (const auto& c : j["chars"])
        if (c.is_string()) chars.push_back(c.get<std::string>());
      return std::make_unique<CharTokenizer>(std::move(chars));
    }
    fail(meta + ": not a vocabulary that megatrain prepare wrote");
  }
  if (fs::exists(directory + "/tokenizer.json") || fs::exists(directory + "/merges.txt"))
    return load_bpe_tokenizer(directory);
  return nullptr;
}

}  // namespace megatrain
