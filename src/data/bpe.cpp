// GPT-2's byte-level BPE (Radford et al. 2019; github.com/openai/gpt-2 encoder.py describes the format).
#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <unordered_map>

#include "core/error.h"
#include "data/tokenizer.h"
#include "io/file.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

// GPT-2's pattern with \s written out as Unicode White_Space: PCRE2's own \s differs (U+180E).
#define WS \
  "\\t\\n\\v\\f\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
constexpr const char* kPattern =
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|[" WS "]+(?![^" WS "])|[" WS "]+";

class Splitter {
 public:
  Splitter() {
    int error = 0;
    PCRE2_SIZE at = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern), PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr);
    if (!code_) throw std::logic_error("the pre-tokenizer's pattern does not compile");
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);
  }
  ~Splitter() { pcre2_code_free(code_); }
  Splitter(const Splitter&) = delete;
  Splitter& operator=(const Splitter&) = delete;

  template <class F>
  void split(std::string_view text, F&& piece) const {
    std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
        pcre2_match_data_create_from_pattern(code_, nullptr), pcre2_match_data_free);
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    uint32_t options = 0;  // UTF-8 validity is checked once, by the first match
    for (size_t at = 0; at < text.size();) {
      const int rc = pcre2_match(code_, subject, text.size(), at, options, match.get(), nullptr);
      options = PCRE2_NO_UTF_CHECK;
      if (rc < 0)
        fail(rc == PCRE2_ERROR_NOMATCH
                 ? "tokenizer: text left over after splitting"
                 : fmt::format("tokenizer: the text is not valid UTF-8 or too complex (PCRE2 error {})", rc));
      const PCRE2_SIZE* o = pcre2_get_ovector_pointer(match.get());
      piece(text.substr(o[0], o[1] - o[0]), o[1]);
      at = o[1];
    }
  }

 private:
  pcre2_code* code_ = nullptr;
};

std::string code_point(int c) {
  if (c < 0x80) return std::string(1, static_cast<char>(c));
  return {static_cast<char>(0xc0 | (c >> 6)), static_cast<char>(0x80 | (c & 63))};
}

// GPT-2 writes bytes as printable characters in its vocabulary; this is that table.
std::vector<std::string> byte_characters() {
  std::vector<std::string> table(256);
  int next = 256;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    table[static_cast<size_t>(b)] = code_point(printable ? b : next++);
  }
  return table;
}

class BpeTokenizer : public Tokenizer {
 public:
  BpeTokenizer(const nlohmann::json& vocab, const std::vector<std::pair<std::string, std::string>>& merges,
               const nlohmann::json& added, std::string source)
      : source_(std::move(source)) {
    std::unordered_map<std::string, int32_t> ids;
    for (const auto& [token, id] : vocab.items()) ids[token] = id.get<int32_t>();
    build_bytes(ids);
    for (const auto& [token, id] : ids) set_token(id, undo_byte_characters(token));
    for (size_t rank = 0; rank < merges.size(); ++rank)
      add_merge(ids, merges[rank], static_cast<int32_t>(rank));
    for (const auto& a : added) {
      set_token(a.at("id").get<int32_t>(), a.at("content").get<std::string>());
      if (a.at("content") == "<|endoftext|>") end_of_text_ = a.at("id").get<int32_t>();
    }
    if (const auto it = ids.find("<|endoftext|>"); it != ids.end()) end_of_text_ = it->second;
  }

  std::string kind() const override { return "bpe"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  int32_t end_of_text() const override { return end_of_text_; }

  void encode(std::string_view text, std::vector<int32_t>& ids,
              const std::function<void(size_t)>& progress) const override {
    std::unordered_map<std::string, std::vector<int32_t>> cache;
    size_t pieces = 0;
    splitter_.split(text, [&](std::string_view piece, size_t end) {
      std::string key(piece);
      auto it = cache.find(key);
      if (it == cache.end()) {
        if (cache.size() > 200000) cache.clear();
        it = cache.emplace(std::move(key), merge(piece)).first;
      }
      ids.insert(ids.end(), it->second.begin(), it->second.end());
      if (progress && ++pieces % 200000 == 0) progress(end);
    });
  }

  std::string decode(int32_t id) const override {
    return id >= 0 && id < vocab_size() ? tokens_[static_cast<size_t>(id)] : "";
  }

  void save(const std::string& directory) const override {
    const fs::path from(source_);
    const bool directory_source = fs::is_directory(from);
    for (const char* name : {"tokenizer.json", "vocab.json", "merges.txt"}) {
      const fs::path file = directory_source ? from / name : from;
      if (!fs::exists(file) || (!directory_source && file.filename() != name)) continue;
      write_file_atomically(directory + "/" + name, read_text_file(file));
    }
  }

 private:
  struct Merge {
    int32_t rank, id;
  };
  static uint64_t key(int32_t a, int32_t b) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32) | static_cast<uint32_t>(b);
  }

  void set_token(int32_t id, std::string bytes) {
    if (id < 0 || id > 10'000'000) fail(source_ + ": a token id is out of range");
    if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(static_cast<size_t>(id) + 1);
    tokens_[static_cast<size_t>(id)] = std::move(bytes);
  }

  void build_bytes(const std::unordered_map<std::string, int32_t>& ids) {
    const auto table = byte_characters();
    for (size_t b = 0; b < 256; ++b) {
      const auto it = ids.find(table[b]);
      if (it == ids.end())
        fail(fmt::format("{}: byte {} has no token; not a byte-level BPE vocabulary", source_, b));
      byte_ids_[b] = it->second;
      to_byte_[table[b]] = static_cast<char>(b);
    }
  }

  std::string undo_byte_characters(const std::string& token) const {
    std::string out;
    for (size_t at = 0, n; at < token.size(); at += n) {
      n = std::max<size_t>(next_code_point(token, at), 1);
      const auto it = to_byte_.find(token.substr(at, n));
      if (it == to_byte_.end()) return token;  // a special token, written as itself
      out += it->second;
    }
    return out;
  }

  void add_merge(const std::unordered_map<std::string, int32_t>& ids,
                 const std::pair<std::string, std::string>& m, int32_t rank) {
    const auto a = ids.find(m.first), b = ids.find(m.second), both = ids.find(m.first + m.second);
    if (a == ids.end() || b == ids.end() || both == ids.end())
      fail(fmt::format("{}: merge '{} {}' uses a token that the vocabulary lacks", source_, m.first,
                       m.second));
    merges_.try_emplace(key(a->second, b->second), Merge{rank, both->second});
  }

  // Lowest rank first, leftmost among equals, until no merge applies.
  std::vector<int32_t> merge(std::string_view piece) const {
    std::vector<int32_t> word;
    for (char c : piece) word.push_back(byte_ids_[static_cast<unsigned char>(c)]);
    while (word.size() > 1) {
      Merge best{std::numeric_limits<int32_t>::max(), -1};
      for (size_t i = 0; i + 1 < word.size(); ++i) {
        const auto it = merges_.find(key(word[i], word[i + 1]));
        if (it != merges_.end() && it->second.rank < best.rank) best = it->second;
      }
      if (best.id < 0) break;
      size_t out = 0;
      for (size_t i = 0; i < word.size(); ++i, ++out) {
        const auto it = i + 1 < word.size() ? merges_.find(key(word[i], word[i + 1])) : merges_.end();
        const bool join = it != merges_.end() && it->second.rank == best.rank;
        word[out] = join ? best.id : word[i];
        i += join;
      }
      word.resize(out);
    }
    return word;
  }

  std::string source_;
  Splitter splitter_;
  std::vector<std::string> tokens_;
  int32_t byte_ids_[256] = {};
  std::unordered_map<std::string, char> to_byte_;
  std::unordered_map<uint64_t, Merge> merges_;
  int32_t end_of_text_ = -1;
};

std::pair<std::string, std::string> split_merge(const std::string& line, const std::string& source) {
  const size_t space = line.find(' ');
  if (space == std::string::npos) fail(fmt::format("{}: merge '{}' is not two tokens", source, line));
  return {line.substr(0, space), line.substr(space + 1)};
}

std::unique_ptr<Tokenizer> from_tokenizer_json(const std::string& file, const std::string& source) {
  const auto j = nlohmann::json::parse(read_text_file(file), nullptr, false);
  if (!j.is_object() || !j.contains("model")) fail(file + ": is not a tokenizer.json");
  const auto& model = j["model"];
  const bool byte_level = j.contains("pre_tokenizer") && j["pre_tokenizer"].is_object() &&
                          j["pre_tokenizer"].value("type", "") == "ByteLevel" &&
                          !j["pre_tokenizer"].value("add_prefix_space", false) &&
                          j["pre_tokenizer"].value("use_regex", true);
  if (model.value("type", "") != "BPE" || !byte_level ||
      (j.contains("normalizer") && !j["normalizer"].is_null()))
    fail(file + ": only GPT-2's tokenizer (BPE, ByteLevel pre-tokenizer, no normalizer) is supported so far");
  std::vector<std::pair<std::string, std::string>> merges;
  for (const auto& m : model.at("merges"))
    merges.push_back(m.is_string() ? split_merge(m.get<std::string>(), file)
                                   : std::pair{m.at(0).get<std::string>(), m.at(1).get<std::string>()});
  return std::make_unique<BpeTokenizer>(model.at("vocab"), merges,
                                        j.value("added_tokens", nlohmann::json::array()), source);
}

std::unique_ptr<Tokenizer> from_vocab_and_merges(const std::string& directory) {
  const auto vocab = nlohmann::json::parse(read_text_file(directory + "/vocab.json"), nullptr, false);
  if (!vocab.is_object()) fail(directory + "/vocab.json: is not a JSON object");
  std::vector<std::pair<std::string, std::string>> merges;
  std::istringstream lines(read_text_file(directory + "/merges.txt"));
  for (std::string line; std::getline(lines, line);)
    if (!line.empty() && line.rfind("#version", 0) != 0)
      merges.push_back(split_merge(line, directory + "/merges.txt"));
  return std::make_unique<BpeTokenizer>(vocab, merges, nlohmann::json::array(), directory);
}

}  // namespace

std::unique_ptr<Tokenizer> load_bpe_tokenizer(const std::string& path) {
  try {
    if (!fs::is_directory(path)) return from_tokenizer_json(path, path);
    if (fs::exists(path + "/tokenizer.json")) return from_tokenizer_json(path + "/tokenizer.json", path);
    return from_vocab_and_merges(path);
  } catch (const nlohmann::json::exception& e) {
    fail(fmt::format("{}: malformed tokenizer ({})", path, e.what()));
  }
}

}  // namespace megatrain
