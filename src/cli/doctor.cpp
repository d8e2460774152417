#include <fmt/format.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "cli/commands.h"
#include "core/error.h"
#include "core/say.h"
#include "core/units.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/host_memory.h"
#include "engine/measure.h"
#include "io/file.h"
#include "io/machine_file.h"
#include "ops/cpu/gemm_tile.h"
#include "ops/cpu/kernels.h"
#include "store/direct_io.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

std::string bytes(int64_t n) {
  return format_bytes(static_cast<double>(n));
}

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

int64_t total_memory() {
  std::ifstream in("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  in >> key >> kib;
  return kib * 1024;
}

int numa_nodes() {
  int n = 0;
  std::error_code ignored;
  for (const auto& e : fs::directory_iterator("/sys/devices/system/node", ignored)) {
    const std::string name = e.path().filename().string();
    n += name.rfind("node", 0) == 0 && name.size() > 4 && name[4] >= '0' && name[4] <= '9';
  }
  return std::max(n, 1);
}

/// What is wrong, and how to mend it.
class Findings {
 public:
  void add(const std::string& what, const std::string& mend) {
    say("  ! {}\n    {}\n", what, mend);
    ++count_;
  }
  int count() const { return count_; }

 private:
  int count_ = 0;
};

void look_at_limits(const DeviceChoice& choice, Findings& f) {
  const int64_t total = total_memory(), room = available_host_memory();
  const std::string pages = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  rlimit lock{};
  getrlimit(RLIMIT_MEMLOCK, &lock);
  const bool unlimited = lock.rlim_cur == RLIM_INFINITY;
  say("  {:<26}{} cores, {} NUMA node{}, kernels {}, {}\n", "processor", available_cores(), numa_nodes(),
      numa_nodes() == 1 ? "" : "s", cpu_kernels().isa, gemm_library());
  say("  {:<26}{}, of which {} may be taken now\n", "host memory", bytes(total), bytes(room));
  say("  {:<26}{}\n", "huge pages", pages.empty() ? "not known" : pages);
  say("  {:<26}{}\n", "locked-memory limit", unlimited ? "none" : bytes(static_cast<int64_t>(lock.rlim_cur)));
  say("  {:<26}{}\n", "device",
      choice.kind == DeviceKind::cuda
          ? fmt::format("{}, {} may be used", choice.name, bytes(choice.usable_memory))
          : "the CPU");
  for (const std::string& line : device_versions()) say("  {:<26}{}\n", "", line);
  if (room < total / 2)
    f.add(fmt::format("only {} of {} of memory may be taken", bytes(room), bytes(total)),
          "other programs hold it, or a container's or SLURM's limit (cgroup) is lower: ask for more memory");
  if (pages.find("[never]") != std::string::npos)
    f.add("huge pages are off: taking and pinning host memory is several times slower",
          "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root)");
  if (choice.kind == DeviceKind::cuda && !unlimited && static_cast<int64_t>(lock.rlim_cur) < room)
    f.add(fmt::format(
              "at most {} of memory may be locked; where the driver honours that, copies cannot overlap",
              bytes(static_cast<int64_t>(lock.rlim_cur))),
          "ulimit -l unlimited, 'memlock' in /etc/security/limits.conf, or --ulimit memlock=-1 for a "
          "container");
  if (choice.kind == DeviceKind::cpu && fs::exists("/dev/nvidia0"))
    f.add("there is an NVIDIA device, but it is not used: " + cuda_missing(),
          "build with cmake --preset cuda, or install the driver's libraries");
}

void look_at_rates(const MachineProfile& p, Findings& f) {
  const auto gb = [](double rate) { return fmt::format("{:.1f} GB/s", rate / 1e9); };
  say("  {:<26}up {}, down {}, both at once {} each way, with the CPU busy {}\n", "link", gb(p.link_up),
      gb(p.link_down), gb(p.link_both), gb(p.link_busy));
  say("  {:<26}{}\n", "host memory", gb(p.dram));
  say("  {:<26}host {}, with the link busy {}; device {}\n", "AdamW (28 B a parameter)", gb(p.adam),
      gb(p.adam_busy), gb(p.device_adam));
  say("  {:<26}{}\n", "device copy", gb(p.device_copy));
  say("  {:<26}{:.3g} TFLOP/s at most\n", "matrix products", p.gemm / 1e12);
  const size_t last = p.attention_share.size() - 1;
  say("  {:<26}forward {:.0f}%, backward {:.0f}% of that at {} tokens, width 128\n", "attention",
      100 * p.attention_share[last], 100 * p.attention_backward_share[last], p.attention_axis.back());
  say("  {:<26}{:.1f} us an operation, {:.0f} us a task, {:.2f} ms a step\n", "issuing", p.op_seconds * 1e6,
      p.task_seconds * 1e6, p.step_seconds * 1e3);
  if (p.disk_free > 0)
    say("  {:<26}read {}, write {}, both at once {} each; {} free\n", "disk, direct", gb(p.disk_read),
        gb(p.disk_write), gb(p.disk_both), bytes(p.disk_free));
  if (p.device == "cuda" && p.link_up < 20e9)
    f.add("the link to the GPU is slow: " + gb(p.link_up),
          "see that it sits in a x16 slot at full generation (nvidia-smi -q: PCIe link), and that memory is "
          "pinned");
  if (p.dram < 5e9 * static_cast<double>(p.cores) && p.cores <= 8)
    f.add("host memory is slow for this many cores: " + gb(p.dram),
          "fill all memory channels, or stop what else runs");
  if (p.disk_free > 0 && p.disk_write < 0.5e9)
    f.add("the disk writes only " + gb(p.disk_write) + ": states on it would be slow",
          "set state_dir to a local NVMe disk");
}

}  // namespace

int run_doctor(const DoctorOptions& o) {
  const DeviceChoice choice = choose_device(o.device, "auto");
  Findings findings;
  say("this machine\n");
  look_at_limits(choice, findings);
  if (!o.dry) {
    MeasureOptions m;
    m.threads = o.threads > 0 ? static_cast<int>(o.threads) : available_cores();
    m.disk_directory = o.disk_directory == "none" ? "" : o.disk_directory;
    m.progress = [](const std::string& what) { warn("  measuring: {}\n", what); };
    const MachineProfile p = measure_machine(choice, m);
    say("measured\n");
    look_at_rates(p, findings);
    const std::string path = o.out.empty() ? machine_path() : o.out;
    if (path.empty()) fail("doctor: no HOME to write the profile to; name a file with --out");
    if (const auto parent = fs::path(path).parent_path(); !parent.empty()) fs::create_directories(parent);
    write_file_atomically(path, machine_yaml(p));
    say("profile: {}; train and plan use it{}\n", path, o.out.empty() ? "" : " with --machine " + path);
  }
  say("{}\n", findings.count() == 0 ? "nothing is wrong"
                                    : fmt::format("{} thing{} to mend, see above", findings.count(),
                                                  findings.count() == 1 ? "" : "s"));
  return 0;
}

}  // namespace megatrain
