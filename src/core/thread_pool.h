#pragma once
// defines: ThreadPool — fork-join parallel loops for one caller at a time.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace megatrain {

/// A fixed team of threads (the caller is one of them). `parallel_for(n, f)` runs f(0..n-1); which
/// thread runs which item is not fixed, so a kernel must give each item its own output. That makes
/// results independent of the number of threads. Not re-entrant; one caller at a time.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
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

 private:
  using Fn = void (*)(void*, int64_t);
  void run(int64_t n, Fn fn, void* ctx);
  void worker();
  void drain(Fn fn, void* ctx, int64_t n);

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  uint64_t generation_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  Fn fn_ = nullptr;
  void* ctx_ = nullptr;
  int64_t n_ = 0;
  std::atomic<int64_t> next_{0};
};

}  // namespace megatrain
