// Runs one training step overlapped: with every wait ("whole"), or with the wait of a block's forward for its
// weights taken out ("removed"), which ThreadSanitizer must report. Built by the tsan preset only.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tiny.h"

int main(int argc, char** argv) {
  using namespace megatrain;
  const StepPlan plan = tiny_plan(2, 2);
  TinyRun run(tiny_spec(2), plan);
  Schedule s =
      build_train_step(*run.model, plan, run.engine->buffers(), {false, std::vector<bool>(3, false)});
  if (argc > 1 && !std::strcmp(argv[1], "removed")) {
    auto t = std::find_if(s.tasks.begin(), s.tasks.end(),
                          [](auto& x) { return x.kind == TaskKind::block_forward && x.unit == 2; });
    t->waits.clear();
  }
  std::printf("hazards found by check(): %zu\n", check(s).size());
  const auto tokens = TinyRun::batch(run.model->spec(), plan, 0, 0);
  const double loss = run.engine->run_schedule(s, {false, false, true}, tokens.data(), tokens.data(), {});
  std::printf("loss %.3f\n", loss);
}
