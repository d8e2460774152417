#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>

#include "checkpoint/unit_file.h"
#include "cli/checkpoints.h"
#include "cli/commands.h"
#include "cli/plan.h"
#include "core/error.h"
#include "core/say.h"
#include "core/units.h"
#include "data/loader.h"
#include "engine/trace.h"
#include "io/file.h"
#include "io/hf_model.h"
#include "io/metrics.h"
#include "optim/lr_schedule.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

// A NaN's sign says nothing.
double unsigned_nan(double x) {
  return std::isnan(x) ? std::numeric_limits<double>::quiet_NaN() : x;
}

std::string metric_name(Lane lane) {
  std::string name = fmt::format("busy_{}", name_of(lane));
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

// As safetensors calls it; empty: as it was.
std::string stored_dtype(const std::string& name) {
  return name == "fp32" ? "F32" : name == "bf16" ? "BF16" : name == "fp16" ? "F16" : "";
}

/// One training run from resolved config to saved model.
class Trainer {
 public:
  Trainer(const TrainConfig& config, std::string command_line)
      : c_(config), command_line_(std::move(command_line)) {}

  int run() {
    prepare();
    announce();
    allocate();
    if (step_ > 0 && validation_due(step_) && !metrics_->holds(step_, "val_loss")) validate_now(step_);
    for (; step_ < c_.num_steps && !interrupted(); ++step_) one_step();
    finish();
    return failed_ ? 2 : 0;
  }

 private:
  // Everything that can be refused is refused here, before memory is taken or a file is written.
  void prepare() {
    validate(c_);
    const std::vector<DataSet> named = data_sets("train_data", c_.train_data);
    if (named.empty()) fail("train_data: not set; name a .bin made by 'megatrain prepare'");
    for (const DataSet& set : named)
      if (!is_prepared(set.path) && fs::exists(set.path))
        fail(fmt::format(
            "{}: is no token file; run: megatrain prepare {} --out DIR --tokenizer MODEL, then give DIR's "
            "train.bin or train.mtbin",
            set.path, set.path));
    const std::string beside = fs::path(named[0].path).parent_path().string();
    tokenizer_ = load_tokenizer(beside.empty() ? "." : beside);
    ModelSpec spec = c_.init_from.empty() ? model_spec(c_, tokenizer_ ? tokenizer_->vocab_size() : 0)
                                          : read_model_spec(c_.init_from);
    if (!c_.init_from.empty()) spec.dropout = c_.dropout;
    if (tokenizer_ && tokenizer_->vocab_size() > spec.vocab_size)
      fail(fmt::format("vocab_size: {} is less than the {} tokens of the data's tokenizer", spec.vocab_size,
                       tokenizer_->vocab_size()));
    PlanRequest request = training_request(c_, spec);
    session_ = Session::plan_for(spec, request, machine_of(c_));  // can be asked for before there is data
    open_data(spec.vocab_size);
    request.packed = loader_->packed();
    if (request.packed) session_ = Session::plan_for(spec, request, machine_of(c_));
    checkpoints_ = std::make_unique<TrainingCheckpoints>(c_, data_fingerprint());
    if (checkpoints_->from()) check_same_model(*checkpoints_->from(), *session_.model);
    ensure_writable_directory(c_.out_dir);
    lock_.emplace(c_.out_dir);
    const std::string states = c_.out_dir + "/states";
    const bool same_disk = c_.state_dir.empty() && session_.plan.bytes(Place::disk) > 0;
    checkpoints_->check_room(*session_.model,
                             same_disk ? session_.plan.bytes(Place::disk) - leftover_states(states) : 0);
    if (!c_.trace.empty())
      write_file_atomically(c_.trace, "");  // an unwritable path is found now, not at the end
  }

  void open_data(int64_t vocab_size) {
    const auto open = [&](const DataSet& set, bool train) {
      files_.push_back(std::make_unique<TokenFile>(set.path, vocab_size));
      check_vocabulary(*files_.back());
      SequenceOptions o{c_.sequence_length, c_.packing, c_.truncation};
      const bool documents = files_.back()->documents() > 0;
      if (!train && !documents) o.packing = "stream";
      return std::make_unique<Sequences>(*files_.back(), o);
    };
    std::vector<WeightedSet> sets;
    for (const DataSet& set : data_sets("train_data", c_.train_data)) {
      train_.push_back(open(set, true));
      sets.push_back({train_.back().get(), set.weight});
    }
    for (const DataSet& set : data_sets("val_data", c_.val_data)) val_.push_back(open(set, false));
    loader_ = std::make_unique<Loader>(std::move(sets), c_.batch_size, c_.sequence_length, c_.sampling,
                                       static_cast<uint64_t>(c_.seed));
  }

  // The data's vocabulary against the model's: equal sizes may still be different tokens.
  void check_vocabulary(const TokenFile& file) {
    if (c_.init_from.empty() || file.vocabulary_hash() == 0) return;
    if (!model_hash_) {
      const auto tokenizer = load_tokenizer(c_.init_from);
      model_hash_ = tokenizer ? tokenizer->hash() : 0;
    }
    if (*model_hash_ != 0 && *model_hash_ != file.vocabulary_hash())
      fail(fmt::format(
          "{}: was made with another vocabulary than {}'s tokenizer; prepare it with --tokenizer {}",
          file.path(), c_.init_from, c_.init_from));
  }

  void announce() const {
    say("options (* differs from the default)\n{}\n", config_table(c_));
    say("plan: {}\n{}{}{}", plan_text(*session_.model, session_.plan), memory_table(session_.plan),
        checkpoints_->disk(), estimate_text(*session_.model, session_.plan, session_.profile, c_.num_steps));
    for (const auto& set : train_)
      say("data: {} has {} tokens, {}\n", set->file().path(),
          format_count(static_cast<double>(set->file().size())), set->summary().text());
    if (train_.size() > 1) say("data: {} rows an epoch from {} sets\n", loader_->rows(), train_.size());
  }

  void allocate() {
    session_.allocate();
    say("model: {}\n", session_.summary());
    fill_store();
    engine_ = session_.make_engine(machine_of(c_));
    checkpoints_->open(session_);
    checkpoints_->watch(*engine_);
    if (const auto& from = checkpoints_->from()) {
      engine_->resume(from->manifest.optimizer_steps);
      step_ = first_step_ = from->manifest.step, skipped_ = from->manifest.skipped;
    }
    if (session_.device->memory_used() != session_.plan.bytes(Place::device))
      throw std::logic_error("the arena holds other than the memory table says");
    write_file_atomically(c_.out_dir + "/config.yaml", config_yaml(c_));
    const int64_t keep = checkpoints_->from() ? step_ : -1;
    metrics_.emplace(c_.out_dir + "/metrics.jsonl", keep);
    tensorboard_.emplace(c_.out_dir, keep);
    costs_.emplace(*session_.model, session_.profile);
    prefetcher_ = std::make_unique<Prefetcher>(*loader_);
    started_ = last_line_ = Clock::now();
  }

  void fill_store() {
    ThreadPool pool(session_.threads);
    if (!c_.init_from.empty()) import();  // for a run that is resumed: what the export needs to know
    if (checkpoints_->from())
      checkpoints_->load(session_);
    else if (c_.init_from.empty())
      session_.store->initialize(static_cast<uint64_t>(c_.seed), pool, show_progress("initial weights"));
  }

  // What the order of tokens depends on: contents, shares, vocabulary.
  std::string data_fingerprint() const {
    std::string out = fmt::format("vocabulary {:016x}", tokenizer_ ? tokenizer_->hash() : 0);
    const std::vector<DataSet> sets = data_sets("train_data", c_.train_data);
    for (size_t i = 0; i < sets.size(); ++i)
      out += fmt::format("; {} tokens, {} documents, {:016x}, weight {}", files_[i]->size(),
                         files_[i]->documents(), files_[i]->checksum(), sets[i].weight);
    return out;
  }

  void import() {
    const Clock::time_point start = Clock::now();
    source_ = load_weights(c_.init_from, *session_.model, *session_.store, session_.threads,
                           show_progress("loading weights"), c_.allow_nonfinite_weights);
    if (!source_->ignored.empty())
      say("weights: {} tensor{} hold{} nothing to train and {} left out ({})\n", source_->ignored.size(),
          source_->ignored.size() == 1 ? "" : "s", source_->ignored.size() == 1 ? "s" : "",
          source_->ignored.size() == 1 ? "is" : "are", source_->ignored[0]);
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    say("weights: read from {} in {:.1f} s; store {}, most memory so far {}\n", c_.init_from,
        seconds_since(start), format_bytes(static_cast<double>(session_.store->bytes())),
        format_bytes(static_cast<double>(usage.ru_maxrss) * 1024));
  }

  double learning_rate() const {
    LrSchedule s{c_.lr_schedule, c_.learning_rate,
                 c_.min_learning_rate < 0 ? c_.learning_rate / 10 : c_.min_learning_rate, c_.warmup_steps,
                 c_.decay_steps < 0 ? c_.num_steps - c_.warmup_steps : c_.decay_steps};
    return learning_rate_at(s, step_);
  }

  void one_step() {
    const Batch& batch = prefetcher_->get(step_);
    StepSettings settings;
    settings.optimizer = {learning_rate(), c_.adam_beta1, c_.adam_beta2, c_.adam_epsilon, c_.weight_decay};
    settings.max_gradient_norm = c_.max_gradient_norm;
    settings.seed = static_cast<uint64_t>(c_.seed);
    const StepResult r = engine_->train_step(batch.tokens.data(), batch.targets.data(), settings,
                                             session_.plan.step.packed ? batch.positions.data() : nullptr);
    account(r);
    const int64_t done = step_ + 1;
    log(r, settings.optimizer.learning_rate);
    if (!c_.trace.empty() && done > c_.num_steps - c_.trace_steps)
      trace_.add(engine_->schedule(), engine_->timeline(), fmt::format("step {}", done), session_.plan.step,
                 *costs_);
    check_finite(r);
    if (validation_due(done)) validate_now(done);
    if (c_.save_interval > 0 && done % c_.save_interval == 0 && done < c_.num_steps) save();
    checkpoints_->report(false);
    if (checkpoints_->due(done) && done < c_.num_steps) checkpoint(done);
  }

  void checkpoint(int64_t done) try {
    metrics_->sync();
    checkpoints_->save(*engine_, done, skipped_);
  } catch (const Error& e) {
    warn("checkpoint of step {} was not written: {}\n", done, e.what());
  }

  bool validation_due(int64_t done) const {
    return !val_.empty() && c_.eval_interval > 0 && done % c_.eval_interval == 0 && done < c_.num_steps;
  }

  void account(const StepResult& r) {
    since_line_.tokens += r.target_tokens;
    since_line_.seconds += engine_->timeline().seconds;
    for (int lane = 0; lane < kLanes; ++lane)
      since_line_.busy[lane] += engine_->timeline().busy(engine_->schedule(), static_cast<Lane>(lane));
  }

  void log(const StepResult& r, double lr) {
    const bool first = step_ == 0, last = step_ + 1 == c_.num_steps;
    const double elapsed = seconds_since(last_line_);
    const bool due = first || last || (step_ + 1) % c_.log_interval == 0 || elapsed >= 10;
    if (!due && step_ != first_step_) return;
    const double speed = static_cast<double>(since_line_.tokens) / elapsed;
    std::string busy;
    Scalars scalars = {{"loss", r.loss},
                       {"learning_rate", lr},
                       {"gradient_norm", r.gradient_norm},
                       {"tokens_per_second", speed}};
    for (int lane = 0; lane < kLanes; ++lane) {
      const char* name = name_of(static_cast<Lane>(lane));
      const double share = 100 * since_line_.busy[lane] / since_line_.seconds;
      if (lane < static_cast<int>(Lane::disk_read) || share > 0)
        busy += fmt::format(" {} {:.0f}%", name, share);
      scalars.emplace_back(metric_name(static_cast<Lane>(lane)), share);
    }
    const double eta = seconds_since(started_) / static_cast<double>(step_ + 1 - first_step_) *
                       static_cast<double>(c_.num_steps - step_ - 1);
    say("step {:>{}}/{}  loss {:.4f}  lr {:.2e}  norm {:.3f}  {} tok/s  busy{}  eta {}\n", step_ + 1,
        std::to_string(c_.num_steps).size(), c_.num_steps, unsigned_nan(r.loss), lr,
        unsigned_nan(r.gradient_norm), format_count(speed), busy, format_duration(eta));
    std::fflush(stdout);
    if (due) {  // a resumed run shows its first step, but keeps the same record as one that was never stopped
      metrics_->write(step_ + 1, scalars);
      tensorboard_->write(step_ + 1, scalars);
    }
    since_line_ = {};
    last_line_ = Clock::now();
  }

  void check_finite(const StepResult& r) {
    skipped_ = r.applied ? 0 : skipped_ + 1, applied_ += r.applied;
    if (r.applied) return;
    warn(
        "step {}: loss {} or gradient norm {} is not finite{}; the update was dropped, weights are "
        "unchanged\n",
        step_ + 1, unsigned_nan(r.loss), unsigned_nan(r.gradient_norm),
        r.bad_unit < 0 ? ""
                       : " (first in the gradient of " +
                             session_.model->units()[static_cast<size_t>(r.bad_unit)].name + ")");
    if (skipped_ <= c_.max_skipped_steps) return;
    checkpoints_->report(true);
    save();
    fail(
        fmt::format("{} steps in a row were not finite; the last good weights are in {}/model; lower "
                    "learning_rate or check the data",
                    skipped_, c_.out_dir));
  }

  // After `done` steps. One that is interrupted says nothing: a resumed run does it again.
  void validate_now(int64_t done) {
    const Clock::time_point start = Clock::now();
    Evaluation e;
    for (const auto& set : val_) {
      const Evaluation one = evaluate(*engine_, *set, c_.eval_batches);
      if (val_.size() > 1) say("  {}: loss {:.4f} on {} tokens\n", set->file().path(), one.loss, one.tokens);
      e.loss += one.loss * static_cast<double>(one.tokens), e.tokens += one.tokens;
    }
    if (interrupted()) return;
    e.loss /= static_cast<double>(std::max<int64_t>(e.tokens, 1));
    say("validation after step {}: loss {:.4f}, perplexity {:.2f} on {} tokens\n", done, e.loss,
        std::exp(e.loss), format_count(static_cast<double>(e.tokens)));
    const Scalars scalars = {{"val_loss", e.loss}, {"val_perplexity", std::exp(e.loss)}};
    metrics_->write(done, scalars);
    tensorboard_->write(done, scalars);
    last_line_ += Clock::now() - start;  // validation does not count as training time
  }

  // The model alone, for others to use; checkpoints hold what training needs.
  void save() {
    engine_->finish_update();
    DirectoryWriter writer(c_.out_dir + "/model");
    ExportOptions options;
    options.source = source_ ? &*source_ : nullptr;
    options.dtype = stored_dtype(c_.save_dtype), options.threads = session_.threads;
    save_model(writer.file("."), *session_.model, *session_.store, options,
               show_progress("saving the model"));
    if (tokenizer_ && !(source_ && source_->has_tokenizer())) tokenizer_->save(writer.file("."));
    writer.commit();
  }

  // A last checkpoint: of an interrupted run, to go on, and of a finished one that writes them by steps.
  void last_checkpoint() {
    const bool wanted = interrupted() || c_.checkpoint_interval > 0;
    if (!checkpoints_->enabled() || !wanted || step_ == first_step_) return;
    engine_->finish_update();  // one that is being written may wait for it
    if (checkpoints_->last_step() != step_) checkpoint(step_);
    if (!checkpoints_->report(true) || checkpoints_->last_step() != step_) failed_ = true;
  }

  void finish() {
    if (step_ > first_step_ && applied_ == 0 && !interrupted())
      fail(fmt::format(
          "not one of {} steps could be applied, as loss or gradient were not finite: nothing was trained "
          "and nothing is saved; check the weights it started from, the data and learning_rate",
          step_ - first_step_));
    // Before the checkpoint, whose step says which lines of the metrics are kept on resume.
    if (!val_.empty() && !interrupted() && !metrics_->holds(step_, "val_loss")) validate_now(step_);
    last_checkpoint();
    save();
    metrics_->sync();
    if (!c_.trace.empty()) {
      trace_.write(c_.trace);
      say("trace: {}\n{}", c_.trace, trace_.compare_text());
    }
    if (interrupted()) {
      const bool kept = checkpoints_->enabled() && !failed_;
      say("\nstopped after step {}; the model is in {}/model{}", step_, c_.out_dir,
          kept ? ". To go on exactly from here:\n" : ", but there is no checkpoint of this step\n");
      if (kept) say("  {}{}\n", command_line_, c_.resume ? "" : " --resume");
      return;
    }
    say("saved {}/model after {} steps, {}\n", c_.out_dir, step_, format_duration(seconds_since(started_)));
    if (c_.sample_prompt.empty() || !tokenizer_) return;
    engine_.reset();
    say("\n--- sample ---\n");
    GenerateOptions g;
    g.prompts = {c_.sample_prompt}, g.max_tokens = c_.sample_tokens, g.temperature = 0.8, g.seed = c_.seed;
    MachineOptions machine = machine_of(c_);
    print_sample(session_, *tokenizer_, g, machine);
  }

  struct Window {
    int64_t tokens = 0;
    double seconds = 0, busy[kLanes] = {0};
  };

  TrainConfig c_;
  std::string command_line_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ModelSource> source_;
  Session session_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::unique_ptr<TokenFile>> files_;
  std::vector<std::unique_ptr<Sequences>> train_, val_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Prefetcher> prefetcher_;
  std::optional<uint64_t> model_hash_;
  std::optional<DirectoryLock> lock_;
  std::optional<MetricsFile> metrics_;
  std::optional<TensorBoardWriter> tensorboard_;
  TraceFile trace_;
  std::optional<CostModel> costs_;  // of the trace
  std::unique_ptr<TrainingCheckpoints> checkpoints_;
  int64_t step_ = 0, first_step_ = 0, skipped_ = 0, applied_ = 0;
  bool failed_ = false;  // the last checkpoint could not be written
  Clock::time_point started_, last_line_;
  Window since_line_;
};

}  // namespace

int run_train(const TrainConfig& config, const std::string& command_line) {
  watch_interrupts();
  outlive_the_log();
  return Trainer(config, command_line).run();
}

}  // namespace megatrain
