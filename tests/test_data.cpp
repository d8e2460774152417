// Tokenizers, token files and the loader.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "data/loader.h"
#include "data/tokenizer.h"
#include "io/file.h"
#include "scratch.h"

namespace megatrain {
namespace {

std::string decode_all(const Tokenizer& t, const std::vector<int32_t>& ids) {
  std::string s;
  for (int32_t i : ids) s += t.decode(i);
  return s;
}

TEST(ByteTokenizer, RoundTripsEveryByte) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  const auto t = make_byte_tokenizer();
  std::vector<int32_t> ids;
  t->encode(all, ids);
  EXPECT_EQ(ids.size(), 256u);
  EXPECT_EQ(decode_all(*t, ids), all);
}

TEST(CharTokenizer, SortsCodePointsAndNamesStrangers) {
  const auto t = make_char_tokenizer("héllo wörld €");
  std::vector<int32_t> ids;
  t->encode("hllo wörld", ids);
  EXPECT_EQ(decode_all(*t, ids), "hllo wörld");
  EXPECT_EQ(t->decode(0), " ");
  EXPECT_EQ(t->decode(static_cast<int32_t>(t->vocab_size()) - 1), "€");
  EXPECT_THROW(t->encode("xyz", ids), Error);
  EXPECT_THROW(make_char_tokenizer("bad \xff byte"), Error);
  ScratchDirectory d;
  t->save(d.path);
  ids.clear();
  load_tokenizer(d.path)->encode("örh", ids);
  EXPECT_EQ(decode_all(*t, ids), "örh");
}

TEST(CodePoints, MalformedUtf8IsSeen) {
  EXPECT_EQ(next_code_point("a", 0), 1u);
  EXPECT_EQ(next_code_point("€", 0), 3u);
  EXPECT_EQ(next_code_point("😀", 0), 4u);
  for (const char* bad :
       {"\x80", "\xc0\x80", "\xe2\x82", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xf0\x80\x80\x80"})
    EXPECT_EQ(next_code_point(bad, 0), 0u);
}

TEST(Bpe, IdsAreThoseOfTheTokenizersPackage) {
  const std::string dir = std::string(MT_GOLDEN_DIR) + "/bpe";
  const auto golden = nlohmann::json::parse(read_text_file(dir + "/ids.json"));
  for (const std::string& source : {dir, dir + "/tokenizer.json", dir + "/pair"}) {
    const auto t = load_bpe_tokenizer(source);
    EXPECT_EQ(t->vocab_size(), 700);
    for (const auto& g : golden) {
      const std::string text = g["text"];
      std::vector<int32_t> ids;
      t->encode(text, ids);
      EXPECT_EQ(ids, g["ids"].get<std::vector<int32_t>>()) << source << ": " << text;
      EXPECT_EQ(decode_all(*t, ids), text);
    }
    EXPECT_EQ(t->end_of_text(), 0);
    ScratchDirectory d;
    t->save(d.path);
    EXPECT_EQ(load_tokenizer(d.path)->vocab_size(), 700);
  }
}

TEST(Bpe, EveryStyleGivesTheTokenizersPackagesIds) {
  for (const char* name : {"llama3", "qwen", "llama2", "metaspace"}) {
    const std::string base = std::string(MT_GOLDEN_DIR) + "/tokenizers/" + name;
    const auto t = load_bpe_tokenizer(base + ".json");
    for (const auto& g : nlohmann::json::parse(read_text_file(base + ".ids"))) {
      const std::string text = g["text"];
      std::vector<int32_t> ids;
      t->encode(text, ids);
      EXPECT_EQ(ids, g["ids"].get<std::vector<int32_t>>()) << name << ": " << text;
      EXPECT_EQ(t->with_special_tokens(ids), g["special"].get<std::vector<int32_t>>())
          << name << ": " << text;
    }
    EXPECT_TRUE(t->is_special(t->find("<s>"))) << name;
    EXPECT_EQ(t->find("no such token"), -1);
  }
}

TEST(Bpe, LongPiecesMergeAsShortOnesDo) {
  const auto t = load_bpe_tokenizer(std::string(MT_GOLDEN_DIR) + "/tokenizers/llama2.json");
  // One piece whatever its length: the heap and the scan must agree wherever a boundary is forced.
  const std::string word = "\u4e00";  // not in the vocabulary: bytes, which nothing merges with
  std::vector<int32_t> once, many;
  t->encode(word + "the house of the" + word, once);
  std::string text;
  for (int i = 0; i < 40; ++i) text += word + "the house of the" + word;
  t->encode(text, many);
  const std::vector<int32_t> repeated(once.begin() + 1, once.end());  // without the mark in front
  ASSERT_EQ(many.size(), 1 + 40 * repeated.size());
  for (size_t i = 0; i < 40 * repeated.size(); ++i)
    ASSERT_EQ(many[i + 1], repeated[i % repeated.size()]) << i;
}

TEST(Bpe, DamagedFilesAreRefused) {
  ScratchDirectory d;
  for (
      const char* text :
      {"", "[]", "{", R"({"model":{"type":"WordPiece"}})",
       R"({"pre_tokenizer":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":0},"merges":[]}})",
       R"({"pre_tokenizer":{"type":"Bert"},"model":{"type":"BPE","vocab":{"a":0},"merges":[]}})",
       R"({"normalizer":{"type":"Bert"},"model":{"type":"BPE","vocab":{"a":0},"merges":[]}})",
       R"({"post_processor":{"type":"Bert"},"model":{"type":"BPE","vocab":{"a":0},"merges":[]}})",
       R"({"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}})",
       R"({"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}})",
       R"({"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}})"}) {
    d.write("tokenizer.json", text);
    EXPECT_THROW(load_bpe_tokenizer(d.path), Error) << text;
  }
  const auto t = load_bpe_tokenizer(std::string(MT_GOLDEN_DIR) + "/bpe");
  std::vector<int32_t> ids;
  EXPECT_THROW(t->encode("broken \xff utf-8", ids), Error);
}

TEST(TokenFile, RefusesBadFiles) {
  ScratchDirectory d;
  EXPECT_THROW(TokenFile(d.file("absent.bin"), 10), Error);
  EXPECT_THROW(TokenFile(d.write("odd.bin", "abc"), 10), Error);
  EXPECT_THROW(TokenFile(d.write("empty.bin", ""), 10), Error);
  EXPECT_THROW(TokenFile(d.path, 10), Error);
  write_token_file(d.file("t.bin"), {1, 2, 3, 9});
  EXPECT_EQ(TokenFile(d.file("t.bin"), 10).size(), 4);
  try {
    TokenFile(d.file("t.bin"), 9);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("token 9 at position 3"), std::string::npos) << e.what();
  }
}

TEST(TokenFile, WideTokensHaveAHeader) {
  ScratchDirectory d;
  EXPECT_EQ(TokenFormat::plain(65536).file_name("x"), "x.bin");
  const std::string path = TokenFormat::plain(70000).file_name(d.file("x"));
  write_token_file(path, {1, 69999, 3}, 70000);
  const TokenFile f(path, 70000);
  ASSERT_EQ(f.size(), 3);
  int32_t got[2];
  f.read(1, 2, got);
  EXPECT_EQ(got[0], 69999);
  EXPECT_EQ(got[1], 3);
  EXPECT_THROW(TokenFile(path, 69999), Error);  // another vocabulary
  const std::string good = read_text_file(path);
  for (size_t cut : {size_t{8}, size_t{63}, size_t{64}, good.size() - 1}) {
    d.write("cut.mtbin", good.substr(0, cut));
    EXPECT_THROW(TokenFile(d.file("cut.mtbin"), 70000), Error) << cut;
  }
  std::string other = good;
  other[8] = 9;  // version
  d.write("cut.mtbin", other);
  EXPECT_THROW(TokenFile(d.file("cut.mtbin"), 70000), Error);
}

TEST(Loader, AnEpochSeesEveryWindowOnceAndEpochsDiffer) {
  ScratchDirectory d;
  std::vector<int32_t> ids(1001);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  write_token_file(d.file("t.bin"), ids);
  const TokenFile file(d.file("t.bin"), 2000);
  const Sequences rows(file, {20, "auto", "right"});
  const Loader loader({{&rows, 0}}, 5, 20, "epoch", 3);
  EXPECT_EQ(loader.rows(), 50);
  EXPECT_FALSE(loader.packed());
  Batch batch;
  std::vector<int32_t> first_epoch, second_epoch;
  for (int64_t step = 0; step < 20; ++step) {
    loader.batch(step, batch);
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
      EXPECT_EQ(batch.targets[i], batch.tokens[i] + 1);
      EXPECT_EQ(batch.positions[i], static_cast<int32_t>(i % 20));
    }
    for (size_t row = 0; row < 5; ++row)
      (step < 10 ? first_epoch : second_epoch).push_back(batch.tokens[row * 20]);
  }
  EXPECT_NE(first_epoch, second_epoch);
  for (const auto& e : {first_epoch, second_epoch})
    EXPECT_EQ(std::set<int32_t>(e.begin(), e.end()).size(), 50u);
  Batch again;
  loader.batch(3, batch);
  Loader({{&rows, 0}}, 5, 20, "epoch", 3).batch(3, again);
  EXPECT_EQ(batch.tokens, again.tokens);
  const Loader random({{&rows, 0}}, 5, 20, "random", 3);
  for (int64_t step = 0; step < 50; ++step) random.batch(step, batch);
  EXPECT_THROW(Sequences(file, {1001, "auto", "right"}), Error);
  EXPECT_THROW(Sequences(file, {20, "pack", "right"}), Error);
}

TEST(Permute, IsABijection) {
  for (uint64_t n : {1, 2, 3, 10, 257, 1000}) {
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < n; ++i) seen.insert(permute(i, n, 42));
    EXPECT_EQ(seen.size(), n);
    EXPECT_LT(*seen.rbegin(), n);
  }
}

}  // namespace
}  // namespace megatrain
