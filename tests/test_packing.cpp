// Several documents in one sequence: no leak between them, and the same loss and gradients as one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/documents.h"
#include "tiny.h"

namespace megatrain {
namespace {

ModelSpec spec_of(const std::string& family) {
  ModelSpec s = tiny_spec(3, family == "gpt2");
  s.max_position_embeddings = 24, s.norm_eps = 1e-5;
  if (family == "gpt2") return s;
  s.family = family, s.num_kv_heads = 1, s.head_size = 8;
  s.qk_norm = family == "qwen3";
  if (family == "mistral") s.windows.assign(3, 7);
  return s;
}

/// Tokens of the examples of one step and which of them are targets.
struct Document {
  std::vector<int32_t> tokens, targets;
};

std::vector<Document> documents(int64_t vocab, size_t count, int64_t longest) {
  std::vector<Document> out;
  for (size_t d = 0; d < count; ++d) {
    const auto n = static_cast<size_t>(1 + random_u32(1, 2, d) % static_cast<uint32_t>(longest));
    Document x;
    for (size_t t = 0; t < n; ++t) {
      x.tokens.push_back(static_cast<int32_t>(random_u32(3, d, t) % static_cast<uint32_t>(vocab)));
      const auto target = static_cast<int32_t>(random_u32(4, d, t) % static_cast<uint32_t>(vocab));
      x.targets.push_back(random_u32(5, d, t) % 3 == 0 ? -1 : target);
    }
    out.push_back(std::move(x));
  }
  return out;
}

/// Rows of `seq_len` filled with documents in order; one document a row when `padded`.
struct Rows {
  std::vector<int32_t> tokens, targets, positions;
  int64_t count = 0;
  std::vector<size_t> starts;  // of each document, in tokens

  Rows(const std::vector<Document>& list, size_t seq_len, bool padded) {
    size_t room = 0;
    for (const Document& d : list) {
      if (padded || d.tokens.size() > room) fill(room), ++count, room = seq_len;
      starts.push_back(tokens.size());
      tokens.insert(tokens.end(), d.tokens.begin(), d.tokens.end());
      targets.insert(targets.end(), d.targets.begin(), d.targets.end());
      for (size_t t = 0; t < d.tokens.size(); ++t) positions.push_back(static_cast<int32_t>(t));
      room -= d.tokens.size();
    }
    fill(room);
  }
  void fill(size_t room) {
    tokens.resize(tokens.size() + room, 0), targets.resize(targets.size() + room, -1);
    for (size_t t = 0; t < room; ++t) positions.push_back(static_cast<int32_t>(t));
  }
};

StepPlan plan_of(int64_t batch, int64_t seq_len, int64_t micro, bool packed) {
  StepPlan p;
  p.batch = batch, p.seq_len = seq_len, p.micro_batch = micro, p.packed = packed;
  p.compute = test_choice().compute, p.workspace = test_choice().workspace;
  return p;
}

/// Mean loss and gradient of every unit for one step.
struct Outcome {
  double loss = 0;
  std::vector<std::vector<double>> gradients;

  static Outcome of(const ModelSpec& spec, const StepPlan& plan, const Rows& rows) {
    TinyRun run(spec, plan);
    StepSettings settings;
    settings.max_gradient_norm = 1;
    Outcome o;
    o.loss = run.engine
                 ->train_step(rows.tokens.data(), rows.targets.data(), settings,
                              plan.packed ? rows.positions.data() : nullptr)
                 .loss;
    for (int u = 0; u < run.model->unit_count(); ++u) {
      const float* g = run.engine->host_gradient(u);
      o.gradients.emplace_back(g, g + run.model->units()[static_cast<size_t>(u)].numel);
    }
    return o;
  }
  void add(const Outcome& o, double weight) {
    loss += weight * o.loss;
    if (gradients.empty())
      for (const auto& g : o.gradients) gradients.emplace_back(g.size());
    for (size_t u = 0; u < gradients.size(); ++u)
      for (size_t i = 0; i < gradients[u].size(); ++i) gradients[u][i] += weight * o.gradients[u][i];
  }
  void expect_near(const Outcome& want) const {
    EXPECT_NEAR(loss, want.loss, 1e-5 * want.loss);
    for (size_t u = 0; u < gradients.size(); ++u) {
      double error = 0, norm = 0;
      for (size_t i = 0; i < gradients[u].size(); ++i)
        error += std::pow(gradients[u][i] - want.gradients[u][i], 2),
            norm += std::pow(want.gradients[u][i], 2);
      EXPECT_LE(std::sqrt(error / norm), 1e-5) << "unit " << u;
    }
  }
};

class Packing : public ::testing::TestWithParam<const char*> {};

TEST_P(Packing, EqualsPaddedAndOneByOne) {
  if (test_in_bf16()) GTEST_SKIP() << "the bounds are fp32's";
  const ModelSpec spec = spec_of(GetParam());
  const auto list = documents(spec.vocab_size, 28, 24);
  Outcome one_by_one;
  double targets = 0;
  for (const Document& d : list)
    targets +=
        static_cast<double>(std::count_if(d.targets.begin(), d.targets.end(), [](int t) { return t >= 0; }));
  for (const Document& d : list) {
    const auto own = std::count_if(d.targets.begin(), d.targets.end(), [](int t) { return t >= 0; });
    if (own == 0) continue;
    const auto n = static_cast<int64_t>(d.tokens.size());
    one_by_one.add(Outcome::of(spec, plan_of(1, n, 1, false), Rows({d}, d.tokens.size(), true)),
                   static_cast<double>(own) / targets);
  }
  const Rows padded(list, 24, true), packed(list, 24, false);
  EXPECT_EQ(padded.count, 28);
  EXPECT_LT(packed.count, 22);
  for (int64_t micros : {1, 2, 7}) {
    SCOPED_TRACE(std::to_string(micros) + " micro-batches");
    Outcome::of(spec, plan_of(28, 24, 28 / micros, false), padded).expect_near(one_by_one);
    Outcome::of(spec, plan_of(28, 24, 28 / micros, true), padded).expect_near(one_by_one);
    const int64_t micro = (packed.count + micros - 1) / micros;
    Outcome::of(spec, plan_of(packed.count, 24, micro, true), packed).expect_near(one_by_one);
  }
}

// Another document in one place: bit for bit the same logits everywhere else.
TEST_P(Packing, NothingLeaksBetweenDocuments) {
  const ModelSpec spec = spec_of(GetParam());
  auto list = documents(spec.vocab_size, 6, 8);
  for (size_t d = 0; d < list.size(); ++d) list[d].tokens.resize(4, 5), list[d].targets.resize(4, 6);
  const Rows before(list, 24, false);
  ASSERT_EQ(before.count, 1);
  for (int32_t& t : list[2].tokens) t = (t + 1) % static_cast<int32_t>(spec.vocab_size);
  const Rows after(list, 24, false);
  StepPlan plan = plan_of(1, 24, 1, true);
  plan.training = false;
  TinyRun run(spec, plan);
  for (int64_t t = 0; t < 24; ++t) {
    const auto fetch = [&](const Rows& rows) {
      const float* l = run.engine->logits(rows.tokens.data(), t, rows.positions.data());
      return std::vector<float>(l, l + spec.vocab_size);
    };
    const bool changed = t >= 8 && t < 12;
    EXPECT_EQ(fetch(before) == fetch(after), !changed) << "position " << t;
  }
}

TEST_P(Packing, StreamedOverlappedAndWavesChangeNothing) {
  const ModelSpec spec = spec_of(GetParam());
  const Rows rows(documents(spec.vocab_size, 28, 24), 24, false);
  StepPlan plan = plan_of(rows.count, 24, 3, true), resident = plan, waves = plan;
  resident.resident_blocks = 3, resident.resident_ends = true, waves.wave = 2;
  const auto state = [&](const StepPlan& p, bool serialize) {
    Engine::Options options;
    options.exec.serialize = serialize, options.exec.poison = serialize;
    TinyRun run(spec, p, options);
    StepSettings settings;
    settings.optimizer.learning_rate = 1e-2, settings.max_gradient_norm = 0.5;
    for (int s = 0; s < 3; ++s)
      run.engine->train_step(rows.tokens.data(), rows.targets.data(), settings, rows.positions.data());
    run.engine->finish_update();
    return run.state();
  };
  const auto want = state(plan, false);
  EXPECT_EQ(state(plan, true), want);
  EXPECT_EQ(state(resident, false), want);
  EXPECT_EQ(state(waves, false), want);
}

INSTANTIATE_TEST_SUITE_P(Families, Packing, ::testing::Values("gpt2", "llama", "qwen3", "mistral"),
                         [](auto& p) { return std::string(p.param); });

TEST(Documents, AreFoundSortedAndGroupedByLength) {
  std::vector<int32_t> positions;
  for (int length : {3, 200, 1, 52, 256})
    for (int i = 0; i < length; ++i) positions.push_back(i);
  const auto n = static_cast<int64_t>(positions.size());
  ASSERT_EQ(n, 512);
  std::vector<int32_t> spans(1024);
  const auto groups = find_documents(positions.data(), n, 256, spans.data());
  EXPECT_EQ(std::vector<int32_t>(spans.begin(), spans.begin() + 5),
            (std::vector<int32_t>{256, 3, 204, 0, 203}));
  EXPECT_EQ(std::vector<int32_t>(spans.begin() + 512, spans.begin() + 517),
            (std::vector<int32_t>{256, 200, 52, 3, 1}));
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].count, 2);
  EXPECT_EQ(groups[1].first, 2);
  EXPECT_EQ(groups[1].count, 3);
  EXPECT_EQ(groups[0].longest, 256);
  EXPECT_EQ(groups[1].longest, 52);
  positions[1] = 2;
  EXPECT_THROW(find_documents(positions.data(), n, 256, spans.data()), std::logic_error);
}

}  // namespace
}  // namespace megatrain
