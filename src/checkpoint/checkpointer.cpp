#include "checkpoint/checkpointer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <numeric>

#include "checkpoint/unit_file.h"
#include "core/error.h"
#include "core/units.h"
#include "io/file.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

}  // namespace

Checkpointer::Checkpointer(const Model& model, const StateStore& store, CheckpointPolicy policy)
    : model_(model),
      store_(store),
      policy_(std::move(policy)),
      phase_(static_cast<size_t>(model.unit_count()), Phase::idle) {
  ensure_writable_directory(policy_.directory);
  remove_leftovers(policy_.directory);
}

Checkpointer::~Checkpointer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  join();
}

void Checkpointer::join() {
  if (thread_.joinable()) thread_.join();
}

int64_t checkpoint_bytes(const Model& model) {
  int64_t n = int64_t{64} << 10;  // the manifest's options, the directory
  for (const UnitLayout& u : model.units()) n += unit_file_bytes(u) + 8192;  // a file's last block, its lines
  return n;
}

void Checkpointer::start(Manifest manifest, bool pending) {
  join();
  const int64_t free = free_bytes(policy_.directory), need = checkpoint_bytes(model_);
  if (free < need)
    fail(fmt::format("{}: a checkpoint needs {}, {} are free; free some space, or lower keep_checkpoints",
                     policy_.directory, format_bytes(static_cast<double>(need)),
                     format_bytes(static_cast<double>(free))));
  manifest_ = std::move(manifest);
  manifest_.files.assign(static_cast<size_t>(model_.unit_count()), {});
  temporary_ = fmt::format("{}/.tmp-step-{}", policy_.directory, manifest_.step);
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
  ensure_writable_directory(temporary_);
  const std::lock_guard lock(mutex_);
  std::fill(phase_.begin(), phase_.end(), pending ? Phase::awaiting : Phase::ready);
  order_.resize(phase_.size());
  std::iota(order_.begin(), order_.end(), 0);
  if (!pending) std::reverse(order_.begin(), order_.end());  // updates in the backward come from the top
  next_ = 0, stalled_ = 0, done_ = false;
  thread_ = std::thread([this] { write(); });
}

void Checkpointer::before_update(int unit) {
  std::unique_lock lock(mutex_);
  Phase& phase = phase_[static_cast<size_t>(unit)];
  if (done_ || phase != Phase::ready) return;
  const Clock::time_point start = Clock::now();
  changed_.wait(lock, [&] { return done_ || stop_ || phase == Phase::written; });
  stalled_ += since(start);
}

void Checkpointer::after_update(int unit) {
  const std::lock_guard lock(mutex_);
  Phase& phase = phase_[static_cast<size_t>(unit)];
  if (phase != Phase::awaiting) return;
  phase = Phase::ready;
  changed_.notify_all();
}

// The next unit whose update has come, in order; -1 when there is none left.
int Checkpointer::next_unit() {
  std::unique_lock lock(mutex_);
  if (next_ == order_.size()) return -1;
  const int unit = order_[next_++];
  changed_.wait(lock, [&] { return stop_ || phase_[static_cast<size_t>(unit)] == Phase::ready; });
  return stop_ ? -1 : unit;
}

void Checkpointer::write_units(std::exception_ptr& error) {
  try {
    for (int u = next_unit(); u >= 0; u = next_unit()) {
      const auto at = static_cast<size_t>(u);
      Manifest::File f = write_unit(temporary_, u, model_.units()[at], store_);
      const std::lock_guard lock(mutex_);
      manifest_.files[at] = std::move(f);
      phase_[at] = Phase::written;
      changed_.notify_all();
    }
  } catch (...) {
    error = std::current_exception();
    const std::lock_guard lock(mutex_);
    next_ = order_.size();  // the others end after what they are at
  }
}

void Checkpointer::commit() {
  write_file_atomically(temporary_ + "/manifest.json", manifest_.text());
  sync_path(temporary_);
  const std::string path = fmt::format("{}/step-{}", policy_.directory, manifest_.step);
  replace_directory(temporary_, path);  // there is one when a run was resumed from before it
}

void Checkpointer::write() {
  const Clock::time_point start = Clock::now();
  Report r;
  r.step = manifest_.step;
  try {
    std::vector<std::exception_ptr> errors(static_cast<size_t>(std::max(policy_.threads, 1)));
    std::vector<std::thread> writers;
    for (size_t i = 1; i < errors.size(); ++i) writers.emplace_back([&, i] { write_units(errors[i]); });
    write_units(errors[0]);
    for (std::thread& t : writers) t.join();
    for (const auto& e : errors)
      if (e) std::rethrow_exception(e);
    {
      const std::lock_guard lock(mutex_);
      if (stop_) fail("was given up");
    }
    commit();
    r.bytes = manifest_.bytes(), r.seconds = since(start);
    remove_leftovers(policy_.directory);
    prune_checkpoints(policy_.directory, policy_.keep, policy_.every);
  } catch (const std::exception& e) {
    r.error = e.what();
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
  }
  const std::lock_guard lock(mutex_);
  if (r.seconds == 0) r.seconds = since(start);
  r.stalled = stalled_;
  report_ = r, done_ = true;
  changed_.notify_all();
}

std::optional<Checkpointer::Report> Checkpointer::finished(bool wait) {
  if (wait) join();
  const std::lock_guard lock(mutex_);
  std::optional<Report> out;
  out.swap(report_);
  return out;
}

void check_same_model(const CheckpointEntry& entry, const Model& model) {
  const auto& files = entry.manifest.files;
  if (static_cast<int>(files.size()) != model.unit_count())
    fail(fmt::format("{}: is of a model with {} units, this one has {}; the shape cannot change on resume",
                     entry.path, files.size(), model.unit_count()));
  for (size_t u = 0; u < files.size(); ++u) {
    const UnitLayout& layout = model.units()[u];
    if (files[u].numel != layout.numel || files[u].unit != layout.name ||
        files[u].bytes != unit_file_bytes(layout))
      fail(fmt::format(
          "{}: unit {} is '{}' of {} parameters, this model's is '{}' of {}; the shape cannot change "
          "on resume",
          entry.path, u, files[u].unit, files[u].numel, layout.name, layout.numel));
  }
}

void load_checkpoint(const CheckpointEntry& entry, const Model& model, StateStore& store, int threads,
                     const ProgressFn& progress) {
  check_same_model(entry, model);
  ThreadPool pool(threads);
  std::atomic<int64_t> done{0};
  std::mutex mutex;
  std::exception_ptr error;
  pool.parallel_for(model.unit_count(), [&](int64_t u) {
    try {
      read_unit(entry.path, static_cast<int>(u), entry.manifest.files[static_cast<size_t>(u)], store);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
    const int64_t n = ++done;
    const std::lock_guard lock(mutex);
    if (progress) progress(static_cast<double>(n) / model.unit_count());
  });
  if (error) std::rethrow_exception(error);
}

}  // namespace megatrain
