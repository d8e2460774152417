#include "data/sequences.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>

#include "core/error.h"

namespace megatrain {

void Batch::resize(int64_t rows, int64_t seq_len) {
  const auto n = static_cast<size_t>(rows * seq_len);
  tokens.resize(n), targets.resize(n), positions.resize(n);
}

std::vector<uint32_t> best_fit(const std::vector<uint32_t>& lengths, uint32_t capacity) {
  std::vector<uint32_t> order(lengths.size()), bin(lengths.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return lengths[a] > lengths[b]; });
  std::map<uint32_t, std::vector<uint32_t>> open;  // bins by what is left in them
  uint32_t bins = 0;
  for (uint32_t item : order) {
    if (lengths[item] > capacity) throw std::logic_error("best_fit: an item is longer than a bin");
    uint32_t left = capacity;
    const auto fits = open.lower_bound(lengths[item]);
    if (fits == open.end()) {
      bin[item] = bins++;
    } else {
      left = fits->first, bin[item] = fits->second.back();
      fits->second.pop_back();
      if (fits->second.empty()) open.erase(fits);
    }
    if (left > lengths[item]) open[left - lengths[item]].push_back(bin[item]);
  }
  return bin;
}

Sequences::Sequences(const TokenFile& file, const SequenceOptions& o) : file_(file), seq_len_(o.seq_len) {
  const bool documents = file.documents() > 0;
  if (!documents && (o.packing == "pack" || o.packing == "pad"))
    fail(fmt::format("{}: is one stream of text without documents, so packing '{}' cannot be; use stream",
                     file.path(), o.packing));
  layout_ = o.packing == "pack" ? pack : o.packing == "pad" ? pad : windows;
  if (o.packing == "auto" && file.marked()) layout_ = pack;
  if (layout_ == windows && file.marked())
    fail(file.path() + ": is a fine-tuning set; packing must be pack or pad");
  summary_.seq_len = seq_len_, summary_.documents = file.documents(), summary_.tokens = file.size();
  if (layout_ == windows) {
    count_ = (file.size() - 1) / seq_len_;
    if (count_ < 1)
      fail(fmt::format("{}: {} tokens are too few for sequence_length {}; it needs at least {}", file.path(),
                       file.size(), seq_len_, seq_len_ + 1));
  } else {
    find_pieces(o.truncation);
    if (pieces_.empty())
      fail(
          fmt::format("{}: no document trains anything with sequence_length {} (truncation {}); raise it or "
                      "look at 'megatrain data check'",
                      file.path(), seq_len_, o.truncation));
    count_ = static_cast<int64_t>(pieces_.size());
    if (layout_ == pack) fill_rows();
  }
  summary_.rows = count_;
}

void Sequences::find_pieces(const std::string& truncation) {
  summary_.tokens = 0;
  const int64_t step = file_.pairs() ? 2 : 1;  // only what was chosen is trained on
  for (int64_t i = 0; i < file_.documents(); i += step) {
    const auto [first, size] = file_.document(i);
    if (size > seq_len_ + 1)
      cut(first, size, truncation);
    else
      add(first, size - 1);
  }
}

void Sequences::cut(int64_t first, int64_t size, const std::string& truncation) {
  if (truncation == "drop") {
    ++summary_.dropped;
    return;
  }
  ++summary_.cut;
  if (truncation == "left") return add(first + size - 1 - seq_len_, seq_len_);
  if (truncation == "right") return add(first, seq_len_);
  for (int64_t at = 0; at + 1 < size; at += seq_len_) add(first + at, std::min(seq_len_, size - 1 - at));
}

void Sequences::add(int64_t first, int64_t inputs) {
  bool trains = inputs > 0 && !file_.marked();
  if (inputs > 0 && file_.marked()) {
    std::vector<int32_t> tokens(static_cast<size_t>(inputs));
    std::vector<uint8_t> context(tokens.size());
    file_.read(first + 1, inputs, tokens.data(), context.data());
    trains = std::find(context.begin(), context.end(), 0) != context.end();
  }
  summary_.untrained += !trains;
  if (!trains) return;
  summary_.tokens += inputs;
  pieces_.push_back({static_cast<uint64_t>(first), static_cast<uint32_t>(inputs)});
}

void Sequences::fill_rows() {
  std::vector<uint32_t> lengths;
  for (const Piece& p : pieces_) lengths.push_back(p.inputs);
  const std::vector<uint32_t> row = best_fit(lengths, static_cast<uint32_t>(seq_len_));
  rows_.assign(*std::max_element(row.begin(), row.end()) + size_t{2}, 0);
  for (uint32_t r : row) ++rows_[r + 1];
  std::partial_sum(rows_.begin(), rows_.end(), rows_.begin());
  std::vector<uint64_t> next(rows_.begin(), rows_.end() - 1);
  std::vector<Piece> ordered(pieces_.size());
  for (size_t i = 0; i < pieces_.size(); ++i) ordered[next[row[i]]++] = pieces_[i];
  pieces_ = std::move(ordered);
  count_ = static_cast<int64_t>(rows_.size()) - 1;
}

int64_t Sequences::read_piece(const Piece& p, int32_t* tokens, int32_t* targets, int32_t* positions) const {
  std::vector<int32_t> ids(p.inputs + size_t{1});
  std::vector<uint8_t> context(ids.size());
  file_.read(static_cast<int64_t>(p.first), static_cast<int64_t>(ids.size()), ids.data(), context.data());
  int64_t count = 0;
  for (size_t t = 0; t < p.inputs; ++t) {
    tokens[t] = ids[t];
    targets[t] = context[t + 1] ? -1 : ids[t + 1];
    positions[t] = static_cast<int32_t>(t);
    count += targets[t] >= 0;
  }
  return count;
}

int64_t Sequences::count_with_partial() const {
  return layout_ == windows ? (file_.size() - 1 + seq_len_ - 1) / seq_len_ : count_;
}

void Sequences::read_window(int64_t first, int32_t* tokens, int32_t* targets, int32_t* positions) const {
  read_piece({static_cast<uint64_t>(first), static_cast<uint32_t>(seq_len_)}, tokens, targets, positions);
}

int64_t Sequences::read(int64_t i, int32_t* tokens, int32_t* targets, int32_t* positions) const {
  int64_t used = 0, count = 0;
  auto take = [&](const Piece& p) {
    count += read_piece(p, tokens + used, targets + used, positions + used);
    used += p.inputs;
  };
  if (layout_ == windows)
    take({static_cast<uint64_t>(i * seq_len_),
          static_cast<uint32_t>(std::min(seq_len_, file_.size() - 1 - i * seq_len_))});
  else if (layout_ == pad)
    take(pieces_[static_cast<size_t>(i)]);
  else
    for (uint64_t p = rows_[static_cast<size_t>(i)]; p < rows_[static_cast<size_t>(i) + 1]; ++p)
      take(pieces_[p]);
  std::fill(tokens + used, tokens + seq_len_, 0);
  std::fill(targets + used, targets + seq_len_, -1);
  // Behind a packed row the pad is a document of its own.
  std::iota(positions + used, positions + seq_len_, layout_ == pack ? 0 : static_cast<int32_t>(used));
  return count;
}

std::string Sequences::Summary::text() const {
  if (documents == 0) return fmt::format("{} windows an epoch", rows);
  std::string out = fmt::format(
      "{} documents in {} rows an epoch, {:.0f}% full", documents, rows,
      100.0 * static_cast<double>(tokens) / static_cast<double>(std::max<int64_t>(rows * seq_len, 1)));
  if (cut > 0) out += fmt::format(", {} cut to sequence_length", cut);
  if (dropped > 0) out += fmt::format(", {} too long and dropped", dropped);
  if (untrained > 0) out += fmt::format(", {} left out: no target", untrained);
  return out;
}

}  // namespace megatrain
