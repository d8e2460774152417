#include "device/cpu/cpu_stream.h"

namespace megatrain {

uint64_t CpuEvent::next_ticket() {
  std::lock_guard lock(mutex_);
  return ++recorded_;
}

uint64_t CpuEvent::recorded() const {
  std::lock_guard lock(mutex_);
  return recorded_;
}

void CpuEvent::signal(uint64_t ticket) {
  std::lock_guard lock(mutex_);  // held while notifying: the waiter may destroy the event right after
  done_ = ticket;
  reached_.notify_all();
}

void CpuEvent::wait_for(uint64_t ticket) {
  std::unique_lock lock(mutex_);
  reached_.wait(lock, [&] { return done_ >= ticket; });
}

CpuStream::CpuStream(std::string name, int threads)
    : name_(std::move(name)), threads_(threads), ring_(kCapacity) {
  thread_ = std::thread([this] { loop(); });
}

CpuStream::~CpuStream() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  not_empty_.notify_all();
  thread_.join();
}

void CpuStream::enqueue(Work work) {
  push(std::move(work), false);
}

void CpuStream::push(Work work, bool always) {
  std::unique_lock lock(mutex_);
  not_full_.wait(lock, [this] { return count_ < kCapacity; });
  Item& slot = ring_[(head_ + count_) % kCapacity];
  slot.work = std::move(work), slot.always = always;
  ++count_;
  lock.unlock();
  not_empty_.notify_one();
}

void CpuStream::record(Event& event) {
  auto* e = &static_cast<CpuEvent&>(event);
  const uint64_t ticket = e->next_ticket();
  push([e, ticket](ThreadPool&) { e->signal(ticket); }, true);
}

void CpuStream::wait(Event& event) {
  if (auto* e = dynamic_cast<CpuEvent*>(&event)) {
    const uint64_t ticket = e->recorded();
    push([e, ticket](ThreadPool&) { e->wait_for(ticket); }, true);
  } else {  // a device's event: the host lane blocks in the driver
    push([ev = &event](ThreadPool&) { ev->synchronize(); }, true);
  }
}

void CpuStream::synchronize() {
  std::unique_lock lock(mutex_);
  drained_.wait(lock, [this] { return count_ == 0 && idle_; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void CpuStream::reserve_stamps(int slots) {
  synchronize();
  if (stamps_.size() < static_cast<size_t>(slots)) stamps_.resize(static_cast<size_t>(slots));
}

void CpuStream::stamp(int slot) {
  double* out = &stamps_[static_cast<size_t>(slot)];
  push(
      [out](ThreadPool&) {
        using namespace std::chrono;
        *out = duration<double>(steady_clock::now().time_since_epoch()).count();
      },
      true);
}

void CpuStream::loop() {
  ThreadPool pool(threads_, &numa_nodes());
  std::unique_lock lock(mutex_);
  for (;;) {
    not_empty_.wait(lock, [this] { return stop_ || count_ > 0; });
    if (count_ == 0) return;  // stopped and empty
    Item item = std::move(ring_[head_]);
    head_ = (head_ + 1) % kCapacity, --count_, idle_ = false;
    const bool run = item.always || !error_;
    lock.unlock();
    not_full_.notify_one();
    std::exception_ptr error;
    if (run) {
      try {
        item.work(pool);
      } catch (...) {
        error = std::current_exception();
      }
    }
    lock.lock();
    if (error && !error_) error_ = error;
    idle_ = true;
    if (count_ == 0) drained_.notify_all();
  }
}

}  // namespace megatrain
