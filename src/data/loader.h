#pragma once
// defines: Loader, Prefetcher — batches as a pure function of (seed, step): nothing to save but the step.

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "data/sequences.h"

namespace megatrain {

/// One of the sets that a run mixes.
struct WeightedSet {
  const Sequences* rows = nullptr;
  double weight = 0;  ///< share of the rows; 0 for all sets: as many as each has
};

/// sampling "epoch": every row once, shuffled anew each epoch without keeping a permutation in memory
/// (gigaGPT's order, made resumable). "random": rows with replacement; for streams, nanoGPT's random offsets.
/// "sequential": the rows in file order, again and again. Several sets: every block of 4096 rows holds each
/// set's share, in an order of its own.
class Loader {
 public:
  Loader(std::vector<WeightedSet> sets, int64_t batch, int64_t seq_len, const std::string& sampling,
         uint64_t seed);
  /// Fills the batch of optimizer step `step`. Thread-safe.
  void batch(int64_t step, Batch& out) const;
  int64_t rows() const;  ///< of one epoch, of all sets
  bool packed() const;   ///< some set needs documents kept apart

 private:
  struct Place {
    size_t set;
    uint64_t index;
  };
  Place place_of(uint64_t index) const;
  uint64_t share(size_t set, uint64_t block) const;
  void read(const Place& place, int32_t* tokens, int32_t* targets, int32_t* positions) const;

  std::vector<WeightedSet> sets_;
  int64_t batch_, seq_len_;
  bool random_, sequential_;
  uint64_t seed_;
};

/// Makes the next step's batch on a thread of its own while this one is computed.
class Prefetcher {
 public:
  explicit Prefetcher(const Loader& loader);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  /// The batch of `step`, valid until the next call; starts on step + 1. Rethrows what reading threw.
  const Batch& get(int64_t step);

 private:
  void work();
  const Loader& loader_;
  Batch current_, next_;
  int64_t wanted_ = -1, ready_ = -1;
  bool stop_ = false;
  std::exception_ptr error_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
};

/// Position `index` of a random permutation of [0, n) named by `key` (a Feistel network, cycle-walked).
uint64_t permute(uint64_t index, uint64_t n, uint64_t key);

}  // namespace megatrain
