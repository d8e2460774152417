// Streams, events, arenas and limits of the CPU device.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "core/error.h"
#include "core/units.h"
#include "device/arena.h"
#include "device/cpu/cpu_device.h"
#include "engine/executor.h"

namespace megatrain {
namespace {

using std::chrono::milliseconds;

TEST(CpuStream, RunsInOrderAndAsynchronously) {
  CpuStream s("test", 2);
  std::atomic<bool> go{false};
  std::vector<int> order;
  s.enqueue([&](ThreadPool&) {
    while (!go) std::this_thread::yield();
  });
  for (int i = 0; i < 3000; ++i) {  // more than the queue holds
    if (i == 500) go = true;
    s.enqueue([&order, i](ThreadPool&) { order.push_back(i); });
  }
  s.synchronize();
  ASSERT_EQ(order.size(), 3000u);
  for (int i = 0; i < 3000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(CpuStream, EventOrdersTwoStreams) {
  CpuStream a("a", 1), b("b", 1);
  CpuEvent e;
  int value = 0, seen = -1;
  for (int round = 1; round <= 50; ++round) {
    a.enqueue([&, round](ThreadPool&) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      value = round;
    });
    a.record(e);
    b.wait(e);
    b.enqueue([&](ThreadPool&) { seen = value; });
    b.synchronize();
    EXPECT_EQ(seen, round);
  }
}

TEST(CpuStream, AnErrorSkipsTheRestButNobodyHangs) {
  CpuStream a("a", 1), b("b", 1);
  CpuEvent e;
  bool ran = false;
  a.enqueue([](ThreadPool&) { fail("planted"); });
  a.enqueue([&](ThreadPool&) { ran = true; });
  a.record(e);
  b.wait(e);
  b.synchronize();
  EXPECT_THROW(a.synchronize(), Error);
  EXPECT_FALSE(ran);
  a.enqueue([&](ThreadPool&) { ran = true; });  // usable again
  a.synchronize();
  EXPECT_TRUE(ran);
}

TEST(CpuDevice, CountsAndLimitsMemory) {
  CpuDevice d(1000000, 1);
  void* p = d.allocate(600000);
  EXPECT_THROW(d.allocate(600000), Error);
  d.release(p, 600000);
  EXPECT_EQ(d.memory_used(), 0);
  EXPECT_EQ(d.memory_peak(), 600000);
  void* q = d.allocate_pinned(5000000);  // host memory is not the device's
  EXPECT_EQ(d.pinned_used(), 5000000);
  d.release_pinned(q, 5000000);
  EXPECT_EQ(d.pinned_used(), 0);
}

TEST(Arena, NamesWhatRanOut) {
  CpuDevice d(1 << 20, 1);
  Arena a(d, "device memory", 4096, "lower micro_batch");
  a.take("weights", 3000);
  try {
    a.take("work", 2000);
    FAIL();
  } catch (const Error& e) {
    const std::string w = e.what();
    for (const char* part : {"work", "2.00 KiB", "weights", "lower micro_batch"})
      EXPECT_NE(w.find(part), std::string::npos) << w;
  }
  a.seal();
  EXPECT_THROW(a.take("late", 1), std::logic_error);
  EXPECT_THROW(Arena(d, "device memory", 1 << 21, "lower micro_batch"), Error);
}

TEST(ThreadPool, EveryItemOnce) {
  ThreadPool pool(4);
  for (int64_t n : {0, 1, 3, 1000}) {
    std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
    pool.parallel_for(n, [&](int64_t i) { ++hits[static_cast<size_t>(i)]; });
    for (auto& h : hits) EXPECT_EQ(h, 1);
  }
}

TEST(Executor, WorkOfOneLaneOverlapsAnother) {
  CpuDevice d(1 << 20, 1);
  Executor ex(d, 1);
  Schedule s;
  s.tasks.push_back({TaskKind::load_weights, Lane::h2d, 0, -1, {}, {}, {}});
  s.tasks.push_back({TaskKind::block_forward, Lane::compute, 0, -1, {}, {}, {}});
  s.tasks.push_back({TaskKind::read_back, Lane::d2h, 0, -1, {}, {1}, {}});
  Timeline t;
  const TaskRunner sleep = [](const Task&, Stream& q) {
    static_cast<CpuStream&>(q).enqueue([](ThreadPool&) { std::this_thread::sleep_for(milliseconds(60)); });
  };
  ex.run(s, {}, sleep, {}, &t);
  EXPECT_LT(t.spans[1].begin, t.spans[0].end);  // beside each other
  EXPECT_GE(t.spans[2].begin, t.spans[1].end);  // behind its wait
  ex.run(s, {}, sleep, {true, false}, &t);
  EXPECT_GE(t.spans[1].begin, t.spans[0].end);  // serialized
  EXPECT_GE(t.busy(s, Lane::compute), 0.059);
}

TEST(Executor, ErrorInATaskIsThrownAfterAllLanesEnded) {
  CpuDevice d(1 << 20, 1);
  Executor ex(d, 1);
  Schedule s;
  s.tasks.push_back({TaskKind::load_weights, Lane::h2d, 0, -1, {}, {}, {}});
  s.tasks.push_back({TaskKind::block_forward, Lane::compute, 0, -1, {}, {0}, {}});
  const TaskRunner runner = [](const Task& t, Stream& q) {
    if (t.lane == Lane::h2d) static_cast<CpuStream&>(q).enqueue([](ThreadPool&) { fail("planted"); });
  };
  EXPECT_THROW(ex.run(s, {}, runner, {}, nullptr), Error);
  EXPECT_NO_THROW(ex.run(
      s, {}, [](const Task&, Stream&) {}, {}, nullptr));
}

TEST(Units, ReadAndWrite) {
  EXPECT_EQ(parse_bytes("8GiB", "x"), int64_t{8} << 30);
  EXPECT_EQ(parse_bytes("1.5 GB", "x"), 1500000000);
  EXPECT_EQ(parse_bytes("auto", "x"), 0);
  for (const char* bad : {"8 parsecs", "-3GiB", "GiB", "0"})
    EXPECT_THROW(parse_bytes(bad, "x"), Error) << bad;
  EXPECT_EQ(format_bytes(1536.0 * 1024), "1.50 MiB");
  EXPECT_EQ(format_duration(3725), "1h 02m");
}

}  // namespace
}  // namespace megatrain
