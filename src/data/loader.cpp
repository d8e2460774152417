#include "data/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/rng.h"

namespace megatrain {
namespace {

constexpr uint64_t kShuffleStream = uint64_t{1} << 41, kOffsetStream = uint64_t{1} << 42;
constexpr uint64_t kBlock = 4096;

}  // namespace

uint64_t permute(uint64_t index, uint64_t n, uint64_t key) {
  unsigned half = 1;
  while ((uint64_t{1} << (2 * half)) < n) ++half;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  do {
    uint64_t left = index >> half, right = index & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t next = left ^ (random_u64(key, kShuffleStream + round, right) & mask);
      left = right, right = next;
    }
    index = (left << half) | right;
  } while (index >= n);
  return index;
}

Loader::Loader(std::vector<WeightedSet> sets, int64_t batch, int64_t seq_len, const std::string& sampling,
               uint64_t seed)
    : sets_(std::move(sets)),
      batch_(batch),
      seq_len_(seq_len),
      random_(sampling == "random"),
      sequential_(sampling == "sequential"),
      seed_(seed) {
  double total = 0;
  for (WeightedSet& s : sets_) {
    if (s.weight <= 0) s.weight = static_cast<double>(s.rows->count());
    total += s.weight;
  }
  for (WeightedSet& s : sets_) s.weight /= total;
  // The last set takes what rounding leaves; it must be able to.
  std::stable_sort(sets_.begin(), sets_.end(), [](auto& a, auto& b) { return a.weight < b.weight; });
}

int64_t Loader::rows() const {
  return std::accumulate(sets_.begin(), sets_.end(), int64_t{0},
                         [](int64_t n, const WeightedSet& s) { return n + s.rows->count(); });
}

bool Loader::packed() const {
  return std::any_of(sets_.begin(), sets_.end(), [](const WeightedSet& s) { return s.rows->packed(); });
}

// Rows of a set in the blocks before `block`.
uint64_t Loader::share(size_t set, uint64_t block) const {
  return static_cast<uint64_t>(sets_[set].weight * static_cast<double>(block * kBlock));
}

Loader::Place Loader::place_of(uint64_t index) const {
  if (sets_.size() == 1) return {0, index};
  const uint64_t block = index / kBlock;
  uint64_t at = permute(index % kBlock, kBlock, seed_ + 0xD1B54A32D192ED03u * (block + 1)), before = 0;
  for (size_t s = 0; s + 1 < sets_.size(); ++s) {
    const uint64_t first = share(s, block), count = share(s, block + 1) - first;
    if (at < count) return {s, first + at};
    at -= count, before += first;
  }
  return {sets_.size() - 1, block * kBlock - before + at};
}

void Loader::read(const Place& p, int32_t* tokens, int32_t* targets, int32_t* positions) const {
  const Sequences& rows = *sets_[p.set].rows;
  const auto n = static_cast<uint64_t>(rows.count());
  const uint64_t seed = seed_ + p.set * 0x632BE59BD9B4E019u;
  if (random_ && rows.stream()) {
    const auto places = static_cast<uint64_t>(rows.file().size() - seq_len_);
    const uint64_t first = random_u64(seed, kOffsetStream, p.index) % places;
    return rows.read_window(static_cast<int64_t>(first), tokens, targets, positions);
  }
  uint64_t row = p.index % n;
  if (random_)
    row = random_u64(seed, kOffsetStream, p.index) % n;
  else if (!sequential_)
    row = permute(row, n, seed + 0x9E3779B9u * (p.index / n));
  rows.read(static_cast<int64_t>(row), tokens, targets, positions);
}

void Loader::batch(int64_t step, Batch& out) const {
  out.resize(batch_, seq_len_);
  for (int64_t i = 0; i < batch_; ++i)
    read(place_of(static_cast<uint64_t>(step * batch_ + i)), &out.tokens[static_cast<size_t>(i * seq_len_)],
         &out.targets[static_cast<size_t>(i * seq_len_)], &out.positions[static_cast<size_t>(i * seq_len_)]);
}

Prefetcher::Prefetcher(const Loader& loader) : loader_(loader), thread_([this] { work(); }) {}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

// Only this thread writes next_ while wanted_ != ready_; get() swaps it out when they are equal.
void Prefetcher::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || wanted_ != ready_; });
    if (stop_) return;
    const int64_t step = wanted_;
    lock.unlock();
    std::exception_ptr error;
    try {
      loader_.batch(step, next_);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    ready_ = step, error_ = error;
    changed_.notify_all();
  }
}

const Batch& Prefetcher::get(int64_t step) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return wanted_ == ready_; });
  if (ready_ != step) {
    wanted_ = step;
    changed_.notify_all();
    changed_.wait(lock, [&] { return wanted_ == ready_; });
  }
  if (error_) std::rethrow_exception(error_);
  std::swap(current_, next_);
  wanted_ = step + 1;
  changed_.notify_all();
  return current_;
}

}  // namespace megatrain
