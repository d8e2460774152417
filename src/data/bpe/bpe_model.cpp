#include "data/bpe/bpe_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <queue>

#include "core/error.h"
#include "data/tokenizer.h"

namespace megatrain {
namespace {

constexpr int64_t kMaxHoles = 1'000'000;  // ids without a token; a small file must not ask for much memory
constexpr size_t kShort = 64;             // symbols; beyond this the heap wins

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

// The token's bytes, or the token itself where it is not made of stand-ins.
std::string undo_byte_characters(const std::string& token,
                                 const std::unordered_map<std::string, char>& byte_of) {
  std::string out;
  for (size_t at = 0, n; at < token.size(); at += n) {
    n = std::max<size_t>(next_code_point(token, at), 1);
    const auto it = byte_of.find(token.substr(at, n));
    if (it == byte_of.end()) return token;
    out += it->second;
  }
  return out;
}

std::pair<std::string, std::string> two_tokens(const nlohmann::json& merge, const std::string& where) {
  if (merge.is_array() && merge.size() == 2)
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  const std::string line = merge.get<std::string>();
  const size_t space = line.find(' ');
  if (space == std::string::npos)
    fail(fmt::format("{}: merge '{}' is not two tokens", where, line.substr(0, 80)));
  return {line.substr(0, space), line.substr(space + 1)};
}

}  // namespace

void BpeModel::MergeTable::build(const std::vector<std::pair<uint64_t, Merge>>& merges) {
  size_t size = 16;
  while (size < 2 * merges.size()) size *= 2;
  slots_.assign(size, {0, Merge{}});
  mask_ = size - 1;
  for (const auto& m : merges) {
    uint64_t at = (m.first * 0x9E3779B97F4A7C15ull >> 20) & mask_;
    while (slots_[at].second.rank >= 0 && slots_[at].first != m.first) at = (at + 1) & mask_;
    slots_[at] = m;
  }
}

const BpeModel::Merge* BpeModel::MergeTable::find(int32_t a, int32_t b) const {
  const uint64_t k = key(a, b);
  for (uint64_t at = (k * 0x9E3779B97F4A7C15ull >> 20) & mask_; slots_[at].second.rank >= 0;
       at = (at + 1) & mask_)
    if (slots_[at].first == k) return &slots_[at].second;
  return nullptr;
}

BpeModel::BpeModel(const nlohmann::json& model, bool byte_level, const std::string& where)
    : where_(where), byte_level_(byte_level) {
  if (model.value("type", "BPE") != "BPE")
    fail(fmt::format("{}: model type '{}' is not supported; BPE is", where,
                     model.value("type", "").substr(0, 60)));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (model.contains(key) && !model[key].is_null() && !model[key].get<std::string>().empty())
      fail(fmt::format("{}: {} is not supported", where, key));
  auto flag = [&](const char* key) { return model.contains(key) && model[key].is_boolean() && model[key]; };
  byte_fallback_ = flag("byte_fallback"), fuse_unknown_ = flag("fuse_unk"),
  ignore_merges_ = flag("ignore_merges");
  read_vocabulary(model, byte_level);
  if (model.contains("unk_token") && model["unk_token"].is_string())
    unknown_ = find(model["unk_token"].get<std::string>());
  read_merges(model.at("merges"));
}

void BpeModel::read_vocabulary(const nlohmann::json& model, bool byte_level) {
  std::unordered_map<std::string, char> byte_of;
  const auto table = byte_characters();
  for (size_t b = 0; b < 256; ++b) byte_of[table[b]] = static_cast<char>(b);
  for (const auto& [token, value] : model.at("vocab").items()) {
    const auto id = value.get<int64_t>();
    if (id < 0 || id > static_cast<int64_t>(model["vocab"].size()) + kMaxHoles)
      fail(where_ + ": a token id is out of range");
    if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(static_cast<size_t>(id) + 1);
    std::string& bytes = tokens_[static_cast<size_t>(id)];
    bytes = byte_level ? undo_byte_characters(token, byte_of) : token;
    if (byte_level && ignore_merges_) whole_[bytes] = static_cast<int32_t>(id);
    ids_[token] = static_cast<int32_t>(id);
  }
  for (size_t b = 0; b < 256; ++b) {
    byte_ids_[b] = find(byte_level ? table[b] : fmt::format("<0x{:02X}>", b));
    if (byte_level && byte_ids_[b] < 0)
      fail(fmt::format("{}: byte {} has no token; not a byte-level BPE vocabulary", where_, b));
    if (!byte_level && byte_fallback_ && byte_ids_[b] >= 0)
      tokens_[static_cast<size_t>(byte_ids_[b])] = std::string(1, static_cast<char>(b));
  }
}

void BpeModel::read_merges(const nlohmann::json& merges) {
  std::vector<std::pair<uint64_t, Merge>> table;
  int32_t rank = 0;
  for (const auto& m : merges) {
    const auto [a, b] = two_tokens(m, where_);
    const int32_t left = find(a), right = find(b), both = find(a + b);
    if (left < 0 || right < 0 || both < 0)
      fail(fmt::format("{}: merge '{} {}' uses a token that the vocabulary lacks", where_, a.substr(0, 80),
                       b.substr(0, 80)));
    table.emplace_back(key(left, right), Merge{rank++, both});
  }
  merges_.build(table);
}

int32_t BpeModel::find(const std::string& token) const {
  const auto it = ids_.find(token);
  return it == ids_.end() ? -1 : it->second;
}

void BpeModel::add_unknown(std::string_view character, bool& last_unknown, std::vector<int32_t>& out) const {
  if (byte_fallback_) {
    const bool all = std::all_of(character.begin(), character.end(),
                                 [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] >= 0; });
    if (all) {
      for (char c : character) out.push_back(byte_ids_[static_cast<unsigned char>(c)]);
      last_unknown = false;
      return;
    }
  }
  if (unknown_ >= 0 && !(fuse_unknown_ && last_unknown)) out.push_back(unknown_);
  last_unknown = true;
}

void BpeModel::symbols(std::string_view piece, std::vector<int32_t>& out) const {
  if (byte_level_) {
    for (char c : piece) out.push_back(byte_ids_[static_cast<unsigned char>(c)]);
    return;
  }
  bool last_unknown = false;
  std::string character;
  for (size_t at = 0, n; at < piece.size(); at += n) {
    n = std::max<size_t>(next_code_point(piece, at), 1);
    character.assign(piece.substr(at, n));
    const int32_t id = find(character);
    if (id < 0) {
      add_unknown(character, last_unknown, out);
      continue;
    }
    out.push_back(id);
    last_unknown = false;
  }
}

void BpeModel::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    const auto& table = byte_level_ ? whole_ : ids_;
    if (const auto it = table.find(std::string(piece)); it != table.end()) return ids.push_back(it->second);
  }
  std::vector<int32_t> word;
  symbols(piece, word);
  if (word.size() <= kShort)
    merge_short(word);
  else
    merge_long(word);
  ids.insert(ids.end(), word.begin(), word.end());
}

// Lowest rank first, leftmost among equals, one at a time, until no merge applies.
void BpeModel::merge_short(std::vector<int32_t>& word) const {
  const Merge* pairs[kShort];
  size_t n = word.size();
  for (size_t i = 0; i + 1 < n; ++i) pairs[i] = merges_.find(word[i], word[i + 1]);
  while (n > 1) {
    size_t best = n;
    int32_t rank = std::numeric_limits<int32_t>::max();
    for (size_t i = 0; i + 1 < n; ++i)
      if (pairs[i] && pairs[i]->rank < rank) rank = pairs[i]->rank, best = i;
    if (best == n) break;
    word[best] = pairs[best]->id;
    for (size_t i = best + 1; i + 1 < n; ++i) word[i] = word[i + 1];
    for (size_t i = best + 1; i + 2 < n; ++i) pairs[i] = pairs[i + 1];
    --n;
    if (best > 0) pairs[best - 1] = merges_.find(word[best - 1], word[best]);
    if (best + 1 < n) pairs[best] = merges_.find(word[best], word[best + 1]);
  }
  word.resize(n);
}

// The same order by a heap over a linked list: n log n, for whole documents as one piece (Llama 2).
void BpeModel::merge_long(std::vector<int32_t>& word) const {
  struct Candidate {
    int32_t rank, id;
    uint32_t at;
    bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  if (word.size() > std::numeric_limits<uint32_t>::max() / 2)
    fail("tokenizer: a piece of text without a break is too long; split the document");
  const auto n = static_cast<uint32_t>(word.size());
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  std::vector<uint32_t> next(n), before(n);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  auto consider = [&](uint32_t a, uint32_t b) {
    if (const Merge* m = merges_.find(word[a], word[b])) queue.push({m->rank, m->id, a});
  };
  for (uint32_t i = 0; i < n; ++i) next[i] = i + 1 < n ? i + 1 : kNone, before[i] = i > 0 ? i - 1 : kNone;
  for (uint32_t i = 0; i + 1 < n; ++i) consider(i, i + 1);
  while (!queue.empty()) {
    const Candidate c = queue.top();
    queue.pop();
    const uint32_t right = next[c.at];
    if (word[c.at] < 0 || right == kNone) continue;
    const Merge* m = merges_.find(word[c.at], word[right]);
    if (!m || m->id != c.id) continue;  // the pair has changed meanwhile
    word[c.at] = c.id, word[right] = -1;
    next[c.at] = next[right];
    if (next[right] != kNone) before[next[right]] = c.at;
    if (before[c.at] != kNone) consider(before[c.at], c.at);
    if (next[c.at] != kNone) consider(c.at, next[c.at]);
  }
  std::erase(word, -1);
}

}  // namespace megatrain
