// Where state lives and what is saved must not change a bit: every home of weights, states and gradients,
// every level of saving, block inputs that rest in host memory, the disk by io_uring and by threads.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "scratch.h"
#include "tiny.h"

namespace megatrain {
namespace {

constexpr Place kAll[] = {Place::device, Place::host, Place::disk};

bool possible(const UnitHomes& h) {
  return h.states != Place::device || h.weights == Place::device;
}

std::vector<UnitHomes> all_homes() {
  std::vector<UnitHomes> out;
  for (Place w : kAll)
    for (Place s : kAll)
      for (Place g : kAll)
        if (possible({w, s, g})) out.push_back({w, s, g});
#ifdef MT_SANITIZED  // a third of them: the schedules of the others are made of the same moves
  std::vector<UnitHomes> few;
  for (size_t i = 0; i < out.size(); i += 3) few.push_back(out[i]);
  return few;
#endif
  return out;
}

std::string text(const UnitHomes& h) {
  return std::string("weights ") + name_of(h.weights) + ", states " + name_of(h.states) + ", gradient " +
         name_of(h.gradient);
}

class HomesTest : public ::testing::TestWithParam<bool> {  // tied head or not
 protected:
  ModelSpec spec = tiny_spec(4, GetParam());
  struct Result {
    std::vector<double> losses;
    std::vector<uint32_t> state;
    bool operator==(const Result&) const = default;
  };
  Result run(const StepPlan& plan, double clip = 0.5, bool poison = false) const {
    Engine::Options o;
    o.exec.poison = poison;
    TinyRun r(spec, plan, o);
    Result out;
    out.losses = r.train(3, clip);
    const auto tokens = TinyRun::batch(spec, plan, 9, 0);
    out.losses.push_back(r.engine->evaluate(tokens.data(), tokens.data()));
    out.state = r.state();
    return out;
  }
  int units() const { return make_model(spec)->unit_count(); }
};

TEST_P(HomesTest, EveryHomeGivesTheSameBits) {
  const Result want = run(tiny_plan()), unclipped = run(tiny_plan(), 0);
  for (const UnitHomes& h : all_homes()) {
    StepPlan plan = tiny_plan();
    plan.homes.assign(static_cast<size_t>(units()), h);
    EXPECT_TRUE(run(plan) == want) << text(h);
    plan.wave = 3;
    EXPECT_TRUE(run(plan, 0.5, true) == want) << text(h) << ", in waves, poisoned";
    plan.update_in_backward = true;
    EXPECT_TRUE(run(plan, 0) == unclipped) << text(h) << ", updates in the backward, in waves";
    plan.wave = 0;
    EXPECT_TRUE(run(plan, 0, true) == unclipped) << text(h) << ", updates in the backward";
  }
}

TEST_P(HomesTest, MixedHomesGiveTheSameBits) {
  const Result want = run(tiny_plan());
  const auto all = all_homes();
  for (uint64_t seed = 0; seed < 12; ++seed) {
    StepPlan plan = tiny_plan();
    for (int u = 0; u < units(); ++u)
      plan.homes.push_back(all[random_u32(5, seed, static_cast<uint64_t>(u)) % all.size()]);
    plan.resident_blocks = static_cast<int>(seed % 5), plan.resident_ends = seed % 2,
    plan.wave = static_cast<int64_t>(seed % 4);
    EXPECT_TRUE(run(plan) == want) << "seed " << seed;
  }
}

TEST_P(HomesTest, EveryLevelOfSavingGivesTheSameBits) {
  for (const char* family : {"gpt2", "qwen3"}) {
    spec.family = family, spec.qk_norm = spec.family == "qwen3", spec.dropout = 0.2;
    const Result want = run(tiny_plan());
    const int levels = make_model(spec)->block().levels();
    ASSERT_EQ(levels, 5);
    for (int level = 1; level < levels; ++level)
      for (int64_t wave : {0, 2}) {
        StepPlan plan = tiny_plan();
        plan.levels.assign(4, level), plan.wave = wave;
        EXPECT_TRUE(run(plan, 0.5, wave == 2) == want) << family << ", level " << level << ", wave " << wave;
      }
    StepPlan mixed = tiny_plan();
    mixed.levels = {0, 3, 1, 4};
    EXPECT_TRUE(run(mixed) == want) << family << ", mixed";
  }
}

TEST_P(HomesTest, InputsThatRestInHostMemoryGiveTheSameBits) {
  const Result want = run(tiny_plan());
  for (int offloaded : {1, 2, 3, 4})
    for (int64_t wave : {0, 3}) {
      StepPlan plan = tiny_plan();
      plan.offloaded_inputs = offloaded, plan.wave = wave;
      plan.levels = {1, 0, 2, 0};
      EXPECT_TRUE(run(plan, 0.5, wave == 3) == want) << offloaded << " offloaded, wave " << wave;
    }
}

TEST_P(HomesTest, ThreadsInsteadOfIoUringGiveTheSameBits) {
  const Result want = run(tiny_plan());
  StepPlan plan = tiny_plan();
  plan.homes.assign(static_cast<size_t>(units()), {Place::disk, Place::disk, Place::disk});
  setenv("MEGATRAIN_IO", "threads", 1);
  EXPECT_TRUE(run(plan) == want);
  unsetenv("MEGATRAIN_IO");
}

// One store, one engine after another: memory of the first that the kernel was told of is not that of the
// second, though it may lie at the same address.
TEST_P(HomesTest, ASecondEngineOnTheSameStoreReadsWhatTheFirstWrote) {
  StepPlan plan = tiny_plan();
  plan.homes.assign(static_cast<size_t>(units()), {Place::disk, Place::disk, Place::disk});
  TinyRun once(spec, plan), twice(spec, plan);
  once.train(3), twice.train(3);
  const auto tokens = TinyRun::batch(spec, plan, 9, 0);
  const double want = once.engine->evaluate(tokens.data(), tokens.data());
  for (int i = 0; i < 3; ++i) {
    twice.engine.reset();
    twice.engine =
        std::make_unique<Engine>(*twice.device, *twice.model, twice.store, plan, Engine::Options{});
    EXPECT_EQ(twice.engine->evaluate(tokens.data(), tokens.data()), want) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, HomesTest, ::testing::Bool(),
                         [](auto& p) { return p.param ? "Tied" : "Untied"; });

TEST(Homes, NonFiniteStepsChangeNothingOnTheDevice) {
  for (bool in_backward : {false, true}) {
    StepPlan plan = tiny_plan();
    plan.homes.assign(5, {Place::device, Place::device, Place::device}),
        plan.update_in_backward = in_backward;
    TinyRun run(tiny_spec(), plan);
    const double clip = in_backward ? 0 : 0.5;
    run.train(2, clip);
    const auto before = run.state();
    uint16_t kept = 0;
    const uint16_t infinite = 0x7f80;
    run.store.read(1, Plane::hi, 6, &kept, 2);
    run.store.write(1, Plane::hi, 6, &infinite, 2);
    if (in_backward) {
      EXPECT_THROW(run.train(1, clip), Error);
    } else {
      EXPECT_FALSE(std::isfinite(run.train(1, clip)[0]));
      run.engine->resume(run.engine->optimizer_steps());
      run.store.write(1, Plane::hi, 6, &kept, 2);
      EXPECT_EQ(run.state(), before);
    }
  }
}

TEST(StateFile, DamageIsFoundByName) {
  const ScratchDirectory d;
  const std::string path = d.file("state.bin");
  std::vector<char> page_aligned(3 * 4096 + 4096);
  auto* data =
      reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(page_aligned.data()) + 4095) / 4096 * 4096);
  for (int i = 0; i < 3 * 4096; ++i) data[i] = static_cast<char>(i * 7);
  for (const char* io : {"", "threads"}) {
    setenv("MEGATRAIN_IO", io, 1);
    StateFile f(path, 3 * 4096);
    f.write_block(0, data, 3 * 4096 - 100);
    f.read_block(0, data, 3 * 4096 - 100);
    {
      std::fstream edit(path, std::ios::in | std::ios::out | std::ios::binary);
      edit.seekp(4096 + 5000);
      edit.put('x');
    }
    EXPECT_THROW(f.read_block(0, data, 3 * 4096 - 100), Error);
    std::vector<char> copy(3 * 4096 - 100);
    EXPECT_THROW(f.read_part(0, copy.data(), 3 * 4096 - 100), Error);
    std::filesystem::resize_file(path, 4096 + 100);
    EXPECT_THROW(f.read_block(0, data, 3 * 4096 - 100), Error);
    try {
      const StateFile second(path, 4096);
      ADD_FAILURE() << "two owners";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("in use by process"), std::string::npos) << e.what();
    }
  }
  unsetenv("MEGATRAIN_IO");
  EXPECT_FALSE(std::filesystem::exists(path)) << "removed by its owner";
  d.write("state.bin", "something else entirely");
  EXPECT_THROW(StateFile(path, 4096), Error);
  EXPECT_EQ(std::filesystem::file_size(path), 23u) << "what is not ours stays";
}

}  // namespace
}  // namespace megatrain
