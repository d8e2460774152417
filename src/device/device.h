#pragma once
// defines: Device, Stream, Event — what the engine needs of a machine. CpuDevice implements it with
// real threads, CudaDevice over CUDA; both run the same Schedule.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace megatrain {

class CpuEvent;
class Ops;

enum class DeviceKind { cpu, cuda };

/// A point in a stream's work. Recorded by one stream, waited for by others or by the host.
class Event {
 public:
  virtual ~Event() = default;
  /// Blocks the calling host thread until the last record has been reached.
  virtual void synchronize() = 0;
};

/// A first-in-first-out queue of asynchronous work. Enqueuing returns at once and does not allocate.
/// An error inside the work is kept, the rest of the queue is skipped (events still fire, so nobody
/// hangs), and the next synchronize() throws it.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void record(Event& event) = 0;
  virtual void wait(Event& event) = 0;
  virtual void synchronize() = 0;
  /// Enqueues a time stamp into `slot`; `stamp_seconds` reads it after synchronize().
  virtual void stamp(int slot) = 0;
  virtual double stamp_seconds(int slot) const = 0;
  /// Makes room for `slots` stamps. Call before a step, never inside one.
  virtual void reserve_stamps(int slots) = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual std::string name() const = 0;
  /// Bytes this device may hand out, and what it has handed out (now, and at most so far).
  virtual int64_t memory_limit() const = 0;
  virtual int64_t memory_used() const = 0;
  virtual int64_t memory_peak() const = 0;
  /// Device memory. Throws Error when `memory_limit` would be passed.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* data, int64_t bytes) = 0;
  /// Host memory that copies can be asynchronous to ("pinned"); counted in pinned_used(). `parts`: where
  /// arrays begin in it; on a machine with several NUMA nodes the pages of each are spread as
  /// ThreadPool::parallel_near spreads the work on it.
  virtual void* allocate_pinned(int64_t bytes, const std::vector<int64_t>& parts) = 0;
  void* allocate_pinned(int64_t bytes) { return allocate_pinned(bytes, {0}); }
  virtual void release_pinned(void* data, int64_t bytes) = 0;
  virtual int64_t pinned_used() const = 0;

  virtual std::unique_ptr<Stream> new_stream(const std::string& name) = 0;
  virtual std::unique_ptr<Event> new_event() = 0;
  /// An event that the host lane records and this device's streams can wait for.
  virtual std::unique_ptr<CpuEvent> new_host_event() = 0;
  /// Asynchronous copy in either direction.
  virtual void copy(Stream& stream, void* to, const void* from, int64_t bytes) = 0;
  /// The same at once, by any thread: filling and saving, never inside a step.
  virtual void copy_now(void* to, const void* from, int64_t bytes) = 0;
  /// Zeros in device memory, at once.
  virtual void clear(void* data, int64_t bytes) = 0;
  virtual Ops& ops() = 0;
};

}  // namespace megatrain
