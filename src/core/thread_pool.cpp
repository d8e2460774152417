#include "core/thread_pool.h"

namespace megatrain {

ThreadPool::ThreadPool(int threads, const NumaNodes* nodes)
    : nodes_(nodes && threads > 1 ? static_cast<int>(nodes->size()) : 1),
      shares_(static_cast<size_t>(nodes_) + 1),
      next_(static_cast<size_t>(nodes_)) {
  if (nodes && nodes_ > 1) run_on(nodes->front());
  for (int i = 1; i < threads; ++i) {
    const int node = nodes_ * i / threads;
    workers_.emplace_back([this, node, nodes] {
      if (nodes && nodes_ > 1) run_on((*nodes)[static_cast<size_t>(node)]);
      worker(node);
    });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& t : workers_) t.join();
}

void ThreadPool::drain(Fn fn, void* ctx, int64_t n, int node) {
  const int lists = near_ ? nodes_ : 1;
  for (int k = 0; k < lists; ++k) {
    const auto list = static_cast<size_t>((node + k) % lists);
    const int64_t end = near_ ? shares_[list + 1] : n;
    for (int64_t i; (i = next_[list].fetch_add(1, std::memory_order_relaxed)) < end;) fn(ctx, i);
  }
}

void ThreadPool::run(int64_t n, Fn fn, void* ctx, bool near) {
  if (n <= 0) return;
  if (n == 1 || workers_.empty()) {
    for (int64_t i = 0; i < n; ++i) fn(ctx, i);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    fn_ = fn, ctx_ = ctx, n_ = n, near_ = near && nodes_ > 1;
    for (size_t s = 0; s < next_.size(); ++s)
      next_[s].store(near_ ? shares_[s] : 0, std::memory_order_relaxed);
    busy_ = static_cast<int>(workers_.size());
    ++generation_;
  }
  wake_.notify_all();
  drain(fn, ctx, n, 0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
}

void ThreadPool::worker(int node) {
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
    drain(fn, ctx, n, node);
    lock.lock();
    if (--busy_ == 0) done_.notify_one();
  }
}

}  // namespace megatrain
