// Documents as rows (packed, padded, cut), sets mixed by weight, batches made ahead.
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "core/error.h"
#include "core/rng.h"
#include "data/loader.h"
#include "scratch.h"

namespace megatrain {
namespace {

/// A marked set: document d has lengths[d] tokens, all of id d; `trained(d, t)` says which are targets.
template <class F>
std::string marked_set(const ScratchDirectory& dir, const std::string& name, const std::vector<int>& lengths,
                       F&& trained, uint64_t flags = TokenFileHeader::kMarked) {
  TokenFormat format;
  format.vocab_size = 5000, format.flags = flags;
  TokenWriter w(dir.file(name), format);
  for (size_t d = 0; d < lengths.size(); ++d) {
    std::vector<int32_t> ids(static_cast<size_t>(lengths[d]), static_cast<int32_t>(d));
    std::vector<uint8_t> marks;
    for (size_t t = 0; t < ids.size(); ++t) marks.push_back(trained(d, t));
    w.begin_document();
    w.add(ids.data(), lengths[d], marks.data());
  }
  w.finish();
  return dir.file(name);
}

const auto kAll = [](size_t, size_t) { return true; };

struct Row {
  std::vector<int32_t> tokens, targets, positions;
  int64_t count;
  Row(const Sequences& s, int64_t i, int64_t t)
      : tokens(static_cast<size_t>(t)), targets(tokens), positions(tokens) {
    count = s.read(i, tokens.data(), targets.data(), positions.data());
  }
};

TEST(BestFit, WastesLittleAndPutsEachItemOnce) {
  std::vector<uint32_t> lengths;
  uint64_t total = 0;
  for (uint64_t i = 0; i < 3000; ++i) {
    lengths.push_back(1 + random_u32(1, 2, i) % (i % 10 == 0 ? 1024u : 300u));
    total += lengths.back();
  }
  const auto bins = best_fit(lengths, 1024);
  std::map<uint32_t, uint32_t> filled;
  for (size_t i = 0; i < bins.size(); ++i) filled[bins[i]] += lengths[i];
  for (const auto& [bin, size] : filled) EXPECT_LE(size, 1024u);
  EXPECT_EQ(filled.rbegin()->first + 1, filled.size());
  EXPECT_LE(filled.size(), (total + 1023) / 1024 + (total / 1024) / 50) << "more than 2% lost";
  EXPECT_THROW(best_fit({1025}, 1024), std::logic_error);
}

TEST(Sequences, PackedRowsHoldEveryDocumentOnce) {
  const ScratchDirectory d;
  std::vector<int> lengths;
  for (uint64_t i = 0; i < 200; ++i) lengths.push_back(2 + static_cast<int>(random_u32(3, 4, i) % 30));
  const TokenFile file(marked_set(d, "x.mtbin", lengths, [](size_t, size_t t) { return t % 2 == 1; }), 5000);
  const Sequences rows(file, {40, "auto", "right"});
  ASSERT_TRUE(rows.packed());
  EXPECT_LT(rows.count(), 100);
  std::set<int32_t> seen;
  for (int64_t i = 0; i < rows.count(); ++i) {
    const Row r(rows, i, 40);
    int64_t targets = 0;
    for (size_t t = 0; t < 40; ++t) {
      const bool starts = r.positions[t] == 0;
      if (t > 0 && !starts) {
        EXPECT_EQ(r.positions[t], r.positions[t - 1] + 1);
      }
      if (t > 0 && !starts && r.targets[t] >= 0) {
        EXPECT_EQ(r.tokens[t], r.tokens[t - 1]);
      }
      targets += r.targets[t] >= 0;
      if (r.targets[t] < 0) continue;
      EXPECT_EQ(r.targets[t], r.tokens[t]);
      EXPECT_EQ(r.positions[t] % 2, 0) << "target of an odd token";
      if (starts) {
        EXPECT_TRUE(seen.insert(r.tokens[t]).second);
      }
    }
    EXPECT_EQ(targets, r.count);
  }
  EXPECT_EQ(seen.size(), lengths.size());
}

TEST(Sequences, LongDocumentsAreCutAsAsked) {
  const ScratchDirectory d;
  TokenFormat format;
  TokenWriter w(d.file("x.mtbin"), format);
  std::vector<int32_t> ids(26);
  std::iota(ids.begin(), ids.end(), 0);
  w.begin_document(), w.add(ids.data(), 26);
  w.begin_document(), w.add(ids.data(), 5);
  w.finish();
  const TokenFile file(d.file("x.mtbin"), 100);
  auto first = [&](const char* truncation, int64_t i) {
    const Sequences s(file, {10, "pad", truncation});
    return Row(s, i, 10);
  };
  EXPECT_EQ(first("right", 0).tokens[0], 0);
  EXPECT_EQ(first("right", 0).targets[9], 10);
  EXPECT_EQ(first("left", 0).tokens[0], 15);
  EXPECT_EQ(first("left", 0).targets[9], 25);
  EXPECT_EQ(first("drop", 0).count, 4);
  const Sequences split(file, {10, "pad", "split"});
  ASSERT_EQ(split.count(), 4);
  EXPECT_EQ(Row(split, 1, 10).tokens[0], 10);
  EXPECT_EQ(Row(split, 1, 10).positions[0], 0);
  EXPECT_EQ(Row(split, 2, 10).count, 5);
  EXPECT_EQ(Row(split, 2, 10).targets[4], 25);
  int64_t targets = 0;
  for (int64_t i = 0; i < 3; ++i) targets += Row(split, i, 10).count;
  EXPECT_EQ(targets, 25) << "splitting loses no target";
  EXPECT_EQ(Sequences(file, {10, "pad", "drop"}).summary().dropped, 1);
}

TEST(Sequences, WhatTrainsNothingIsLeftOutAndCounted) {
  const ScratchDirectory d;
  const auto late = [](size_t, size_t t) { return t >= 8; };
  const TokenFile file(marked_set(d, "x.mtbin", {5, 12, 20}, late), 5000);
  const Sequences rows(file, {10, "auto", "right"});
  EXPECT_EQ(rows.summary().untrained, 1);
  EXPECT_EQ(rows.count(), 2);
  try {
    Sequences(file, {6, "auto", "right"});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("no document trains anything with sequence_length 6"),
              std::string::npos);
  }
  EXPECT_NO_THROW(Sequences(file, {6, "auto", "left"}));
}

TEST(Sequences, OnlyTheChosenSideOfAPairIsTrained) {
  const ScratchDirectory d;
  const TokenFile file(
      marked_set(d, "x.mtbin", {5, 6, 7, 8}, kAll, TokenFileHeader::kMarked | TokenFileHeader::kPairs), 5000);
  const Sequences rows(file, {10, "pad", "right"});
  ASSERT_EQ(rows.count(), 2);
  EXPECT_EQ(Row(rows, 0, 10).tokens[0], 0);
  EXPECT_EQ(Row(rows, 1, 10).tokens[0], 2);
}

TEST(Loader, SetsAreMixedByWeightAndEachInItsOwnOrder) {
  const ScratchDirectory d;
  std::vector<int32_t> a(1001), b(301);
  std::iota(a.begin(), a.end(), 0), std::iota(b.begin(), b.end(), 2000);
  write_token_file(d.file("a.bin"), a), write_token_file(d.file("b.bin"), b);
  const TokenFile fa(d.file("a.bin"), 5000), fb(d.file("b.bin"), 5000);
  const Sequences ra(fa, {10, "auto", "right"}), rb(fb, {10, "auto", "right"});
  const Loader loader({{&ra, 0.25}, {&rb, 0.75}}, 8, 10, "epoch", 5);
  std::vector<int32_t> from_a, from_b;
  Batch batch;
  for (int64_t step = 0; step < 2 * 4096 / 8; ++step) {
    loader.batch(step, batch);
    for (size_t row = 0; row < 8; ++row)
      (batch.tokens[row * 10] < 2000 ? from_a : from_b).push_back(batch.tokens[row * 10]);
  }
  EXPECT_EQ(from_a.size(), 2048u) << "a quarter";
  // Inside a block the order is shuffled, so an epoch of a set need not be contiguous; over whole blocks
  // every row comes as often as any other, give or take one.
  std::map<int32_t, int> times;
  for (int32_t t : from_a) ++times[t];
  EXPECT_EQ(times.size(), 100u);
  for (const auto& [row, n] : times) EXPECT_NEAR(n, 20.48, 1.0) << row;
  times.clear();
  for (int32_t t : from_b) ++times[t];
  EXPECT_EQ(times.size(), 30u);
  for (const auto& [row, n] : times) EXPECT_NEAR(n, 204.8, 1.0) << row;
  // Without weights: by size.
  const Loader by_size({{&ra, 0}, {&rb, 0}}, 8, 10, "epoch", 5);
  int64_t of_a = 0;
  for (int64_t step = 0; step < 512; ++step) {
    by_size.batch(step, batch);
    for (size_t row = 0; row < 8; ++row) of_a += batch.tokens[row * 10] < 2000;
  }
  EXPECT_NEAR(static_cast<double>(of_a) / 4096, 100.0 / 130, 0.001);
}

TEST(Prefetcher, GivesWhatTheLoaderGivesInAnyOrder) {
  const ScratchDirectory d;
  std::vector<int32_t> ids(1001);
  std::iota(ids.begin(), ids.end(), 0);
  write_token_file(d.file("a.bin"), ids);
  const TokenFile file(d.file("a.bin"), 5000);
  const Sequences rows(file, {10, "auto", "right"});
  const Loader loader({{&rows, 0}}, 8, 10, "epoch", 5);
  Prefetcher ahead(loader);
  Batch want;
  for (int64_t step : {0, 1, 2, 3, 17, 18, 5, 5, 6}) {
    loader.batch(step, want);
    const Batch& got = ahead.get(step);
    EXPECT_EQ(got.tokens, want.tokens) << step;
    EXPECT_EQ(got.targets, want.targets) << step;
  }
}

// The file becomes shorter while it is in use: an error that names it, on the thread that asks.
TEST(Prefetcher, PassesErrorsOn) {
  const ScratchDirectory d;
  std::vector<int32_t> ids(1001, 1);
  write_token_file(d.file("a.bin"), ids);
  const TokenFile file(d.file("a.bin"), 5000);
  const Sequences rows(file, {10, "auto", "right"});
  const Loader loader({{&rows, 0}}, 8, 10, "sequential", 5);
  Prefetcher ahead(loader);
  ahead.get(0);
  std::filesystem::resize_file(d.file("a.bin"), 400);
  EXPECT_THROW(for (int64_t s = 1; s < 12; ++s) ahead.get(s), Error);
}

}  // namespace
}  // namespace megatrain
