#include "cli/checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/units.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

// What the order of the data depends on, beside the data itself.
constexpr const char* kDataOptions[] = {"batch_size", "sequence_length", "sampling",
                                        "packing",    "truncation",      "seed"};
// What may differ without a word: where and how the same numbers are computed, and what is printed.
constexpr const char* kFreeSections[] = {"machine", "output", "checkpoints"};

template <class List>
bool among(const std::string& name, const List& list) {
  return std::any_of(std::begin(list), std::end(list), [&](const char* x) { return name == x; });
}

std::map<std::string, std::string> options_of(const TrainConfig& config) {
  std::map<std::string, std::string> out;
  for_each_field(config, [&](const FieldInfo& info, const auto& member) {
    if (!among(info.section, kFreeSections)) out[info.name] = fmt::format("{}", member);
  });
  return out;
}

}  // namespace

TrainingCheckpoints::TrainingCheckpoints(const TrainConfig& config, std::string data)
    : config_(config), directory_(config.out_dir + "/checkpoints"), data_(std::move(data)) {
  choose();
  if (from_) check_fits(*from_);
}

void TrainingCheckpoints::choose() {
  std::vector<std::string> complaints;
  if (!config_.resume_from.empty()) {
    const fs::path path = fs::path(config_.resume_from).lexically_normal();
    const fs::path parent = path.has_filename() ? path.parent_path() : path.parent_path().parent_path();
    candidates_ = list_checkpoints(parent.empty() ? "." : parent.string(), complaints);
    std::erase_if(candidates_, [&](const CheckpointEntry& e) { return !fs::equivalent(e.path, path); });
    if (candidates_.empty())
      fail(fmt::format("resume_from: {} is not a whole checkpoint{}", config_.resume_from,
                       complaints.empty() ? "" : "; " + complaints[0]));
  } else {
    candidates_ = list_checkpoints(directory_, complaints);
    for (const std::string& c : complaints) fmt::print(stderr, "not used: {}\n", c);
    if (!config_.resume) {
      if (!candidates_.empty() && !config_.overwrite)
        fail(
            fmt::format("{}: holds checkpoints of an earlier run (step {}); --resume goes on from there, "
                        "--overwrite deletes them, or choose another out_dir",
                        directory_, candidates_[0].manifest.step));
      candidates_.clear();
    }
  }
  if (!candidates_.empty()) from_ = candidates_[0];
  if (config_.resume && !from_)
    fmt::print("resume: no checkpoint in {}, so the run starts from the beginning\n", directory_);
}

void TrainingCheckpoints::check_fits(const CheckpointEntry& entry) const {
  if (config_.resume_changed_data) return;
  std::string differs =
      entry.manifest.data == data_ ? "" : "train_data (other contents, weights or vocabulary)";
  const auto now = options_of(config_);
  for (const char* name : kDataOptions) {
    const auto then = entry.manifest.options.find(name);
    if (then != entry.manifest.options.end() && then->second != now.at(name))
      differs +=
          fmt::format("{}{} ({}, was {})", differs.empty() ? "" : ", ", name, now.at(name), then->second);
  }
  if (!differs.empty())
    fail(fmt::format(
        "{}: the data would not go on where it stopped: {}; use what the run was started with, or "
        "--resume-changed-data",
        entry.path, differs));
}

void TrainingCheckpoints::note_differences(const CheckpointEntry& entry) const {
  for (const auto& [name, value] : options_of(config_)) {
    const auto then = entry.manifest.options.find(name);
    if (then == entry.manifest.options.end() || then->second == value || name == "train_data" ||
        name == "val_data")
      continue;
    fmt::print("resume: {} is {}, was {}\n", name, value, then->second);
  }
}

void TrainingCheckpoints::load(const Session& session) {
  for (const CheckpointEntry& e : candidates_) try {
      load_checkpoint(e, *session.model, *session.store, session.threads,
                      show_progress("reading the checkpoint"));
      from_ = e;
      note_differences(e);
      fmt::print("resume: {}, {} steps done\n", e.path, e.manifest.step);
      return;
    } catch (const Error& error) {
      if (&e == &candidates_.back()) throw;
      fmt::print(stderr, "not used: {}\n", error.what());
    }
}

void TrainingCheckpoints::open(const Session& session) {
  const auto free = static_cast<double>(fs::space(config_.out_dir).available);
  const auto model = static_cast<double>(session.store->bytes()) / 3;  // fp32 of fp32 and two moments
  if (free < model)
    fail(fmt::format(
        "{}: the model alone needs up to {}, {} are free; free some space or choose another out_dir",
        config_.out_dir, format_bytes(model), format_bytes(free)));
  if (config_.checkpoint_interval < 0) return;
  std::error_code ignored;
  if (!from_ && config_.overwrite) fs::remove_all(directory_, ignored);
  writer_ = std::make_unique<Checkpointer>(
      *session.model, *session.store,
      CheckpointPolicy{directory_, config_.keep_checkpoints, config_.keep_checkpoint_every, 4});
  std::vector<std::string> complaints;
  const auto there = static_cast<int64_t>(list_checkpoints(directory_, complaints).size());
  const int64_t more = std::max<int64_t>(config_.keep_checkpoints + 1 - there, 1),
                need = more * writer_->bytes_needed();
  const std::string figures = fmt::format(
      "{}: {} checkpoint{} of {} need{} {}, {} are free", directory_, more, more == 1 ? "" : "s",
      format_bytes(static_cast<double>(writer_->bytes_needed())), more == 1 ? "s" : "",
      format_bytes(static_cast<double>(need)), format_bytes(static_cast<double>(writer_->bytes_free())));
  if (writer_->bytes_free() >= need) return;
  if (config_.checkpoint_interval > 0)
    fail(figures + "; free some space, lower keep_checkpoints, or set checkpoint_interval to -1 for none");
  by_time_ = false;
  fmt::print(stderr, "no checkpoints by time: {}\n", figures);
}

bool TrainingCheckpoints::due(int64_t steps) const {
  if (!writer_) return false;
  if (config_.checkpoint_interval > 0 && steps % config_.checkpoint_interval == 0) return true;
  const double minutes = std::chrono::duration<double>(std::chrono::steady_clock::now() - last_).count() / 60;
  return by_time_ && config_.checkpoint_minutes > 0 && minutes >= config_.checkpoint_minutes;
}

void TrainingCheckpoints::save(const Engine& engine, int64_t steps, int64_t skipped) {
  Manifest m;
  m.step = steps, m.optimizer_steps = engine.optimizer_steps(), m.skipped = skipped;
  m.program = "megatrain " MT_VERSION, m.options = options_of(config_), m.data = data_;
  last_ = std::chrono::steady_clock::now();
  report(true);
  try {
    writer_->start(std::move(m), engine.update_pending());
    last_step_ = steps;
  } catch (const Error& e) {
    fmt::print(stderr, "checkpoint of step {} was not written: {}\n", steps, e.what());
  }
}

bool TrainingCheckpoints::report(bool wait) {
  if (!writer_) return true;
  const auto r = writer_->finished(wait);
  if (!r) return true;
  if (!r->error.empty()) {
    fmt::print(stderr, "checkpoint of step {} was not written: {}; earlier ones are as they were\n", r->step,
               r->error);
    return false;
  }
  fmt::print("checkpoint of step {}: {} in {:.1f} s ({:.2f} GB/s), training waited {:.2f} s\n", r->step,
             format_bytes(static_cast<double>(r->bytes)), r->seconds,
             static_cast<double>(r->bytes) / 1e9 / std::max(r->seconds, 1e-9), r->stalled);
  std::fflush(stdout);
  return true;
}

}  // namespace megatrain
