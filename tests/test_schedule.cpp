// check() on schedules the builder made (clean) and on twelve planted hazards (each found), and what the
// hazards do when executed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/rng.h"
#include "tiny.h"

namespace megatrain {
namespace {

struct Built {
  explicit Built(StepPlan p = tiny_plan(4, 2), bool tied = true, bool pending = true)
      : plan(p),
        model(make_model(tiny_spec(4, tied))),
        buffers(*model, plan),
        schedule(build_train_step(
            *model, plan, buffers,
            {pending, std::vector<bool>(static_cast<size_t>(model->unit_count()), false)})) {}
  StepPlan plan;
  std::unique_ptr<Model> model;
  StepBuffers buffers;
  Schedule schedule;

  Task& find(TaskKind kind, int unit = -1, int micro = -1) {
    for (auto& t : schedule.tasks)
      if (t.kind == kind && (unit < 0 || t.unit == unit) && (micro < 0 || t.micro == micro)) return t;
    throw std::logic_error("no such task");
  }
  void expect_hazard(const std::string& words) {
    const auto found = check(schedule);
    ASSERT_FALSE(found.empty());
    EXPECT_TRUE(std::any_of(found.begin(), found.end(), [&](auto& f) {
      return f.find(words) != std::string::npos;
    })) << found[0];
  }
};

TEST(Check, BuiltSchedulesAreClean) {
  uint64_t seed = 0;
  for (int i = 0; i < 300; ++i) {
    auto pick = [&](uint64_t n) { return static_cast<int64_t>(random_u64(5, 0, seed++) % n); };
    StepPlan p = tiny_plan(1 + pick(9), 1);
    p.micro_batch = 1 + pick(static_cast<uint64_t>(p.batch));
    p.wave = pick(4), p.update_in_backward = pick(2);
    ModelSpec spec = tiny_spec(1 + pick(7), pick(2));
    p.resident_blocks = static_cast<int>(pick(static_cast<uint64_t>(spec.num_layers) + 1));
    p.resident_ends = p.resident_blocks == spec.num_layers && pick(2);
    const auto model = make_model(spec);
    const StepBuffers buffers(*model, p);
    std::vector<bool> loaded(static_cast<size_t>(model->unit_count()), false);
    for (size_t u = 0; u < loaded.size(); ++u) loaded[u] = buffers.resident(static_cast<int>(u)) && pick(2);
    const StartState start{!p.update_in_backward && pick(2) == 1, loaded};
    for (const Schedule& s : {build_train_step(*model, p, buffers, start),
                              build_forward(*model, p, buffers, start, ForwardGoal::loss)}) {
      const auto found = check(s);
      EXPECT_TRUE(found.empty()) << s.name << ": " << found[0];
    }
  }
}

// Each planted hazard is one edit of a clean schedule.
TEST(Check, ComputeDoesNotWaitForItsWeights) {
  Built b;
  b.find(TaskKind::block_forward, 1, 0).waits.clear();
  b.expect_hazard("reads 'block weights, buffer 0' without waiting");
}
TEST(Check, LoadOverwritesWeightsInUse) {
  Built b;
  b.find(TaskKind::load_weights, 3).waits.clear();
  b.expect_hazard("overwrites, in use, 'block weights, buffer 0'");
}
TEST(Check, LoadRunsBeforeTheUpdate) {
  Built b;
  b.find(TaskKind::load_weights, 2).waits.clear();
  b.expect_hazard("reads 'host weights of block 1' without waiting");
}
TEST(Check, OffloadBeforeTheGradientIsDone) {
  Built b;
  b.find(TaskKind::read_norm, 4).waits.clear();  // the offload comes behind it on the same lane
  b.expect_hazard("reads 'block gradient, buffer 1' without waiting");
}
TEST(Check, GradientIsZeroedWhileItIsOffloaded) {
  Built b;
  b.find(TaskKind::zero_gradient, 2).waits.clear();
  b.expect_hazard("overwrites, in use, 'block gradient, buffer 1'");
}
TEST(Check, UpdateInBackwardDoesNotWaitForItsGradient) {
  StepPlan p = tiny_plan(4, 2);
  p.update_in_backward = true;
  Built b(p, true, false);
  b.find(TaskKind::optimize, 3).waits.clear();
  b.expect_hazard("without waiting");
}
TEST(Check, ReadBeforeAnythingWasWritten) {
  Built b;
  auto& tasks = b.schedule.tasks;
  tasks[static_cast<size_t>(&b.find(TaskKind::embed_forward, 0, 0) - tasks.data())].accesses.pop_back();
  b.expect_hazard("before anything was written there");
}
TEST(Check, WrongUnitInTheBuffer) {
  Built b;
  Task& load = b.find(TaskKind::load_weights, 3);
  for (auto& a : load.accesses)
    if (a.after.kind == Holds::weights && a.writes) a.after.unit = 4;
  b.expect_hazard("which holds weights of unit 4");
}
TEST(Check, StaleWeights) {
  Built b;
  Task& update = b.find(TaskKind::optimize, 2);
  update.accesses[0].after.version = 0;
  b.expect_hazard("expects weights of unit 2 v1");
}
TEST(Check, AMicroBatchIsMissingFromTheGradient) {
  Built b;
  Task& t = b.find(TaskKind::block_backward, 2, 1);
  std::erase_if(t.accesses, [](auto& a) { return a.after.kind == Holds::gradient; });
  b.expect_hazard("expects gradient of unit 2 v2");
}
TEST(Check, DeadlockingWait) {
  Built b;
  b.schedule.tasks[0].waits.push_back(static_cast<int>(b.schedule.tasks.size()) - 1);
  b.expect_hazard("a deadlock");
}
TEST(Check, WaitForNothing) {
  Built b;
  b.schedule.tasks[3].waits.push_back(100000);
  b.expect_hazard("which does not exist");
}
TEST(Check, BufferOutOfRange) {
  Built b;
  b.schedule.tasks[3].accesses[0].buffer = 9999;
  b.expect_hazard("which does not exist");
}
TEST(Check, UnorderedWritesToOneBuffer) {
  Built b;
  Task& t = b.find(TaskKind::load_tokens, -1, 1);  // onto another lane, into the other's buffer
  t.lane = Lane::d2h, t.accesses[0].buffer = b.buffers.tokens(0);
  b.expect_hazard("overwrites 'tokens of micro-batch 0' without waiting");
}
TEST(Check, TasksOutOfOrder) {
  Built b;
  auto& t = b.schedule.tasks;
  const auto first = static_cast<size_t>(&b.find(TaskKind::block_forward, 1, 0) - t.data());
  const auto second = static_cast<size_t>(&b.find(TaskKind::block_forward, 2, 0) - t.data());
  std::swap(t[first].accesses, t[second].accesses);
  EXPECT_FALSE(check(b.schedule).empty());
}

// Every single wait the builder puts in is needed: taking any one out is found.
TEST(Check, NoWaitIsSuperfluous) {
  for (bool tied : {true, false}) {
    const Built b(tiny_plan(4, 2), tied);
    for (size_t i = 0; i < b.schedule.tasks.size(); ++i)
      for (size_t w = 0; w < b.schedule.tasks[i].waits.size(); ++w) {
        Schedule s = b.schedule;
        s.tasks[i].waits.erase(s.tasks[i].waits.begin() + static_cast<std::ptrdiff_t>(w));
        EXPECT_FALSE(check(s).empty()) << describe(s.tasks[i], static_cast<int>(i));
      }
  }
}

TEST(Schedule, LayerMajorWeightsCrossTheLinkTwiceWhateverM) {
  for (int64_t micro : {1, 2, 4}) {
    Built b(tiny_plan(4, micro));
    const auto loads = std::count_if(b.schedule.tasks.begin(), b.schedule.tasks.end(),
                                     [](auto& t) { return t.kind == TaskKind::load_weights; });
    // embedding + 4 blocks up, then the two blocks that are no longer there on the way down
    EXPECT_EQ(loads, 1 + 4 + 2);
    const auto offloads = std::count_if(b.schedule.tasks.begin(), b.schedule.tasks.end(),
                                        [](auto& t) { return t.kind == TaskKind::offload_gradient; });
    EXPECT_EQ(offloads, 1 + 4);
  }
}

TEST(Schedule, FreesNeverPrecedeALaterReader) {
  const Built b;
  for (size_t i = 0; i < b.schedule.tasks.size(); ++i)
    for (int buffer : b.schedule.tasks[i].frees)
      for (size_t j = i + 1; j < b.schedule.tasks.size(); ++j) {
        const auto& a = b.schedule.tasks[j].accesses;
        const auto use = std::find_if(a.begin(), a.end(), [&](auto& x) { return x.buffer == buffer; });
        if (use == a.end()) continue;
        EXPECT_FALSE(use->reads) << describe(b.schedule.tasks[j], static_cast<int>(j));
        break;
      }
}

// Poison turns a use after free into NaN: the load of block 2 is taken out, so the block reads what the
// freed buffer holds.
TEST(Poison, UseAfterFreeIsNotFinite) {
  for (bool poison : {false, true}) {
    TinyRun run(tiny_spec(), tiny_plan(4, 2));
    Built b(tiny_plan(4, 2), true, false);
    std::erase_if(b.schedule.tasks, [](auto& t) { return t.kind == TaskKind::load_weights && t.unit == 3; });
    for (auto& t : b.schedule.tasks) t.waits.clear();  // indices moved; run serialized instead
    EXPECT_FALSE(check(b.schedule).empty());
    const auto tokens = TinyRun::batch(run.model->spec(), b.plan, 0, 0);
    const double loss =
        run.engine->run_schedule(b.schedule, {true, poison}, tokens.data(), tokens.data(), {});
    EXPECT_EQ(std::isfinite(loss), !poison) << loss;
  }
}

}  // namespace
}  // namespace megatrain
