#include "schedule/planner.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/units.h"
#include "device/arena.h"
#include "store/state_store.h"

namespace megatrain {
namespace {

std::string gib(int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

int64_t store_bytes(const Model& model, const PlanRequest& r) {
  return StateStore::bytes_needed(model, r.training);
}

int64_t batch_staging(const StepPlan& p) {
  constexpr int64_t kReadAhead = 2 * 3 * 4;  // this batch and the next: tokens, targets, positions
  return p.batch * p.seq_len * (4 * p.ints_per_token() + (p.training ? kReadAhead : 0)) + p.batch * 4;
}

int64_t beside(const PlanRequest& r) {
  int64_t n = 0;
  for (const auto& [what, bytes] : r.beside) n += bytes;
  return n;
}

// What the model needs of the host whatever the plan: refuse before looking at anything else.
void check_store(const Model& model, const PlanRequest& r) {
  int64_t padded = 0;
  for (const auto& u : model.units()) padded += u.numel;
  const int64_t weights = padded * 4,
                moments = r.training ? padded * 8 : 0;
  const int64_t gradients = r.training && !r.update_in_backward ? padded * 4 : 0,
                total = weights + moments + gradients,
                room = std::max<int64_t>(r.host_available - beside(r), 0);
  if (total <= room) return;
  const double per_parameter = static_cast<double>(total) / static_cast<double>(model.parameter_count());
  fail(fmt::format(
      "not enough host memory: {} parameters need {} (master weights {}, Adam moments {}, "
      "gradients {}), {} is available for them; "
      "use a machine with more RAM or a model of at most {} parameters",
      format_count(static_cast<double>(model.parameter_count())), gib(total), gib(weights), gib(moments),
      gib(gradients), gib(room), format_count(static_cast<double>(room) / per_parameter)));
}

int64_t host_bytes(const Model& model, const PlanRequest& r, const StepBuffers& b, const StepPlan& p) {
  return store_bytes(model, r) + b.bytes(Place::host) + batch_staging(p) + beside(r);
}

bool fits(const Model& model, const PlanRequest& r, const StepPlan& p) {
  const StepBuffers b(model, p);
  const int64_t device = b.bytes(Place::device), host = host_bytes(model, r, b, p);
  if (r.device_limit > 0 && device > r.device_limit) return false;
  return host + (r.device_shares_host ? device : 0) <= r.host_available;
}

// Largest value in [low, high] for which ok() holds; ok(low) must hold.
template <class F>
int64_t largest(int64_t low, int64_t high, F ok) {
  while (low < high) {
    const int64_t mid = low + (high - low + 1) / 2;
    if (ok(mid))
      low = mid;
    else
      high = mid - 1;
  }
  return low;
}

[[noreturn]] void refuse(const Model& model, const PlanRequest& r, const StepPlan& p) {
  const StepBuffers b(model, p);
  const bool device_short = r.device_limit > 0 && b.bytes(Place::device) > r.device_limit;
  const int64_t host = host_bytes(model, r, b, p) + (r.device_shares_host ? b.bytes(Place::device) : 0);
  if (device_short && p.cache_capacity > 0)
    fail(fmt::format(
        "not enough device memory: {} needed to generate {} sequences of up to {} tokens, {} allowed; "
        "raise memory_limit, ask for fewer tokens, or give fewer prompts at a time",
        gib(b.bytes(Place::device)), p.batch, p.cache_capacity, gib(r.device_limit)));
  const std::string least =
      fmt::format("even with micro-batches of {} x {} tokens", p.micro_batch, p.seq_len);
  if (device_short)
    fail(
        fmt::format("not enough device memory: {} needed {}, {} allowed; raise memory_limit, or shorten "
                    "sequence_length (now {}){}",
                    gib(b.bytes(Place::device)), least, gib(r.device_limit), r.seq_len,
                    r.residency == "resident" ? ", or set residency to auto" : ""));
  fail(
      fmt::format("not enough host memory: {} needed {}, {} is available; use a smaller model, a shorter "
                  "sequence_length, or more RAM",
                  gib(host), least, gib(r.host_available)));
}

// One wave needs more of the device but, with updates in the backward, less of the host (no gradients wait
// there), so either end may be the one that fits.
bool fits_in_waves(const Model& model, const PlanRequest& r, StepPlan p) {
  p.wave = 1;
  if (fits(model, r, p)) return true;
  p.wave = p.micro_batches();
  return fits(model, r, p);
}

// Given that fits_in_waves().
int64_t largest_wave(const Model& model, const PlanRequest& r, StepPlan p) {
  p.wave = p.micro_batches();
  if (fits(model, r, p)) return p.wave;
  return largest(1, p.micro_batches(), [&](int64_t w) {
    StepPlan q = p;
    q.wave = w;
    return fits(model, r, q);
  });
}

// Both lanes' time per parameter, in flops: 8 bytes go up in a wave (bf16 weights twice, the fp32 gradient so
// far), and a token takes 8 flops (forward twice, backward), more where the products are small.
double step_cost(const PlanRequest& r, const StepPlan& p) {
  constexpr double kHalfSpeedTokens = 256;  // H200: products of as many rows run at half speed
  const double tokens = static_cast<double>(p.batch * p.seq_len),
               rows = static_cast<double>(p.micro_batch * p.seq_len);
  return std::max(8 * static_cast<double>(p.waves()) * r.flops_per_link_byte,
                  8 * tokens * (1 + kHalfSpeedTokens / rows));
}

// Sizes tried are the largest that fits and its halves, each evened out over the batch.
StepPlan with_best_micro_batch(const Model& model, const PlanRequest& r, StepPlan p) {
  const int64_t most =
      largest(1, std::clamp<int64_t>(r.micro_batch_tokens / r.seq_len, 1, r.batch), [&](int64_t b) {
        StepPlan q = p;
        q.micro_batch = b;
        return fits_in_waves(model, r, q);
      });
  StepPlan best;
  for (int64_t size = most; size > 0; size /= 2) {
    p.micro_batch = size, p.wave = 1;
    const int64_t count = p.micro_batches();
    p.micro_batch = (p.batch + count - 1) / count;
    if (!fits_in_waves(model, r, p)) continue;
    p.wave = largest_wave(model, r, p);
    if (best.batch == 0 || step_cost(r, p) < step_cost(r, best)) best = p;
  }
  return best;
}

void set_residency(const Model& model, StepPlan& p, int64_t blocks) {
  p.resident_blocks = static_cast<int>(blocks);
  p.resident_ends = blocks == model.block_count();
}

MemoryPlan describe_plan(const Model& model, const PlanRequest& r, const StepPlan& p) {
  MemoryPlan m;
  m.step = p;
  const StepBuffers b(model, p);
  for (const Place place : {Place::device, Place::host})
    for (const Buffer& buffer : b.list()) {
      if (buffer.place != place || buffer.bytes == 0) continue;
      const int64_t bytes = Arena::padded(buffer.bytes);
      auto it = std::find_if(m.lines.begin(), m.lines.end(),
                             [&](auto& l) { return l.what == buffer.group && l.place == place; });
      if (it == m.lines.end())
        m.lines.push_back({buffer.group, place, bytes});
      else
        it->bytes += bytes;
    }
  const int64_t weights = StateStore::bytes_needed(model, false);
  m.lines.push_back({"master weights (4 B/param)", Place::host, weights});
  if (r.training)
    m.lines.push_back({"Adam moments (8 B/param)", Place::host, store_bytes(model, r) - weights});
  m.lines.push_back({"batches", Place::host, batch_staging(p)});
  for (const auto& [what, bytes] : r.beside) m.lines.push_back({what, Place::host, bytes});
  m.device_bytes = b.bytes(Place::device), m.host_bytes = host_bytes(model, r, b, p);
  m.host_available = r.host_available;
  m.device_limit = r.device_limit > 0 ? r.device_limit : r.host_available - m.host_bytes;
  return m;
}

}  // namespace

MemoryPlan plan_step(const Model& model, const PlanRequest& r) {
  check_store(model, r);
  StepPlan p;
  p.batch = r.batch, p.seq_len = r.seq_len, p.update_in_backward = r.update_in_backward;
  p.training = r.training, p.compute = r.compute, p.workspace = r.workspace;
  p.cache_capacity = r.cache_capacity, p.packed = r.packed;
  if (r.micro_batch > r.batch)
    fail(fmt::format("micro_batch: {} is more than batch_size {}; lower it or leave it at 0", r.micro_batch,
                     r.batch));
  p.micro_batch = r.micro_batch > 0 ? r.micro_batch : 1;
  p.wave = 1;
  set_residency(model, p, r.residency == "resident" ? model.block_count() : 0);
  if (!fits_in_waves(model, r, p)) refuse(model, r, p);
  if (r.micro_batch == 0)
    p = with_best_micro_batch(model, r, p);
  else
    p.wave = largest_wave(model, r, p);
  if (r.residency == "auto")
    set_residency(model, p, largest(0, model.block_count(), [&](int64_t k) {
                    StepPlan q = p;
                    set_residency(model, q, k);
                    return fits(model, r, q);
                  }));
  return describe_plan(model, r, p);
}

std::string memory_table(const MemoryPlan& m) {
  std::string out;
  for (const Place place : {Place::device, Place::host}) {
    const bool device = place == Place::device;
    out += fmt::format("  {:<34}{:>14}   of {}\n", device ? "device memory" : "host memory",
                       gib(device ? m.device_bytes : m.host_bytes),
                       gib(device ? m.device_limit : m.host_available));
    for (const auto& l : m.lines)
      if (l.place == place) out += fmt::format("    {:<32}{:>14}\n", l.what, gib(l.bytes));
  }
  return out;
}

}  // namespace megatrain
