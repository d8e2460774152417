#include "cli/checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/say.h"
#include "core/units.h"
#include "io/file.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

// What the order of the data depends on, beside the data itself.
constexpr const char* kDataOptions[] = {"batch_size", "sequence_length", "sampling",
                                        "packing",    "truncation",      "seed"};
// What may differ without a word: where and how the same numbers are computed, and what is printed.
constexpr const char* kFreeSections[] = {"memory", "output", "checkpoints"};

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
    for (const std::string& c : complaints) warn("not used: {}\n", c);
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
    say("resume: no checkpoint in {}, so the run starts from the beginning\n", directory_);
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
    say("resume: {} is {}, was {}\n", name, value, then->second);
  }
}

void TrainingCheckpoints::load(const Session& session) {
  for (const CheckpointEntry& e : candidates_) try {
      load_checkpoint(e, *session.model, *session.store, session.threads,
                      show_progress("reading the checkpoint"));
      from_ = e;
      note_differences(e);
      say("resume: {}, {} steps done\n", e.path, e.manifest.step);
      return;
    } catch (const Error& error) {
      if (&e == &candidates_.back()) throw;
      warn("not used: {}\n", error.what());
    }
}

void TrainingCheckpoints::check_room(const Model& model, int64_t states) {
  const auto text = [](int64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  std::vector<std::string> complaints;
  const auto there = list_checkpoints(directory_, complaints);
  const bool anew = !from_ && config_.overwrite;  // those that are there will go
  int64_t free = free_bytes(config_.out_dir) - states;
  if (anew)
    for (const CheckpointEntry& e : there) free += e.manifest.bytes();
  const int64_t export_bytes = model.parameter_count() * 4, one = checkpoint_bytes(model);
  const int64_t kept = anew ? 0 : static_cast<int64_t>(there.size());
  const int64_t count =
      config_.checkpoint_interval < 0 ? 0 : std::max<int64_t>(config_.keep_checkpoints + 1 - kept, 1);
  disk_ = fmt::format(
      "  disk: {} of {} free in {}: the model, up to {}{}\n", text(export_bytes + count * one), text(free),
      config_.out_dir, text(export_bytes),
      count == 0 ? "" : fmt::format(", and {} checkpoint{} of {}", count, count == 1 ? "" : "s", text(one)));
  if (free < export_bytes)
    fail(fmt::format(
        "{}: the model alone needs up to {}, {} are free; free some space or choose another out_dir",
        config_.out_dir, text(export_bytes), text(free)));
  if (count == 0 || free >= export_bytes + count * one) return;
  const std::string figures =
      fmt::format("{}: the model and {} checkpoint{} of {} need {}, {} are free", config_.out_dir, count,
                  count == 1 ? "" : "s", text(one), text(export_bytes + count * one), text(free));
  if (config_.checkpoint_interval > 0)
    fail(figures + "; free some space, lower keep_checkpoints, or set checkpoint_interval to -1 for none");
  by_time_ = false;
  disk_ = fmt::format("  disk: no checkpoints by time: {}\n", figures);
}

void TrainingCheckpoints::open(const Session& session) {
  if (config_.checkpoint_interval < 0) return;
  std::error_code ignored;
  if (!from_ && config_.overwrite) fs::remove_all(directory_, ignored);
  writer_ = std::make_unique<Checkpointer>(
      *session.model, *session.store,
      CheckpointPolicy{directory_, config_.keep_checkpoints, config_.keep_checkpoint_every});
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
    warn("checkpoint of step {} was not written: {}\n", steps, e.what());
  }
}

bool TrainingCheckpoints::report(bool wait) {
  if (!writer_) return true;
  const auto r = writer_->finished(wait);
  if (!r) return true;
  if (!r->error.empty()) {
    warn("checkpoint of step {} was not written: {}; earlier ones are as they were\n", r->step, r->error);
    return false;
  }
  say("checkpoint of step {}: {} in {:.1f} s ({:.2f} GB/s), training waited {:.2f} s\n", r->step,
      format_bytes(static_cast<double>(r->bytes)), r->seconds,
      static_cast<double>(r->bytes) / 1e9 / std::max(r->seconds, 1e-9), r->stalled);
  std::fflush(stdout);
  return true;
}

}  // namespace megatrain
