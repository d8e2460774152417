#include "cli/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <numeric>

#include "core/error.h"
#include "core/rng.h"
#include "core/units.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/host_memory.h"
#include "ops/cpu/gemm_tile.h"
#include "ops/cpu/kernels.h"

namespace megatrain {
namespace {

constexpr uint64_t kSampleStream = uint64_t{1} << 43;
volatile std::sig_atomic_t interrupt_count = 0;

void on_interrupt(int signal) {
  interrupt_count = interrupt_count + 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

ProgressFn show_progress(const std::string& what) {
  return [what, last = std::chrono::steady_clock::now()](double fraction) mutable {
    const auto now = std::chrono::steady_clock::now();
    if (now - last < std::chrono::seconds(2)) return;
    fmt::print(stderr, "  {}: {:.0f}%\n", what, 100 * fraction);
    last = now;
  };
}

bool interrupted() {
  return interrupt_count > 0;
}

void watch_interrupts() {
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
}

Session Session::plan_for(const ModelSpec& spec, PlanRequest request, const MachineOptions& machine) {
  Session s;
  s.model = make_model(spec);
  if (request.seq_len > spec.max_position_embeddings)
    fail(fmt::format("sequence_length: {} tokens, but the model has {} positions", request.seq_len,
                     spec.max_position_embeddings));
  s.choice = choose_device(machine.device, machine.compute);
  s.threads = machine.threads > 0 ? static_cast<int>(machine.threads) : available_cores();
  request.micro_batch = machine.micro_batch, request.residency = machine.residency;
  request.compute = s.choice.compute, request.workspace = s.choice.workspace;
  request.micro_batch_tokens = s.choice.micro_batch_tokens;
  request.flops_per_link_byte = s.choice.flops_per_link_byte;
  request.device_shares_host = s.choice.kind == DeviceKind::cpu;
  const int64_t limit = parse_bytes(machine.memory_limit, "memory_limit"), usable = s.choice.usable_memory;
  request.device_limit = limit > 0 && usable > 0 ? std::min(limit, usable) : std::max(limit, usable);
  request.host_available = available_host_memory() / 10 * 9;  // the rest is the system's
  s.plan = plan_step(*s.model, request);
  return s;
}

void Session::allocate() {
  device = make_device(choice, plan.device_limit, threads);
  store =
      std::make_unique<HostStore>(*device, *model, plan.step.training, show_progress("taking host memory"));
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

Evaluation evaluate(Engine& engine, const TokenFile& file, int64_t max_batches) {
  const int64_t t = engine.plan().seq_len, b = engine.plan().batch, predicted = file.size() - 1;
  if (predicted < 1) fail(file.path() + ": has no token to predict");
  const int64_t windows = (predicted + t - 1) / t;
  int64_t batches = (windows + b - 1) / b;
  if (max_batches > 0) batches = std::min(batches, max_batches);
  std::vector<int32_t> tokens(static_cast<size_t>(b * t)), targets(tokens.size()),
      window(static_cast<size_t>(t) + 1);
  Evaluation result;
  auto last_word = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < batches && !interrupted(); ++i) {
    std::fill(tokens.begin(), tokens.end(), 0);
    std::fill(targets.begin(), targets.end(), -1);
    for (int64_t row = 0; row < b && i * b + row < windows; ++row) {
      const int64_t start = (i * b + row) * t, count = std::min(t, predicted - start);
      file.read(start, count + 1, window.data());
      std::copy_n(window.data(), count, tokens.data() + row * t);
      std::copy_n(window.data() + 1, count, targets.data() + row * t);
      result.tokens += count;
    }
    result.loss += engine.evaluate(tokens.data(), targets.data());
    if (std::chrono::steady_clock::now() - last_word > std::chrono::seconds(2)) {
      fmt::print(stderr, "  evaluating: batch {} of {}\n", i + 1, batches);
      last_word = std::chrono::steady_clock::now();
    }
  }
  result.loss /= static_cast<double>(std::max<int64_t>(result.tokens, 1));
  return result;
}

int32_t sample_token(const float* logits, int64_t vocab, const SamplingOptions& o, uint64_t draw) {
  std::vector<int32_t> order(static_cast<size_t>(vocab));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  if (o.temperature <= 0) return order[0];
  auto keep = static_cast<size_t>(o.top_k > 0 ? std::min(o.top_k, vocab) : vocab);
  std::vector<double> p(keep);
  double total = 0;
  for (size_t i = 0; i < keep; ++i)
    total += p[i] = std::exp((static_cast<double>(logits[order[i]]) - logits[order[0]]) / o.temperature);
  double kept = 0;
  for (size_t i = 0; i < keep; ++i) {
    kept += p[i];
    if (kept >= o.top_p * total) keep = i + 1;
  }
  double u = random_uniform(static_cast<uint64_t>(o.seed), kSampleStream, draw) * kept;
  for (size_t i = 0; i < keep; ++i)
    if ((u -= p[i]) <= 0) return order[i];
  return order[keep - 1];
}

void generate_text(Session& session, const Tokenizer& tokenizer, const GenerateOptions& o,
                   const MachineOptions& machine) {
  std::vector<int32_t> ids;
  tokenizer.encode(o.prompt, ids);
  if (ids.empty()) fail("prompt: is empty; give at least one character to continue");
  const int64_t vocab = session.model->spec().vocab_size;
  if (tokenizer.vocab_size() > vocab)
    fail(fmt::format("the tokenizer has {} tokens, the model {}; they do not belong together",
                     tokenizer.vocab_size(), vocab));
  PlanRequest request;
  request.batch = 1, request.training = false;
  request.seq_len = std::min(session.model->spec().max_position_embeddings,
                             static_cast<int64_t>(ids.size()) + o.max_tokens);
  const MemoryPlan plan = Session::plan_for(session.model->spec(), request, machine).plan;
  Engine engine(*session.device, *session.model, *session.store, plan.step, {});
  const auto window = static_cast<size_t>(request.seq_len);
  fmt::print("{}", o.prompt);
  for (int64_t n = 0; n < o.max_tokens && !interrupted(); ++n) {
    std::vector<int32_t> context(window, 0);
    const size_t used = std::min(ids.size(), window);
    std::copy(ids.end() - static_cast<std::ptrdiff_t>(used), ids.end(), context.begin());
    const float* logits = engine.logits(context.data(), static_cast<int64_t>(used) - 1);
    const int32_t next =
        sample_token(logits, std::min(vocab, tokenizer.vocab_size()), o, static_cast<uint64_t>(n));
    if (next == tokenizer.end_of_text()) break;
    ids.push_back(next);
    fmt::print("{}", tokenizer.decode(next));
    std::fflush(stdout);
  }
  fmt::print("\n");
}

}  // namespace megatrain
