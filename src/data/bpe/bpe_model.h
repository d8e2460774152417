#pragma once
// defines: BpeModel — vocabulary and merges: one piece of text to token ids.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace megatrain {

/// The BPE model of a tokenizer.json (tokenizers: models/bpe). With `byte_level` the vocabulary's printable
/// stand-ins for bytes are undone when it is read, and pieces are merged from bytes.
class BpeModel {
 public:
  BpeModel(const nlohmann::json& model, bool byte_level, const std::string& where);

  /// Appends the ids of one piece. Safe to call from several threads.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;
  /// Id of a token as the vocabulary writes it, or -1.
  int32_t find(const std::string& token) const;
  /// Bytes by id; byte tokens (<0x0A>) are one byte. Absent ids are empty.
  const std::vector<std::string>& tokens() const { return tokens_; }
  bool byte_fallback() const { return byte_fallback_; }

 private:
  struct Merge {
    int32_t rank = -1, id = -1;
  };
  /// Open addressing: one lookup a pair is most of what merging does.
  class MergeTable {
   public:
    void build(const std::vector<std::pair<uint64_t, Merge>>& merges);
    const Merge* find(int32_t a, int32_t b) const;

   private:
    std::vector<std::pair<uint64_t, Merge>> slots_;
    uint64_t mask_ = 0;
  };
  static uint64_t key(int32_t a, int32_t b) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32) | static_cast<uint32_t>(b);
  }

  void read_vocabulary(const nlohmann::json& model, bool byte_level);
  void read_merges(const nlohmann::json& merges);
  void symbols(std::string_view piece, std::vector<int32_t>& out) const;
  void add_unknown(std::string_view character, bool& last_unknown, std::vector<int32_t>& out) const;
  void merge_short(std::vector<int32_t>& word) const;
  void merge_long(std::vector<int32_t>& word) const;

  std::string where_;
  bool byte_level_, byte_fallback_ = false, fuse_unknown_ = false, ignore_merges_ = false;
  int32_t unknown_ = -1;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;    // as the vocabulary writes them
  std::unordered_map<std::string, int32_t> whole_;  // byte-level: by their bytes (ignore_merges)
  int32_t byte_ids_[256];
  MergeTable merges_;
};

}  // namespace megatrain
