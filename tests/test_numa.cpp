// Work and pages by NUMA node, on nodes that are made up: no machine with several is needed.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>

#include "core/thread_pool.h"
#include "device/cpu/host_memory.h"
#include "scratch.h"

namespace megatrain {
namespace {

TEST(Numa, NodesAreReadAsTheKernelListsThem) {
  const ScratchDirectory d;
  for (const auto& [node, list] :
       {std::pair{"node0", "0-2,8"}, {"node1", "3-5"}, {"node2", ""}, {"node10", "6"}}) {
    std::filesystem::create_directory(d.file(node));
    d.write(std::string(node) + "/cpulist", std::string(list) + "\n");
  }
  EXPECT_EQ(read_numa_nodes(d.path, {0, 1, 2, 3, 4, 5, 6, 7, 8}), (NumaNodes{{0, 1, 2, 8}, {3, 4, 5}, {6}}));
  EXPECT_EQ(read_numa_nodes(d.path, {1, 3}), (NumaNodes{{1}, {3}}));
  EXPECT_EQ(read_numa_nodes(d.file("absent"), {0, 1}), (NumaNodes{{0, 1}}));
  EXPECT_FALSE(numa_nodes().empty());
}

TEST(Numa, EveryRangeIsDoneOnceWhereverItBelongs) {
  for (const int nodes : {1, 2, 3}) {
    const NumaNodes made_up(static_cast<size_t>(nodes), {0});  // every node has the first processor
    ThreadPool pool(5, &made_up);
    for (const int64_t first : {0, 100, 700})
      for (const int64_t n : {0, 1, 63, 64, 65, 300}) {
        std::vector<std::atomic<int>> done(static_cast<size_t>(n));
        pool.parallel_near(first, n, 1000, 16, [&](int64_t b, int64_t e) {
          for (int64_t i = b; i < e; ++i) ++done[static_cast<size_t>(i)];
        });
        for (const auto& k : done) ASSERT_EQ(k, 1);
      }
    std::atomic<int64_t> sum{0};
    pool.parallel_ranges(1000, 7, [&](int64_t b, int64_t e) { sum += e - b; });
    EXPECT_EQ(sum, 1000);
  }
}

TEST(Numa, EveryPageIsTouched) {
  const int64_t bytes = 50 * 4096 + 100;
  for (const int nodes : {1, 2, 3})
    for (const int threads : {1, 4}) {
      std::vector<char> memory(static_cast<size_t>(bytes) + 4096, 1);
      auto* page = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory.data()) + 4095) / 4096 * 4096);
      touch_pages(page, bytes, {0, 4096, 20 * 4096}, threads, NumaNodes(static_cast<size_t>(nodes), {0}));
      for (int64_t at = 0; at < bytes; at += 4096) ASSERT_EQ(page[at], 0) << at / 4096;
    }
}

}  // namespace
}  // namespace megatrain
