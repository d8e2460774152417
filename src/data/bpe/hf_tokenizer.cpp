// tokenizer.json of Hugging Face's tokenizers (BPE models): normalizer, added tokens, pre-tokenizer, BPE,
// post-processor. What is not understood is refused when the file is read, never skipped.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"
#include "data/bpe/added_tokens.h"
#include "data/bpe/bpe_model.h"
#include "data/bpe/normalizer.h"
#include "data/bpe/pre_tokenizer.h"
#include "data/tokenizer.h"
#include "io/file.h"
#include "io/json.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

constexpr const char* kFiles[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",     "chat_template.jinja"};
/// Ids of short pieces seen before; one place per hash, an entry is a cache line.
class PieceCache {
 public:
  PieceCache() : entries_(size_t{1} << 15) {}
  template <class F>
  void encode(std::string_view piece, std::vector<int32_t>& ids, F&& compute) {
    if (piece.size() > kBytes) return compute(piece, ids);
    const Key key(piece);
    Entry& e = entries_[key.hash() >> 49];
    if (e.size == piece.size() && e.key == key) {
      ids.insert(ids.end(), e.ids, e.ids + e.count);
      return;
    }
    const size_t before = ids.size();
    compute(piece, ids);
    const size_t count = ids.size() - before;
    if (count > kIds) return;
    e.key = key, e.size = static_cast<uint8_t>(piece.size()), e.count = static_cast<uint8_t>(count);
    std::copy_n(ids.begin() + static_cast<int64_t>(before), count, e.ids);
  }

 private:
  static constexpr size_t kBytes = 24, kIds = 8;
  struct Key {
    uint64_t words[3] = {0, 0, 0};
    Key() = default;
    explicit Key(std::string_view piece) { std::memcpy(words, piece.data(), piece.size()); }
    bool operator==(const Key&) const = default;
    uint64_t hash() const {
      uint64_t h = words[0] * 0x9E3779B97F4A7C15ull;
      h = (h ^ (h >> 32) ^ words[1]) * 0xBF58476D1CE4E5B9ull;
      return (h ^ (h >> 29) ^ words[2]) * 0x94D049BB133111EBull;
    }
  };
  struct Entry {
    Key key;
    int32_t ids[kIds];
    uint8_t size = 255, count = 0;
  };
  std::vector<Entry> entries_;
};

/// Caches that calls borrow, so that each thread finds what earlier texts left.
class CachePool {
 public:
  class Loan {
   public:
    explicit Loan(CachePool& pool) : pool_(pool), cache_(pool.take()) {}
    ~Loan() { pool_.put(std::move(cache_)); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    PieceCache& operator*() { return *cache_; }

   private:
    CachePool& pool_;
    std::unique_ptr<PieceCache> cache_;
  };

 private:
  std::unique_ptr<PieceCache> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<PieceCache>();
    auto c = std::move(idle_.back());
    idle_.pop_back();
    return c;
  }
  void put(std::unique_ptr<PieceCache> c) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(c));
  }
  std::mutex mutex_;
  std::vector<std::unique_ptr<PieceCache>> idle_;
};

void check_utf8(std::string_view text) {
  if (looks_like_utf16(text)) fail("tokenizer: " + not_utf8(text, 0));
  for (size_t at = 0, n; at < text.size(); at += n) {
    uint64_t eight = 0x80;
    if (at + 8 <= text.size()) std::memcpy(&eight, text.data() + at, 8);
    const bool ascii = static_cast<unsigned char>(text[at]) < 0x80;
    n = (eight & 0x8080808080808080ull) == 0 ? 8 : ascii ? 1 : next_code_point(text, at);
    if (n == 0) fail("tokenizer: " + not_utf8(text, at));
  }
}

class HfTokenizer final : public Tokenizer {
 public:
  HfTokenizer(const nlohmann::json& j, std::string where,
              std::vector<std::pair<std::string, std::string>> files)
      : where_(std::move(where)),
        files_(std::move(files)),
        normalizer_(part(j, "normalizer"), where_),
        pre_tokenizer_(part(j, "pre_tokenizer"), where_),
        added_(j.value("added_tokens", nlohmann::json::array()), normalizer_, where_),
        model_(j.at("model"), pre_tokenizer_.byte_level(), where_),
        tokens_(model_.tokens()) {
    for (const AddedTokens::Token& t : added_.all()) {
      if (static_cast<size_t>(t.id) > model_.tokens().size() + 1'000'000)
        fail(where_ + ": the id of an added token is out of range");
      if (static_cast<size_t>(t.id) >= tokens_.size()) tokens_.resize(static_cast<size_t>(t.id) + 1);
      tokens_[static_cast<size_t>(t.id)] = t.content;
    }
    if (!pre_tokenizer_.byte_level()) show_spaces();
    read_post_processor(part(j, "post_processor"), 0);
    end_of_text_ = find("<|endoftext|>");
    for (const auto& [name, content] : files_)
      if (name == "tokenizer_config.json") read_config(content);
  }

  std::string kind() const override { return "bpe"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  int32_t end_of_text() const override { return end_of_text_; }
  bool is_special(int32_t id) const override { return added_.is_special(id); }

  int32_t find(const std::string& token) const override {
    const AddedTokens::Token* t = added_.find(token);
    return t ? t->id : model_.find(token);
  }

  void encode(std::string_view text, std::vector<int32_t>& ids,
              const std::function<void(size_t)>& progress) const override {
    encode(text, ids, false, progress);
  }
  void encode_ordinary(std::string_view text, std::vector<int32_t>& ids) const override {
    encode(text, ids, true, {});
  }

  // At a space between a letter or digit and a letter, far enough in that no piece is made much shorter.
  size_t cut(std::string_view text) const override {
    if (!pre_tokenizer_.splits_before_space() || !normalizer_.local() || added_.holds_words()) return 0;
    for (size_t i = text.size(); i-- > 2;) {
      const auto is = [&](size_t at, auto f) { return f(static_cast<unsigned char>(text[at])) != 0; };
      if (text[i - 1] == ' ' && is(i - 2, [](int c) { return c < 128 && std::isalnum(c); }) &&
          is(i, [](int c) { return c < 128 && std::isalpha(c); }))
        return i - 1;
    }
    return 0;
  }

  std::string decode(int32_t id) const override {
    return id >= 0 && id < vocab_size() ? tokens_[static_cast<size_t>(id)] : "";
  }

  std::vector<int32_t> with_special_tokens(const std::vector<int32_t>& ids) const override {
    std::vector<int32_t> out = before_;
    out.insert(out.end(), ids.begin(), ids.end());
    out.insert(out.end(), after_.begin(), after_.end());
    return out;
  }

  void save(const std::string& directory) const override {
    for (const auto& [name, content] : files_)
      write_file_atomically(fmt::format("{}/{}", directory, name), content);
  }

 private:
  static nlohmann::json part(const nlohmann::json& j, const char* key) {
    return j.contains(key) ? j[key] : nlohmann::json();
  }

  void encode(std::string_view text, std::vector<int32_t>& ids, bool ordinary,
              const std::function<void(size_t)>& progress) const {
    check_utf8(text);
    CachePool::Loan cache(caches_);
    const Call call{*cache, ids, ordinary, progress, text};
    added_.split(
        text, false, ordinary, [&](int32_t id) { ids.push_back(id); },
        [&](std::string_view rest) {
          const bool first = rest.data() == text.data();
          if (normalizer_.identity()) return normalised(rest, first, true, call);
          const std::string changed = normalizer_(std::string(rest));
          normalised(changed, first, false, call);
        });
  }

  struct Call {
    PieceCache& cache;
    std::vector<int32_t>& ids;
    bool ordinary;
    const std::function<void(size_t)>& progress;
    std::string_view whole;
  };

  // `inside`: the text is a part of the whole, so that progress can be told.
  void normalised(std::string_view text, bool first, bool inside, const Call& call) const {
    size_t pieces = 0;
    std::vector<int32_t>& ids = call.ids;
    auto encode_piece = [&](std::string_view piece) {
      call.cache.encode(piece, ids,
                        [&](std::string_view p, std::vector<int32_t>& out) { model_.encode(p, out); });
      if (inside && call.progress && ++pieces % 200000 == 0)
        call.progress(static_cast<size_t>(piece.data() - call.whole.data()));
    };
    added_.split(
        text, true, call.ordinary, [&](int32_t id) { ids.push_back(id); },
        [&](std::string_view rest) {
          pre_tokenizer_(rest, first && rest.data() == text.data(), encode_piece);
        });
  }

  // SentencePiece writes spaces as U+2581.
  void show_spaces() {
    const std::string mark = "\u2581";
    for (std::string& t : tokens_)
      for (size_t at = 0; (at = t.find(mark, at)) != std::string::npos;)
        t.erase(at, mark.size() - 1), t[at] = ' ';
  }

  void read_post_processor(const nlohmann::json& p, int depth) {
    if (p.is_null() || depth > 4) return;
    const std::string type = p.at("type");
    if (type == "Sequence") {
      for (const auto& q : p.at("processors")) read_post_processor(q, depth + 1);
    } else if (type == "TemplateProcessing") {
      read_template(p);
    } else if (type != "ByteLevel") {  // ByteLevel moves offsets only
      fail(fmt::format("{}: post_processor: type '{}' is not supported", where_, type.substr(0, 60)));
    }
  }

  void read_template(const nlohmann::json& p) {
    bool seen = false;
    for (const auto& item : p.at("single")) {
      if (item.contains("Sequence")) {
        seen = true;
        continue;
      }
      const std::string name = item.at("SpecialToken").at("id");
      for (const auto& id : p.at("special_tokens").at(name).at("ids"))
        (seen ? after_ : before_).push_back(id.get<int32_t>());
    }
  }

  void read_config(const std::string& text) {
    const nlohmann::json j = parse_json(text, where_ + ": tokenizer_config.json");
    if (!j.is_object() || !j.contains("eos_token")) return;
    const auto& eos = j["eos_token"];
    const std::string name = eos.is_string()   ? eos.get<std::string>()
                             : eos.is_object() ? eos.value("content", "")
                                               : "";
    if (const int32_t id = find(name); id >= 0) end_of_text_ = id;
  }

  std::string where_;
  std::vector<std::pair<std::string, std::string>> files_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  AddedTokens added_;
  BpeModel model_;
  std::vector<std::string> tokens_;
  std::vector<int32_t> before_, after_;  // by the post-processor
  int32_t end_of_text_ = -1;
  mutable CachePool caches_;
};

// vocab.json and merges.txt alone: GPT-2's tokenizer.
nlohmann::json from_vocab_and_merges(const std::string& directory) {
  nlohmann::json merges = nlohmann::json::array();
  std::istringstream lines(read_text_file(directory + "/merges.txt"));
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty() && line.rfind("#version", 0) != 0) merges.push_back(line);
  }
  const std::string path = directory + "/vocab.json";
  nlohmann::json j;
  j["model"] = {{"type", "BPE"}, {"merges", std::move(merges)}};
  j["model"]["vocab"] = parse_json(read_text_file(path), path);
  j["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  const auto end = j["model"]["vocab"].find("<|endoftext|>");
  if (end != j["model"]["vocab"].end())
    j["added_tokens"] = {{{"id", *end}, {"content", "<|endoftext|>"}, {"special", true}}};
  return j;
}

}  // namespace

std::unique_ptr<Tokenizer> parse_tokenizer(const std::string& tokenizer_json, const std::string& where) {
  try {
    const nlohmann::json j = parse_json(tokenizer_json, where);
    if (!j.is_object() || !j.contains("model")) fail(where + ": is not a tokenizer.json");
    return std::make_unique<HfTokenizer>(
        j, where, std::vector{std::pair<std::string, std::string>{"tokenizer.json", tokenizer_json}});
  } catch (const nlohmann::json::exception& e) {
    fail(fmt::format("{}: malformed tokenizer ({})", where, std::string(e.what()).substr(0, 200)));
  }
}

std::unique_ptr<Tokenizer> load_bpe_tokenizer(const std::string& path) {
  if (!fs::is_directory(path)) return parse_tokenizer(read_text_file(path), path);
  std::vector<std::pair<std::string, std::string>> files;
  for (const char* name : kFiles)
    if (fs::exists(path + "/" + name)) files.emplace_back(name, read_text_file(path + "/" + name));
  try {
    const std::string file = path + "/tokenizer.json";
    const nlohmann::json j =
        fs::exists(file) ? parse_json(read_text_file(file), file) : from_vocab_and_merges(path);
    if (!j.is_object() || !j.contains("model")) fail(file + ": is not a tokenizer.json");
    return std::make_unique<HfTokenizer>(j, path, std::move(files));
  } catch (const nlohmann::json::exception& e) {
    fail(fmt::format("{}: malformed tokenizer ({})", path, std::string(e.what()).substr(0, 200)));
  }
}

}  // namespace megatrain
