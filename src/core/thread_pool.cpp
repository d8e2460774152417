#include "core/thread_pool.h"

namespace megatrain {

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { worker(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& t : workers_) t.join();
}

void ThreadPool::drain(Fn fn, void* ctx, int64_t n) {
  for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < n;) fn(ctx, i);
}

void ThreadPool::run(int64_t n, Fn fn, void* ctx) {
  if (n <= 0) return;
  if (n == 1 || workers_.empty()) {
    for (int64_t i = 0; i < n; ++i) fn(ctx, i);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    fn_ = fn, ctx_ = ctx, n_ = n;
    next_.store(0, std::memory_order_relaxed);
    busy_ = static_cast<int>(workers_.size());
    ++generation_;
  }
  wake_.notify_all();
  drain(fn, ctx, n);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
}

void ThreadPool::worker() {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
    if (stop_) return;
    seen = generation_;
    const Fn fn = fn_;
    void* const ctx = ctx_;
    const int64_t n = n_;
    lock.unlock();
    drain(fn, ctx, n);
    lock.lock();
    if (--busy_ == 0) done_.notify_one();
  }
}

}  // namespace megatrain
