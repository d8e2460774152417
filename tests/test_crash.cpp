// The crash harness: training runs that are killed, or whose disk fails, at random instants, then resumed
// (sometimes to be killed again) until they end, must leave the bits of the run that was never stopped.
// MT_CRASH_RUNS sets how many; scripts/crash.sh runs 200 (docs/reliability.md has its figures).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "checkpoint/manifest.h"
#include "core/rng.h"
#include "io/file.h"
#include "scratch.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

/// What must be equal: weights, moments, and the record of steps.
struct Outcome {
  std::string model, states, metrics;
  bool operator==(const Outcome&) const = default;
  explicit Outcome(const std::string& out) : model(read_text_file(out + "/model/model.safetensors")) {
    std::vector<std::string> complaints;
    const auto entries = list_checkpoints(out + "/checkpoints", complaints);
    if (!entries.empty())
      for (const auto& f : entries[0].manifest.files) states += f.hash + "\n";
    std::istringstream lines(read_text_file(out + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto j = nlohmann::json::parse(line);
      metrics += j["step"].dump() + " ";
      for (const char* name : {"loss", "gradient_norm", "val_loss"})
        if (j.contains(name)) metrics += j[name].dump() + " ";
      metrics += "\n";
    }
  }
};

bool disk_fails(const std::string& kind) {
  return kind == "full" || kind == "once" || kind == "eio" || kind == "ro";
}

struct Tally {
  int runs = 0, kills = 0, failures = 0, resumes = 0, untouched = 0;
};

class Crash : public ::testing::Test {
 protected:
  void SetUp() override {
    d.write("text.txt", book().substr(0, 20000));
    ASSERT_EQ(run_command(binary + " prepare " + d.file("text.txt") + " -o " + d.file("data")).exit_code, 0);
  }
  static std::string book() { return read_text_file(std::string(MT_SOURCE_DIR) + "/data/sherlock.txt"); }

  std::string train(const std::string& out, int variant, const std::string& more = "") const {
    std::string c = binary + " train " + d.file("c.yaml") + " --out-dir " + out +
                    (variant % 2 ? " --max-gradient-norm 0" : "") +
                    (variant / 2 % 2 ? " --family llama --tie-word-embeddings false" : "") + more;
    return c;
  }
  static constexpr int kHung = 1000;
  // 0 exit, or the signal, or 128 and more for an exit code.
  static int run(const std::string& command, const std::map<std::string, std::string>& environment,
                 int kill_after_ms) {
    const pid_t child = fork();
    if (child == 0) {
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      execl("/bin/sh", "sh", "-c", ("exec " + command + " >> " + environment.at("MT_LOG") + " 2>&1").c_str(),
            nullptr);
      _exit(127);
    }
    if (kill_after_ms >= 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kill_after_ms));
      kill(child, SIGKILL);
    }
    int status = 0;
    for (int waited = 0; waitpid(child, &status, WNOHANG) == 0; ++waited) {
      if (waited == 60'000) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        return kHung;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) == 0 ? 0 : 128 + WEXITSTATUS(status);
  }

  std::string binary = MT_BINARY, preload = MT_FAULTS;
  ScratchDirectory d;
};

TEST_F(Crash, KilledRunsEndInTheSameBits) {
  d.write("c.yaml",
          "hidden_size: 32\nnum_layers: 2\nnum_heads: 2\nsequence_length: 32\nbatch_size: 4\nnum_steps: 20\n"
          "dropout: 0.1\nlog_interval: 1\ncheckpoint_interval: 3\neval_interval: 7\neval_batches: 2\n"
          "learning_rate: 1e-2\nthreads: 1\ndevice: cpu\ntrain_data: " +
              d.file("data/train.bin") + "\nval_data: " + d.file("data/val.bin") + "\n");
  std::vector<Outcome> want;
  std::vector<int64_t> calls;
  for (int v = 0; v < 4; ++v) {
    const std::string out = d.file("whole-" + std::to_string(v));
    std::map<std::string, std::string> e = {{"MT_LOG", d.file("log")}, {"MT_FAULT_COUNT", d.file("count")}};
    if (!preload.empty()) e["LD_PRELOAD"] = preload;
    ASSERT_EQ(run(train(out, v), e, -1), 0) << read_text_file(d.file("log"));
    want.emplace_back(out);
    calls.push_back(preload.empty() ? 1 : std::stoll(read_text_file(d.file("count"))));
    ASSERT_GT(calls.back(), preload.empty() ? 0 : 100);
  }
  const char* many = std::getenv("MT_CRASH_RUNS");
  const uint64_t runs = many ? std::strtoull(many, nullptr, 10) : 16;
  const char* kinds[] = {"kill", "kill", "full", "once", "short", "eio", "ro", "time", "term", "clock"};
  Tally n;
  for (uint64_t r = 0; r < runs; ++r) {
    const int v = static_cast<int>(r % 4);
    const std::string out = d.file("run");
    fs::remove_all(out);
    ++n.runs;
    for (uint64_t attempt = 0;; ++attempt) {
      auto roll = [&](uint64_t k, uint64_t below) { return random_u64(41, r, attempt * 10 + k) % below; };
      std::map<std::string, std::string> e = {{"MT_LOG", d.file("log")}};
      std::string kind = preload.empty() ? "time" : kinds[roll(0, std::size(kinds))];
      int after = -1;
      if (attempt >= 3) kind = "none";  // now it may end
      if (kind == "time") after = static_cast<int>(roll(1, 400));
      if (after < 0 && kind != "none") {
        e["LD_PRELOAD"] = preload, e["MT_FAULT_KIND"] = kind;
        e["MT_FAULT_AT"] = std::to_string(1 + roll(1, static_cast<uint64_t>(calls[static_cast<size_t>(v)])));
      }
      d.write("log", "");
      // Another plan at every start: nothing of it may show. Past io_uring the faults reach the state file
      // too.
      const char* residencies[] = {"", "", " --residency stream", " --residency disk", " --residency disk"};
      e["MEGATRAIN_IO"] = "threads";
      const int rc = run(
          train(out, v,
                std::string(attempt > 0 ? " --resume" : "") + residencies[roll(2, std::size(residencies))]),
          e, after);
      n.resumes += attempt > 0, n.kills += rc == SIGKILL, n.failures += rc >= 128;
      const std::string log = read_text_file(d.file("log"));
      ASSERT_TRUE(rc == 0 || rc == SIGKILL || rc == 130)
          << (rc == kHung ? "it hung: " : "") << "run " << r << ", " << kind << ": " << rc << "\n"
          << log;
      if (rc == 130) {  // a disk that is full ends a run with one line that says so
        ASSERT_TRUE(disk_fails(kind)) << kind << "\n" << log;
        ASSERT_TRUE(log.find("megatrain: ") != std::string::npos ||
                    log.find("was not written: ") != std::string::npos)
            << log;
      }
      std::vector<std::string> complaints;
      list_checkpoints(out + "/checkpoints", complaints);
      ASSERT_TRUE(complaints.empty())
          << "run " << r << ", " << kind << " left half a checkpoint: " << complaints[0];
      if (kind == "none") {
        ASSERT_EQ(rc, 0) << log;
        break;
      }
      if (rc == 0 && log.find("stopped after step") != std::string::npos) continue;  // SIGTERM: saved, exit 0
      if (rc == 0 && !disk_fails(kind)) {
        n.untouched += attempt == 0;
        break;
      }
    }
    const Outcome got(out);
    ASSERT_TRUE(got.model == want[static_cast<size_t>(v)].model) << "run " << r << ": the model differs\n"
                                                                 << read_text_file(d.file("log"));
    ASSERT_EQ(got.states, want[static_cast<size_t>(v)].states) << "run " << r;
    ASSERT_EQ(got.metrics, want[static_cast<size_t>(v)].metrics)
        << "run " << r << read_text_file(d.file("log"));
  }
  std::printf("%d runs: %d killed, %d ended by a failing disk, %d resumed; %d never reached their fault\n",
              n.runs, n.kills, n.failures, n.resumes, n.untouched);
  EXPECT_GT(n.kills, 0);
}

}  // namespace
}  // namespace megatrain
