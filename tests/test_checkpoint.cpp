// Checkpoints: whole or absent, equal or refused, written while training goes on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "checkpoint/checkpointer.h"
#include "checkpoint/unit_file.h"
#include "core/error.h"
#include "io/file.h"
#include "io/metrics.h"
#include "mutate.h"
#include "scratch.h"
#include "tiny.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

Manifest manifest_of(int64_t step, const Engine& engine) {
  Manifest m;
  m.step = step, m.optimizer_steps = engine.optimizer_steps();
  m.program = "test", m.data = "data", m.options = {{"seed", "3"}};
  return m;
}

std::vector<CheckpointEntry> list(const std::string& directory) {
  std::vector<std::string> complaints;
  return list_checkpoints(directory, complaints);
}

void steps(TinyRun& run, int first, int last, double clip = 0.5) {
  for (int s = first; s < last; ++s) {
    const auto tokens = TinyRun::batch(run.model->spec(), run.engine->plan(), s, 0),
               targets = TinyRun::batch(run.model->spec(), run.engine->plan(), s, 1);
    StepSettings settings;
    settings.optimizer.learning_rate = 1e-2, settings.max_gradient_norm = clip, settings.seed = 3;
    run.engine->train_step(tokens.data(), targets.data(), settings);
  }
}

class Checkpoints : public ::testing::TestWithParam<bool> {  // updates in the backward or not
 protected:
  StepPlan plan() const {
    StepPlan p = tiny_plan();
    p.update_in_backward = GetParam();
    return p;
  }
  double clip() const { return GetParam() ? 0 : 0.5; }
  ScratchDirectory d;
};

// A checkpoint of step 3, begun while steps 4 and 5 follow at once, is the state after step 3; a run that
// goes on from it, with other residency and threads, ends in the bits of the one that was never stopped.
TEST_P(Checkpoints, HoldTheStateOfTheirStepAndGoOnBitForBit) {
  ModelSpec spec = tiny_spec();
  spec.dropout = 0.1;
  TinyRun whole(spec, plan()), stopped(spec, plan());
  steps(stopped, 0, 3, clip());
  stopped.engine->finish_update();
  const auto want = stopped.state();
  Checkpointer writer(*whole.model, whole.store, {d.path, 2, 0, 3});
  whole.engine->observe_updates(&writer);
  steps(whole, 0, 3, clip());
  writer.start(manifest_of(3, *whole.engine), whole.engine->update_pending());
  steps(whole, 3, 6, clip());
  const auto report = writer.finished(true);
  ASSERT_TRUE(report);
  ASSERT_EQ(report->error, "");
  whole.engine->finish_update();

  const auto entries = list(d.path);
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].manifest.step, 3);
  StepPlan other = plan();
  other.resident_blocks = 2, other.wave = 3;
  TinyRun resumed(spec, other, {}, 3);
  load_checkpoint(entries[0], *resumed.model, resumed.store, 2, {});
  EXPECT_EQ(resumed.state(), want);
  resumed.engine->resume(entries[0].manifest.optimizer_steps);
  steps(resumed, 3, 6, clip());
  resumed.engine->finish_update();
  EXPECT_EQ(resumed.state(), whole.state());
}

// The same from and to every kind of home: what is written does not depend on where it lived.
TEST_P(Checkpoints, GoOnBitForBitInOtherHomes) {
  const ModelSpec spec = tiny_spec(4, false);
  const std::vector<Homes> all = {{},
                                  Homes(6, {Place::device, Place::device, Place::device}),
                                  Homes(6, {Place::disk, Place::disk, Place::disk}),
                                  Homes(6, {Place::device, Place::host, Place::device}),
                                  {{Place::device, Place::device, Place::host},
                                   {Place::host, Place::disk, Place::host},
                                   {},
                                   {},
                                   {Place::disk, Place::host, Place::device},
                                   {Place::device, Place::device, Place::device}}};
  TinyRun reference(spec, plan());
  steps(reference, 0, 6, clip());
  reference.engine->finish_update();
  const auto want = reference.state();
  for (size_t from = 0; from < all.size(); ++from) {
    StepPlan p = plan();
    p.homes = all[from];
    const ScratchDirectory there;
    TinyRun whole(spec, p);
    Checkpointer writer(*whole.model, whole.store, {there.path, 2, 0, 3});
    whole.engine->observe_updates(&writer);
    steps(whole, 0, 3, clip());
    writer.start(manifest_of(3, *whole.engine), whole.engine->update_pending());
    steps(whole, 3, 6, clip());
    const auto report = writer.finished(true);
    ASSERT_TRUE(report);
    ASSERT_EQ(report->error, "");
    whole.engine->finish_update();
    EXPECT_EQ(whole.state(), want) << from;
    for (size_t to = 0; to < all.size(); ++to) {
      StepPlan q = plan();
      q.homes = all[to], q.levels = {0, 4, 2, 1}, q.offloaded_inputs = 2;
      TinyRun resumed(spec, q);
      const auto entry = list(there.path)[0];
      load_checkpoint(entry, *resumed.model, resumed.store, 2, {});
      resumed.engine->resume(entry.manifest.optimizer_steps);
      steps(resumed, 3, 6, clip());
      resumed.engine->finish_update();
      EXPECT_EQ(resumed.state(), want) << "from " << from << " to " << to;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Updates, Checkpoints, ::testing::Bool(),
                         [](auto& p) { return p.param ? "InTheBackward" : "AfterIt"; });

TEST(CheckpointList, NewestByManifestOldOnesPruned) {
  const ScratchDirectory d;
  TinyRun run(tiny_spec(1), tiny_plan());
  Checkpointer writer(*run.model, run.store, {d.path, 2, 4, 1});
  for (int64_t step = 1; step <= 7; ++step) {
    writer.start(manifest_of(step, *run.engine), false);
    ASSERT_EQ(writer.finished(true)->error, "");
  }
  std::vector<int64_t> kept;
  for (const auto& e : list(d.path)) kept.push_back(e.manifest.step);
  EXPECT_EQ(kept, (std::vector<int64_t>{7, 6, 4})) << "the newest two, and multiples of four";
  fs::rename(d.file("step-4"), d.file("step-9"));  // a name says nothing
  EXPECT_EQ(list(d.path)[0].manifest.step, 7);
  fs::remove(d.file("step-7/manifest.json"));
  fs::create_directory(d.file(".tmp-step-8"));
  std::vector<std::string> complaints;
  EXPECT_EQ(list_checkpoints(d.path, complaints)[0].manifest.step, 6);
  ASSERT_EQ(complaints.size(), 1u);
  EXPECT_NE(complaints[0].find("has no manifest"), std::string::npos);
  remove_leftovers(d.path);
  EXPECT_FALSE(fs::exists(d.file(".tmp-step-8")));
}

TEST(CheckpointList, AnotherShapeIsRefused) {
  const ScratchDirectory d;
  TinyRun run(tiny_spec(2), tiny_plan()), other(tiny_spec(3), tiny_plan());
  Checkpointer writer(*run.model, run.store, {d.path, 2, 0, 1});
  writer.start(manifest_of(1, *run.engine), false);
  ASSERT_EQ(writer.finished(true)->error, "");
  EXPECT_THROW(load_checkpoint(list(d.path)[0], *other.model, other.store, 1, {}), Error);
  ModelSpec wide = tiny_spec(2);
  wide.hidden_size = 32;
  TinyRun third(wide, tiny_plan());
  EXPECT_THROW(check_same_model(list(d.path)[0], *third.model), Error);
}

// The writer never blocks what must go on: destroyed in the middle, it gives up and leaves nothing whole.
TEST(CheckpointWriter, GivenUpLeavesNothing) {
  const ScratchDirectory d;
  TinyRun run(tiny_spec(), tiny_plan());
  {
    Checkpointer writer(*run.model, run.store, {d.path, 2, 0, 2});
    run.engine->observe_updates(&writer);
    steps(run, 0, 1);
    writer.start(manifest_of(1, *run.engine), true);  // its updates never come
  }
  EXPECT_TRUE(list(d.path).empty());
  EXPECT_TRUE(fs::is_empty(d.path));
}

TEST(CheckpointWriter, AFailureIsReportedAndTrainingGoesOn) {
  const ScratchDirectory d;
  TinyRun run(tiny_spec(), tiny_plan());
  Checkpointer writer(*run.model, run.store, {d.path, 2, 0, 2});
  run.engine->observe_updates(&writer);
  steps(run, 0, 1);
  writer.start(manifest_of(1, *run.engine), true);
  fs::remove_all(d.file(".tmp-step-1"));  // the ground goes from under it
  steps(run, 1, 4);
  const auto report = writer.finished(true);
  ASSERT_TRUE(report);
  EXPECT_NE(report->error, "");
  EXPECT_TRUE(list(d.path).empty());
  EXPECT_FALSE(writer.finished(false));
}

// The context is gone after an illegal address: the run ends with an error, destructors and all.
TEST(CheckpointWriter, ACudaErrorEndsTheRunAndLeavesTheLastOneWhole) {
  if (test_choice().kind != DeviceKind::cuda) GTEST_SKIP() << "needs a CUDA device";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string path = ::testing::TempDir() + "megatrain-cuda-error";
  const auto body = [&] {
    fs::remove_all(path);
    try {
      TinyRun run(tiny_spec(), tiny_plan());
      Checkpointer writer(*run.model, run.store, {path, 2, 0, 2});
      run.engine->observe_updates(&writer);
      steps(run, 0, 2);
      run.engine->finish_update();
      writer.start(manifest_of(2, *run.engine), false);
      if (!writer.finished(true)->error.empty()) std::exit(1);
      steps(run, 2, 3);
      writer.start(manifest_of(3, *run.engine), true);
      std::vector<int32_t> tokens(14 * 12, 1 << 30), targets(tokens.size(), 1);
      run.engine->train_step(tokens.data(), targets.data(), {});
      std::exit(2);
    } catch (const Error& e) {
      std::fprintf(stderr, "error: %s\n", e.what());
    }
    std::exit(42);
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(42), "error: .*(CUDA|cuBLAS)");
  const auto entries = list(path);
  ASSERT_FALSE(entries.empty());  // that of step 3 is whole too if its updates came before the error
  EXPECT_GE(entries[0].manifest.step, 2);
  fs::remove_all(path);
}

TEST(Metrics, ResumedFilesHaveNoLineTwice) {
  const ScratchDirectory d;
  d.write("m.jsonl",
          "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":2}\n{\"step\":3,\"loss\":1}\n{\"step\":4,\"lo");
  {
    MetricsFile m(d.file("m.jsonl"), 2);
    m.write(3, {{"loss", 1.5}});
  }
  EXPECT_EQ(read_text_file(d.file("m.jsonl")),
            "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":2}\n{\"step\":3,\"loss\":1.5}\n");
  MetricsFile fresh(d.file("m.jsonl"));
  EXPECT_EQ(read_text_file(d.file("m.jsonl")), "");
}

/// A checkpoint of which one thing is changed at a time.
class Mutations {
 public:
  explicit Mutations(const std::string& path) {
    for (const auto& e : fs::directory_iterator(path))
      files_[e.path().filename().string()] = read_text_file(e.path());
  }
  // Writes a copy with mutation number i; returns what was done.
  std::string write(const std::string& path, uint64_t i) const {
    auto roll = [&](uint64_t k, uint64_t n) { return random_u64(31, i, k) % n; };
    auto files = files_;
    auto it = files.begin();
    std::advance(it, static_cast<int64_t>(roll(0, files.size())));
    std::string what = it->first;
    switch (roll(2, 7)) {
      case 0:
        files.erase(it), what += ": missing";
        break;
      case 1: {
        auto other = files.begin();
        std::advance(other, static_cast<int64_t>(roll(3, files.size())));
        what += " and " + other->first + " swapped";
        std::swap(it->second, other->second);
        break;
      }
      default:
        what += ": " + mutate(it->second, 32, i);
    }
    fs::remove_all(path);
    fs::create_directories(path);
    for (const auto& [name, text] : files) std::ofstream(path + "/" + name, std::ios::binary) << text;
    return what;
  }

 private:
  std::map<std::string, std::string> files_;
};

TEST(Mutated, CheckpointsAreRefusedOrEqual) {
  const char* many = std::getenv("MT_MUTATIONS");
  const uint64_t count = many ? std::strtoull(many, nullptr, 10) : 1000;
  const ScratchDirectory d, copies;
  TinyRun run(tiny_spec(2), tiny_plan()), other(tiny_spec(2), tiny_plan());
  steps(run, 0, 2);
  run.engine->finish_update();
  Checkpointer writer(*run.model, run.store, {d.path, 2, 0, 1});
  writer.start(manifest_of(2, *run.engine), false);
  ASSERT_EQ(writer.finished(true)->error, "");
  const auto want = run.state();
  const Mutations mutations(d.file("step-2"));
  int equal = 0, refused = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const std::string what = mutations.write(copies.file("step-2"), i);
    std::vector<std::string> complaints;
    const auto entries = list_checkpoints(copies.path, complaints);
    try {
      if (entries.empty()) {
        ASSERT_EQ(complaints.size(), 1u) << what;
        ++refused;
        continue;
      }
      load_checkpoint(entries[0], *other.model, other.store, 1, {});
      ASSERT_TRUE(other.state() == want) << what;
      ASSERT_EQ(entries[0].manifest.text(), list(d.path)[0].manifest.text()) << what;
      ++equal;
    } catch (const Error& e) {
      ASSERT_NE(std::string(e.what()).find(copies.path), std::string::npos) << "names no file: " << e.what();
      ++refused;
    }
  }
  EXPECT_EQ(equal + refused, static_cast<int>(count));
  EXPECT_GT(refused, equal * 5);
}

}  // namespace
}  // namespace megatrain
