#pragma once
// defines: Cli — a small set and a config to run the program on, as a person would.

#include <gtest/gtest.h>

#include <algorithm>

#include "scratch.h"

namespace megatrain {

struct Cli : ::testing::Test {
  ScratchDirectory d;
  std::string config;
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "the quick brown fox jumps over the lazy dog. ";
    d.write("text.txt", text);
    ASSERT_EQ(run_command(megatrain_command("prepare " + d.file("text.txt") + " --out " + d.file("data")))
                  .exit_code,
              0);
    config = d.write(
        "c.yaml", "train_data: " + d.file("data/train.bin") + "\nval_data: " + d.file("data/val.bin") +
                      "\nhidden_size: 16\nnum_layers: 2\nnum_heads: 2\nsequence_length: 16\nbatch_size: 4\n"
                      "num_steps: 30\nlearning_rate: 1e-2\nthreads: 1\nmemory_limit: 64MiB\nout_dir: " +
                      d.file("out") + "\n");
  }
  CommandResult train(const std::string& more = "") {
    return run_command(megatrain_command("train " + config + " " + more));
  }
  // One line, exit code 2, and the words that help.
  void refused(const CommandResult& r, const std::string& words) {
    EXPECT_EQ(r.exit_code, 2) << r.output;
    EXPECT_EQ(std::count(r.output.begin(), r.output.end(), '\n'), 1) << r.output;
    EXPECT_NE(r.output.find(words), std::string::npos) << r.output;
    EXPECT_EQ(r.output.rfind("megatrain: ", 0), 0u) << r.output;
  }
};

}  // namespace megatrain
