#include "cli/session.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "core/error.h"
#include "core/say.h"
#include "core/units.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/host_memory.h"
#include "io/file.h"
#include "io/hf_model.h"
#include "io/machine_file.h"
#include "ops/cpu/gemm_tile.h"
#include "ops/cpu/kernels.h"

namespace megatrain {
namespace {

volatile std::sig_atomic_t interrupt_count = 0;

void on_interrupt(int signal) {
  interrupt_count = interrupt_count + 1;
  if (signal != SIGHUP) std::signal(signal, SIG_DFL);  // a closed terminal may say so twice
}

}  // namespace

// Measured: 44 MiB and 6 MiB a thread (OpenBLAS's buffers, stacks) on the CPU, 0.8 GiB with CUDA's libraries
// on 16 cores; a thread that converts weights takes up to 10 MiB more.
int64_t program_bytes(DeviceKind kind, int threads) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  return (kind == DeviceKind::cpu ? 64 : 1024) * kMiB + threads * 16 * kMiB;
}

ProgressFn show_progress(const std::string& what) {
  return [what, last = std::chrono::steady_clock::now()](double fraction) mutable {
    const auto now = std::chrono::steady_clock::now();
    if (now - last < std::chrono::seconds(2)) return;
    warn("  {}: {:.0f}%\n", what, 100 * fraction);
    last = now;
  };
}

bool interrupted() {
  return interrupt_count > 0;
}

void watch_interrupts() {
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
  if (std::signal(SIGHUP, on_interrupt) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);  // nohup
}

void outlive_the_log() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

Session load_session(const std::string& directory, const PlanRequest& request,
                     const MachineOptions& machine) {
  Session s = Session::plan_for(read_model_spec(directory), request, machine);
  s.allocate();
  load_weights(directory, *s.model, *s.store, s.threads, show_progress("loading weights"),
               machine.allow_nonfinite_weights);
  return s;
}

MachineProfile profile_for(const MachineOptions& machine, const DeviceChoice& choice) {
  const std::string device = choice.kind == DeviceKind::cuda ? "cuda" : "cpu";
  if (!machine.machine.empty()) return load_machine(machine.machine);
  const std::string path = machine_path();
  if (!path.empty() && std::filesystem::exists(path)) try {
      MachineProfile p = load_machine(path);
      if (p.device == device && p.device_name == choice.name) return p;
    } catch (const Error& e) {
      warn("not used: {}\n", e.what());
    }
  return built_in_profile(device, choice.name, available_cores());
}

int64_t leftover_states(const std::string& directory) {
  struct stat s {};
  return ::stat((directory + "/state.bin").c_str(), &s) == 0 ? s.st_blocks * 512 : 0;
}

int64_t disk_for_states(const MachineOptions& machine, int64_t reserved) {
  if (machine.disk == "0") return 0;
  const int64_t limit = parse_bytes(machine.disk, "disk");
  if (machine.state_dir.empty()) return limit;
  std::filesystem::path p = std::filesystem::absolute(machine.state_dir);
  while (!std::filesystem::exists(p) && p.has_parent_path() && p != p.parent_path()) p = p.parent_path();
  const int64_t free = std::max<int64_t>(
      0, (free_bytes(p.string()) + leftover_states(machine.state_dir)) / 100 * 95 - reserved);
  return limit > 0 ? std::min(limit, free) : free;
}

namespace {

// What every plan asks of this machine, whatever it is for.
void fill_request(PlanRequest& r, const DeviceChoice& choice, const MachineOptions& machine, int threads) {
  r.micro_batch = machine.micro_batch, r.residency = machine.residency;
  r.compute = choice.compute, r.workspace = choice.workspace;
  r.micro_batch_tokens = choice.micro_batch_tokens;
  r.device_shares_host = choice.kind == DeviceKind::cpu;
  const int64_t limit = parse_bytes(machine.memory_limit, "memory_limit"), usable = choice.usable_memory;
  r.device_limit = limit > 0 && usable > 0 ? std::min(limit, usable) : std::max(limit, usable);
  r.device_most = usable;
  const int64_t cap = parse_bytes(machine.host_memory, "host_memory"),
                free = available_host_memory() / 10 * 9;  // the rest is the system's
  r.host_available = cap > 0 ? std::min(cap, free) : free;
  if (r.training) r.disk_available = disk_for_states(machine, r.disk_reserved);
  r.beside.emplace_back("program, libraries, threads", program_bytes(choice.kind, threads));
}

}  // namespace

Session Session::plan_for(const ModelSpec& spec, PlanRequest request, const MachineOptions& machine) {
  Session s;
  s.model = make_model(spec);
  if (request.seq_len > spec.max_position_embeddings)
    fail(fmt::format("sequence_length: {} tokens, but the model has {} positions", request.seq_len,
                     spec.max_position_embeddings));
  s.choice = choose_device(machine.device, machine.compute);
  s.threads = machine.threads > 0 ? static_cast<int>(machine.threads) : available_cores();
  s.profile = profile_for(machine, s.choice);
  s.state_dir = machine.state_dir;
  fill_request(request, s.choice, machine, s.threads);
  request.machine = s.profile;
  s.plan = plan_step(*s.model, request);
  return s;
}

MemoryPlan Session::plan_again(PlanRequest request, const MachineOptions& machine) const {
  fill_request(request, choice, machine, threads);
  request.machine = profile, request.store = &store->options();
  if (choice.kind != DeviceKind::cpu || request.device_limit > 0)
    request.device_limit = device->memory_limit() - device->memory_used();
  return plan_step(*model, request);
}

void Session::allocate() {
  device = make_device(choice, plan.limit(Place::device), threads);
  StoreOptions options = plan.step.store_options();
  options.state_dir = state_dir;
  store = std::make_unique<StateStore>(*device, *model, options, show_progress("taking memory"));
}

std::unique_ptr<Engine> Session::make_engine(const MachineOptions& machine) {
  Engine::Options options;
  options.exec.serialize = machine.serialize, options.exec.poison = machine.poison;
  options.host_threads = threads;
  return std::make_unique<Engine>(*device, *model, *store, plan.step, options);
}

std::string Session::summary() const {
  const std::string host = fmt::format("{} thread{} ({} kernels, {})", threads, threads == 1 ? "" : "s",
                                       cpu_kernels().isa, gemm_library());
  return fmt::format("{} parameters, {} in {}, {}",
                     format_count(static_cast<double>(model->parameter_count())), device->name(),
                     name_of(plan.step.compute), host);
}

Evaluation evaluate(Engine& engine, const Sequences& rows, int64_t max_batches) {
  const int64_t t = engine.plan().seq_len, b = engine.plan().batch, count = rows.count_with_partial();
  int64_t batches = (count + b - 1) / b;
  if (max_batches > 0) batches = std::min(batches, max_batches);
  Batch batch;
  batch.resize(b, t);
  Evaluation result;
  auto last_word = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < batches && !interrupted(); ++i) {
    std::fill(batch.targets.begin(), batch.targets.end(), -1);
    for (int64_t row = 0; row < b && i * b + row < count; ++row)
      result.tokens += rows.read(i * b + row, &batch.tokens[static_cast<size_t>(row * t)],
                                 &batch.targets[static_cast<size_t>(row * t)],
                                 &batch.positions[static_cast<size_t>(row * t)]);
    result.loss += engine.evaluate(batch.tokens.data(), batch.targets.data(),
                                   engine.plan().packed ? batch.positions.data() : nullptr);
    if (std::chrono::steady_clock::now() - last_word > std::chrono::seconds(2)) {
      warn("  evaluating: batch {} of {}\n", i + 1, batches);
      last_word = std::chrono::steady_clock::now();
    }
  }
  result.loss /= static_cast<double>(std::max<int64_t>(result.tokens, 1));
  return result;
}

}  // namespace megatrain
