#pragma once
// defines: CpuStream, CpuEvent — a stream that is a real thread with a queue, so that a missing wait
// is a data race that ThreadSanitizer reports on a laptop.

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/inplace_function.h"
#include "core/thread_pool.h"
#include "device/device.h"

namespace megatrain {

class CpuEvent : public Event {
 public:
  void synchronize() override { wait_for(recorded()); }
  /// Ticket of the latest record; the stream signals tickets in order.
  uint64_t next_ticket();
  uint64_t recorded() const;
  virtual void signal(uint64_t ticket);
  void wait_for(uint64_t ticket);

 private:
  mutable std::mutex mutex_;
  std::condition_variable reached_;
  uint64_t recorded_ = 0, done_ = 0;
};

class CpuStream : public Stream {
 public:
  using Work = InplaceFunction<ThreadPool&>;

  /// `threads`: size of the team that each piece of work may use (the stream's own thread included).
  CpuStream(std::string name, int threads);
  ~CpuStream() override;

  /// Appends work; blocks only while the queue is full.
  void enqueue(Work work);
  void record(Event& event) override;
  void wait(Event& event) override;
  void synchronize() override;
  void stamp(int slot) override;
  double stamp_seconds(int slot) const override { return stamps_[static_cast<size_t>(slot)]; }
  void reserve_stamps(int slots) override;
  const std::string& name() const { return name_; }

 private:
  struct Item {
    Work work;
    bool always;  ///< runs even after an error (event signals and waits)
  };
  static constexpr size_t kCapacity = 1024;
  void push(Work work, bool always);
  void loop();

  std::string name_;
  int threads_;
  std::vector<Item> ring_;
  size_t head_ = 0, count_ = 0;
  bool idle_ = true, stop_ = false;
  std::exception_ptr error_;
  std::mutex mutex_;
  std::condition_variable not_empty_, not_full_, drained_;
  std::vector<double> stamps_;
  std::thread thread_;
};

}  // namespace megatrain
