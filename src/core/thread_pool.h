#pragma once
// defines: ThreadPool — fork-join parallel loops for one caller at a time.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "core/numa.h"

namespace megatrain {

/// A fixed team of threads (the caller is one of them). `parallel_for(n, f)` runs f(0..n-1); which
/// thread runs which item is not fixed, so a kernel must give each item its own output. That makes
/// results independent of the number of threads. Not re-entrant; one caller at a time.
class ThreadPool {
 public:
  /// With several `nodes` the threads are spread over them and stay there (the caller, for as long as it is
  /// the pool's, at the first).
  explicit ThreadPool(int threads, const NumaNodes* nodes = nullptr);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  template <class F>
  void parallel_for(int64_t n, F&& f) {
    run(
        n, [](void* c, int64_t i) { (*static_cast<std::remove_reference_t<F>*>(c))(i); },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

  /// Splits [0, n) into ranges of `grain` items and calls f(begin, end) for each.
  template <class F>
  void parallel_ranges(int64_t n, int64_t grain, F&& f) {
    parallel_for((n + grain - 1) / grain,
                 [&](int64_t i) { f(i * grain, (i + 1) * grain < n ? (i + 1) * grain : n); });
  }

  /// The same for a part of a block: elements [first, first + n) of `size`. Each range is done by a thread of
  /// the node to whose share of the block it belongs (core/numa.h), while that has any; then by whoever is
  /// free.
  template <class F>
  void parallel_near(int64_t first, int64_t n, int64_t size, int64_t grain, F&& f) {
    const int64_t items = (n + grain - 1) / grain;
    auto call = [&](int64_t i) { f(i * grain, (i + 1) * grain < n ? (i + 1) * grain : n); };
    for (int s = 0; s <= nodes_; ++s) {
      const int64_t at = (share_begin(size, s, nodes_) - first + grain - 1) / grain;
      shares_[static_cast<size_t>(s)] = s == nodes_ ? items : at < 0 ? 0 : at > items ? items : at;
    }
    shares_[0] = 0;
    run(
        items, [](void* c, int64_t i) { (*static_cast<decltype(call)*>(c))(i); }, &call, true);
  }

 private:
  using Fn = void (*)(void*, int64_t);
  void run(int64_t n, Fn fn, void* ctx, bool near = false);
  void worker(int node);
  void drain(Fn fn, void* ctx, int64_t n, int node);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  uint64_t generation_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  Fn fn_ = nullptr;
  void* ctx_ = nullptr;
  int64_t n_ = 0;
  int nodes_ = 1;
  bool near_ = false;
  std::vector<int64_t> shares_;             // of a parallel_near: where each node's items begin
  std::vector<std::atomic<int64_t>> next_;  // of each node; the first, without nodes
};

}  // namespace megatrain
