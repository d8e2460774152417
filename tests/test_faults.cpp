// What goes wrong around a run: full and read-only disks, limits, closed terminals, two runs in one place.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/vfs.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "checkpoint/manifest.h"
#include "core/error.h"
#include "device/cpu/host_memory.h"
#include "io/file.h"
#include "program.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

struct Faults : Cli {
  static bool preloads() { return std::string(MT_FAULTS) != ""; }
  // A disk that says that so many bytes are free.
  CommandResult train_with_free(int64_t bytes, const std::string& more) {
    return run_command("LD_PRELOAD=" MT_FAULTS " MT_FAULT_KIND=small MT_FAULT_FREE=" + std::to_string(bytes) +
                       " " + megatrain_command("train " + config + " " + more));
  }
  static std::string bash(const std::string& text) { return "bash -c '" + text + "'"; }
};

TEST_F(Faults, TooLittleDiskIsRefusedInNumbers) {
  if (!preloads()) GTEST_SKIP() << "sanitizers come first in a process";
  refused(train_with_free(1000, ""), "the model alone needs up to");
  refused(train_with_free(100'000, "--checkpoint-interval 5"), "3 checkpoints of 189.45 KiB need");
  EXPECT_FALSE(fs::exists(d.file("out/model")));
  const CommandResult r = train_with_free(100'000, "");  // by time only: the run matters more
  EXPECT_EQ(r.exit_code, 0) << r.output;
  EXPECT_NE(r.output.find("no checkpoints by time: "), std::string::npos) << r.output;
}

// The disk under the states fills up, or lies: one line that names the file, the checkpoint before it whole,
// and the run goes on from there to the bits of one that was never stopped.
TEST_F(Faults, TheStatesDiskFailsAndTheCheckpointIsWhole) {
  if (!preloads()) GTEST_SKIP() << "nothing can be preloaded here";
  const std::string train =
      megatrain_command("train ") + config + " --residency disk --checkpoint-interval 2 --num-steps 12";
  ASSERT_EQ(run_command(train + " --out-dir " + d.file("whole")).exit_code, 0);
  EXPECT_FALSE(fs::exists(d.file("whole/states/state.bin"))) << "left behind";
  int failed = 0;
  for (const int at : {150, 250, 400}) {
    fs::remove_all(d.file("out"));
    const CommandResult r =
        run_command("MEGATRAIN_IO=threads MT_FAULT_KIND=full MT_FAULT_AT=" + std::to_string(at) +
                    " LD_PRELOAD=" MT_FAULTS " " + train);
    if (r.exit_code == 0) continue;
    ASSERT_EQ(r.exit_code, 2) << r.output;
    failed += r.output.find("state.bin") != std::string::npos;
    std::vector<std::string> complaints;
    list_checkpoints(d.file("out/checkpoints"), complaints);
    EXPECT_TRUE(complaints.empty()) << complaints[0];
    const CommandResult on = run_command(train + " --resume");
    ASSERT_EQ(on.exit_code, 0) << on.output;
    EXPECT_TRUE(read_text_file(d.file("out/model/model.safetensors")) ==
                read_text_file(d.file("whole/model/model.safetensors")))
        << at;
  }
  EXPECT_GT(failed, 0) << "no fault met the state file";
}

TEST_F(Faults, AddressSpaceIsCountedAsMemory) {
  if (!preloads()) GTEST_SKIP() << "sanitizers reserve more";
  const CommandResult r =
      run_command(bash("ulimit -v 3000000; " + megatrain_command("train ") + config +
                       " --hidden-size 1024 --num-layers 24 --memory-limit 1GiB --disk 0"));
  refused(r, "host memory");
}

/// A cgroup of this process's own with a memory limit; none where the system does not allow that.
class Cgroup {
 public:
  explicit Cgroup(int64_t limit) {
    std::ifstream in("/proc/self/cgroup");
    for (std::string line; path_.empty() && std::getline(in, line);) {
      const size_t colon = line.find(':', line.find(':') + 1);
      const bool v2 = line.rfind("0::", 0) == 0;
      if (!v2 && line.find(":memory:") == std::string::npos) continue;
      const std::string at =
          (v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory") + line.substr(colon + 1) + "/megatrain-test";
      std::error_code error;
      if (!fs::create_directory(at, error)) continue;
      path_ = at;
      std::ofstream f(at + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
      if (!(f << limit << std::flush)) rmdir(at.c_str()), path_.clear();
    }
  }
  ~Cgroup() {
    if (!path_.empty()) rmdir(path_.c_str());
  }
  Cgroup(const Cgroup&) = delete;
  Cgroup& operator=(const Cgroup&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// What the plan grants is really there: sizes around the limit run or are refused, and none is killed.
TEST_F(Faults, NoRunIsKilledAtACgroupsLimit) {
  if (!preloads()) GTEST_SKIP() << "sanitizers take more";
  struct statfs s {};
  if (statfs(d.path.c_str(), &s) != 0 || s.f_type == TMPFS_MAGIC) GTEST_SKIP() << "files here are memory too";
  const Cgroup group(int64_t{320} << 20);
  if (group.path().empty()) GTEST_SKIP() << "no cgroup may be made here";
  int ran = 0, was_refused = 0;
  for (const int hidden : {64, 200, 216, 232, 512}) {
    fs::remove_all(d.file("out"));
    const CommandResult r = run_command(bash("echo $$ > " + group.path() + "/cgroup.procs && exec " +
                                             megatrain_command("train ") + config +
                                             " --memory-limit auto --num-layers 12 --num-steps 3 "
                                             "--checkpoint-interval 1 --batch-size 32 --hidden-size " +
                                             std::to_string(hidden)));
    ASSERT_TRUE(r.exit_code == 0 || r.exit_code == 2) << hidden << ": " << r.exit_code << "\n" << r.output;
    ++(r.exit_code == 0 ? ran : was_refused);
    if (r.exit_code == 2) refused(r, "not enough host memory");
  }
  EXPECT_GT(ran, 1);
  EXPECT_GT(was_refused, 0);
}

TEST_F(Faults, ALogThatCannotBeWrittenCostsNothing) {
  EXPECT_EQ(run_command(bash(megatrain_command("train ") + config + " > /dev/full 2>&1")).exit_code, 0);
  EXPECT_TRUE(fs::exists(d.file("out/model/model.safetensors")));
  fs::remove_all(d.file("out"));
  const CommandResult r = run_command(
      bash("set -o pipefail; " + megatrain_command("train ") + config + " --log-interval 1 | head -1"));
  EXPECT_EQ(r.exit_code, 0) << r.output;
  EXPECT_TRUE(fs::exists(d.file("out/model/model.safetensors")));
}

TEST_F(Faults, AClosedTerminalSavesAndNohupGoesOn) {
  const std::string steps = " --num-steps 100000000 --log-interval 1000000";
  const CommandResult r = run_command("timeout --foreground --preserve-status -s HUP 2 " +
                                      megatrain_command("train " + config + steps));
  EXPECT_EQ(r.exit_code, 0) << r.output;
  EXPECT_NE(r.output.find("To go on exactly from here"), std::string::npos) << r.output;
  const CommandResult on = run_command("timeout --foreground -k 1 -s HUP 1 nohup " +
                                       megatrain_command("train " + config + steps + " --resume"));
  EXPECT_EQ(on.exit_code, 128 + SIGKILL) << "it heard a signal that nohup keeps from it\n" << on.output;
}

TEST_F(Faults, TwoRunsDoNotShareADirectory) {
  fs::create_directories(d.file("out"));
  {
    const DirectoryLock lock(d.file("out"));
    refused(train(), "another megatrain (process " + std::to_string(getpid()) + ") writes there");
  }
  EXPECT_EQ(train().exit_code, 0);
  const DirectoryLock lock(d.file("data"));
  refused(run_command(megatrain_command("prepare " + d.file("text.txt") + " --out " + d.file("data"))),
          "another megatrain");
}

// At every instant there is a whole directory under the name.
TEST(Files, ReplacedDirectoriesAreNeverGone) {
  const ScratchDirectory d;
  const auto fill = [&](const std::string& name, int i) {
    fs::create_directories(d.file(name));
    write_file_atomically(d.file(name + "/a"), std::to_string(i));
  };
  fill("here", 0), fill("probe", 0);
  if (renameat2(AT_FDCWD, d.file("probe").c_str(), AT_FDCWD, d.file("here").c_str(), RENAME_EXCHANGE) != 0)
    GTEST_SKIP() << "this file system cannot exchange names";
  std::atomic<bool> stop{false};
  int64_t looks = 0, gone = 0;
  std::thread watcher([&] {
    for (; !stop; ++looks) {
      struct stat s {};
      gone += ::stat(d.file("here").c_str(), &s) != 0;
    }
  });
  for (int i = 1; i <= 200; ++i) {
    fill("new", i);
    replace_directory(d.file("new"), d.file("here"));
    EXPECT_EQ(read_text_file(d.file("here/a")), std::to_string(i));
    EXPECT_FALSE(fs::exists(d.file("new")));
  }
  stop = true;
  watcher.join();
  EXPECT_GT(looks, 200);
  EXPECT_EQ(gone, 0);
}

// What a full disk refused is there, in order and once, as soon as there is room.
TEST(Files, RecordsWaitForRoom) {
  const ScratchDirectory d;
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  {
    AppendFile f(d.file("log"), O_CREAT);
    f.append("one\n");
    f.sync();
    const rlimit full = {6, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &full);
    f.append("two\n"), f.append("three\n");  // two bytes fit
    EXPECT_THROW(f.sync(), Error);
    setrlimit(RLIMIT_FSIZE, &old);
    f.append("four\n");
    f.sync();
  }
  EXPECT_EQ(read_text_file(d.file("log")), "one\ntwo\nthree\nfour\n");
  AppendFile full("/dev/full", 0);
  full.append("lost\n");
  EXPECT_THROW(full.sync(), Error);
}

/// A /proc and /sys of our own.
struct HostMemory : ::testing::Test {
  static constexpr int64_t kGiB = int64_t{1} << 30;
  ScratchDirectory d;
  void file(const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(d.file(name)).parent_path());
    d.write(name, text);
  }
  void SetUp() override { file("proc/meminfo", "MemTotal: 99 kB\nMemAvailable:   67108864 kB\n"); }  // 64 GiB
  void v2(const std::string& path, const std::string& limit, int64_t used, int64_t cache) {
    file("sys/fs/cgroup" + path + "/memory.max", limit + "\n");
    file("sys/fs/cgroup" + path + "/memory.current", std::to_string(used) + "\n");
    file("sys/fs/cgroup" + path + "/memory.stat", "anon 1\ninactive_file " + std::to_string(cache) + "\n");
  }
  void v1(const std::string& path, int64_t limit, int64_t used, int64_t cache) {
    const std::string at = "sys/fs/cgroup/memory" + path;
    file(at + "/memory.limit_in_bytes", std::to_string(limit) + "\n");
    file(at + "/memory.usage_in_bytes", std::to_string(used) + "\n");
    file(at + "/memory.stat", "cache 5\ntotal_inactive_file " + std::to_string(cache) + "\n");
  }
};

TEST_F(HostMemory, WithoutCgroupsWhatTheKernelSays) {
  EXPECT_EQ(available_host_memory(d.path), 64 * kGiB);
}
TEST_F(HostMemory, TheLeastOfAllCgroupsAbove) {
  file("proc/self/cgroup", "0::/user/job/step\n");
  v2("/user/job/step", "max", kGiB, 0);
  v2("/user/job", std::to_string(20 * kGiB), 5 * kGiB, 2 * kGiB);
  v2("/user", std::to_string(40 * kGiB), 9 * kGiB, 0);
  EXPECT_EQ(available_host_memory(d.path), 17 * kGiB);
}
TEST_F(HostMemory, SlurmWithTheFirstVersion) {
  file("proc/self/cgroup", "9:cpu,cpuacct:/\n4:memory:/slurm/uid_1/job_7\n1:name=systemd:/x\n");
  v1("", int64_t{9223372036854771712}, 50 * kGiB, 0);
  v1("/slurm/uid_1/job_7", 8 * kGiB, 3 * kGiB, kGiB);
  EXPECT_EQ(available_host_memory(d.path), 6 * kGiB);
}
TEST_F(HostMemory, AContainerWhosePathIsTheHosts) {
  file("proc/self/cgroup", "4:memory:/docker/0123abc\n0::/\n");
  v1("", 4 * kGiB, kGiB, 0);
  EXPECT_EQ(available_host_memory(d.path), 3 * kGiB);
}
TEST_F(HostMemory, AFullCgroupHasNothing) {
  file("proc/self/cgroup", "0::/job\n");
  v2("/job", std::to_string(kGiB), 2 * kGiB, 0);
  EXPECT_EQ(available_host_memory(d.path), 0);
}

}  // namespace
}  // namespace megatrain
