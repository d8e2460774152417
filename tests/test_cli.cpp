// The program as a person runs it: bad input gives one line and exit code 2; a small run works end to end.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/config.h"
#include "core/error.h"
#include "data/token_file.h"
#include "io/file.h"
#include "model/layer_template.h"
#include "program.h"

namespace megatrain {
namespace {

TEST_F(Cli, TrainsSavesEvaluatesAndGenerates) {
  const CommandResult r = train("--num-steps 60 --sample-prompt 'the quick' --trace " + d.file("trace.json"));
  ASSERT_EQ(r.exit_code, 0) << r.output;
  EXPECT_NE(r.output.find("--- sample ---\nthe quick"), std::string::npos);
  std::istringstream metrics(read_text_file(d.file("out/metrics.jsonl")));
  double first = 0, last = 0;
  for (std::string line; std::getline(metrics, line);) {
    const auto j = nlohmann::json::parse(line);
    if (!j.contains("loss")) continue;
    if (first == 0) first = j["loss"];
    last = j["loss"];
  }
  EXPECT_LT(last, 0.7 * first);
  const auto trace = nlohmann::json::parse(read_text_file(d.file("trace.json")));
  EXPECT_GT(trace["traceEvents"].size(), 30u);
  std::map<std::string, int> kinds;  // spans, both ends of arrows, counters
  for (const auto& e : trace["traceEvents"]) ++kinds[e["ph"].get<std::string>()];
  EXPECT_GT(kinds["X"], 20);
  EXPECT_GT(kinds["s"], 5);
  EXPECT_EQ(kinds["s"], kinds["f"]);
  EXPECT_GT(kinds["C"], 5);
  for (const char* row : {"predicted    measured", "whole step", "compute: block_backward"})
    EXPECT_NE(r.output.find(row), std::string::npos) << row << "\n" << r.output;
  const CommandResult e =
      run_command(megatrain_command("eval " + d.file("out/model") + " " + d.file("data/val.bin")));
  EXPECT_EQ(e.exit_code, 0);
  EXPECT_NE(e.output.find("perplexity"), std::string::npos) << e.output;
  const std::string generate = "generate " + d.file("out/model") + " -p 'the lazy' -n 30 --seed 5";
  const CommandResult a = run_command(megatrain_command(generate)),
                      b = run_command(megatrain_command(generate));
  EXPECT_EQ(a.exit_code, 0);
  EXPECT_EQ(a.output, b.output);
  EXPECT_EQ(a.output.size(), std::string("the lazy").size() + 30 + 1);
  EXPECT_NE(run_command(megatrain_command(generate + "1 --top-k 1 --memory-limit 1MiB")).output, "");
  const CommandResult go_on = train("--num-steps 3 --init-from " + d.file("out/model"));
  EXPECT_EQ(go_on.exit_code, 0) << go_on.output;
  EXPECT_NEAR(std::stod(go_on.output.substr(go_on.output.find("step 1/3  loss ") + 15)), last, 0.5 * last);
  // The resolved options are a config of their own.
  EXPECT_EQ(run_command(megatrain_command("train " + d.file("out/config.yaml") + " --num-steps 1 --trace ''"))
                .exit_code,
            0);
}

TEST_F(Cli, EvaluatesDocumentsAndChoices) {
  ASSERT_EQ(train("--num-steps 60").exit_code, 0);
  const std::string model = d.file("out/model");
  auto eval = [&](const std::string& more) {
    return run_command(megatrain_command("eval " + model + " " + more));
  };
  auto loss = [](const CommandResult& r) { return std::stod(r.output.substr(r.output.rfind("loss ") + 5)); };
  d.write("a.txt", "the quick brown fox jumps over the lazy dog. the quick brown fox");
  const CommandResult apart = eval(d.file("a.txt")), overlapping = eval(d.file("a.txt") + " --stride 4");
  ASSERT_EQ(apart.exit_code, 0) << apart.output;
  EXPECT_NE(overlapping.output.find("63 predicted tokens"), std::string::npos) << overlapping.output;
  EXPECT_NE(overlapping.output.find("windows of 16, 4 apart"), std::string::npos) << overlapping.output;
  EXPECT_NEAR(loss(overlapping), loss(apart), 0.2 * loss(apart));
  // The same text, as one document among three, has the same loss.
  d.write("d.jsonl", R"({"text":"the quick brown fox jumps over the lazy dog. the quick brown fox"})"
                     "\n\n"
                     R"({"text":"lazy"})"
                     "\n"
                     R"({"text":"t"})"
                     "\n");
  const CommandResult each = eval(d.file("d.jsonl") + " --per-document --batch-size 2");
  ASSERT_EQ(each.exit_code, 0) << each.output;
  std::istringstream lines(each.output);
  std::string first;
  std::getline(lines, first);
  EXPECT_NEAR(nlohmann::json::parse(first)["loss"].get<double>(), loss(apart), 1e-4);
  EXPECT_NE(each.output.find(R"({"document":2,"tokens":0)"), std::string::npos) << each.output;
  d.write("q.jsonl", R"({"prompt":"the quick brown ","choices":["gggg","fox "],"answer":1})"
                     "\n"
                     R"({"prompt":"jumps over the","choices":[" lazy"," xxxx"],"answer":0})");
  const CommandResult q = eval(d.file("q.jsonl"));
  EXPECT_NE(q.output.find("accuracy 1.0000"), std::string::npos) << q.output;
  d.write("bad.jsonl", R"({"prompt":"a","choices":[]})");
  refused(eval(d.file("bad.jsonl")), "'choices' is not a list");
  d.write("bad.jsonl", "{");
  refused(eval(d.file("bad.jsonl")), "bad.jsonl:1: is not valid JSON");
}

TEST_F(Cli, GeneratesInBatchesAndChats) {
  ASSERT_EQ(train("--num-steps 40").exit_code, 0);
  const std::string model = d.file("out/model"), generate = "generate " + model + " -n 12 --temperature 0 ";
  const CommandResult one = run_command(megatrain_command(generate + "-p 'the quick'")),
                      other = run_command(megatrain_command(generate + "-p 'jumps over the la'")),
                      both =
                          run_command(megatrain_command(generate + "-p 'the quick' -p 'jumps over the la'"));
  ASSERT_EQ(both.exit_code, 0) << both.output;
  EXPECT_EQ(both.output, "--- 1\n" + one.output + "--- 2\n" + other.output);
  d.write("prompts.txt", "the quick\njumps over the la\n");
  EXPECT_EQ(run_command(megatrain_command(generate + "--prompts-file " + d.file("prompts.txt"))).output,
            both.output);
  const std::string text = one.output.substr(9, 3);  // stop at what would come
  const CommandResult stopped =
      run_command(megatrain_command(generate + "-p 'the quick' --stop '" + text + "'"));
  EXPECT_EQ(stopped.output, "the quick\n");
  refused(run_command(megatrain_command("generate " + model)), "give --prompt");
  refused(run_command(megatrain_command(generate + "--chat -p hello")), "has no chat template");
  d.write("out/model/chat_template.jinja", "{% for m in messages %}{{ m.content }} {% endfor %}");
  const CommandResult chat =
      run_command("printf 'the\nquick\n\n' | " + megatrain_command(generate + "--chat"));
  EXPECT_EQ(chat.exit_code, 0) << chat.output;
  EXPECT_EQ(std::count(chat.output.begin(), chat.output.end(), '>'), 3) << chat.output;
}

TEST_F(Cli, FineTunesOnConversations) {
  const std::string model = d.file("base");
  std::filesystem::create_directory(model);
  std::filesystem::copy(std::string(MT_GOLDEN_DIR) + "/tokenizers/llama3.json", model + "/tokenizer.json");
  d.write("base/tokenizer_config.json", R"({"eos_token":"</s>"})");
  d.write("base/chat_template.jinja",
          "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  std::string rows = "{\"messages\":5}\n";
  for (int i = 0; i < 40; ++i)
    rows += R"({"instruction":"say a","output":"a cab ride"})"
            "\n";
  d.write("chat.jsonl", rows);
  const std::string prepare =
      "prepare " + d.file("chat.jsonl") + " --out " + d.file("sft") + " --tokenizer " + model;
  refused(run_command(megatrain_command(prepare + " --strict")), "chat.jsonl:1: has no messages");
  const CommandResult p = run_command(megatrain_command(prepare));
  ASSERT_EQ(p.exit_code, 0) << p.output;
  EXPECT_NE(p.output.find("41 rows, 40 examples, 1 skipped"), std::string::npos) << p.output;
  const std::string data = d.file("sft/train.mtbin");
  const CommandResult check = run_command(megatrain_command("data check " + data + " --sequence-length 48"));
  EXPECT_EQ(check.exit_code, 0);
  EXPECT_NE(check.output.find("⟦a cab ride</s>⟧"), std::string::npos) << check.output;
  const CommandResult cut = run_command(megatrain_command("data check " + data + " --sequence-length 4"));
  EXPECT_EQ(cut.exit_code, 2);
  EXPECT_NE(cut.output.find("no example trains anything"), std::string::npos) << cut.output;
  const std::string run =
      "--family llama --sequence-length 48 --vocab-size 0 --val-data '' --train-data " + data;
  const CommandResult t = train(run + " --num-steps 80");
  ASSERT_EQ(t.exit_code, 0) << t.output;
  const CommandResult e =
      run_command(megatrain_command("eval " + d.file("out/model") + " " + d.file("chat2.jsonl")));
  EXPECT_NE(e.exit_code, 0);
  d.write("out/model/chat_template.jinja", read_text_file(d.file("base/chat_template.jinja")));
  const CommandResult answer = run_command(
      megatrain_command("generate " + d.file("out/model") + " --chat -p 'say a' -n 20 --temperature 0"));
  EXPECT_EQ(answer.output, "a cab ride\n");  // it has learnt the answer, and to stop
}

TEST_F(Cli, MixesSetsAndKnowsTheirVocabulary) {
  const std::string golden = MT_GOLDEN_DIR, rows = R"({"prompt":"the quick","completion":" fox"})";
  std::string vocabulary = read_text_file(golden + "/tokenizers/llama3.json");
  for (const char* name : {"llama3", "swapped"}) {
    std::filesystem::create_directory(d.file(name));
    d.write(name + std::string("/tokenizer.json"), vocabulary);
    auto j = nlohmann::ordered_json::parse(vocabulary);  // for the next: two ids change places
    std::swap(j["model"]["vocab"]["on"], j["model"]["vocab"]["in"]);
    vocabulary = j.dump();
    std::string many;
    for (int i = 0; i < 30; ++i) many += rows + "\n";
    d.write(name + std::string(".jsonl"), many);
    ASSERT_EQ(
        run_command(megatrain_command("prepare " + d.file(name) + ".jsonl -o " +
                                      d.file(name + std::string("-set")) + " --tokenizer " + d.file(name)))
            .exit_code,
        0);
  }
  const std::string sft = d.file("llama3-set/train.mtbin");
  ASSERT_EQ(run_command(megatrain_command("prepare " + d.file("text.txt") + " -o " + d.file("plain") +
                                          " --tokenizer " + d.file("llama3") + "/tokenizer.json"))
                .exit_code,
            0);
  const std::string base =
      "--family llama --vocab-size 0 --sequence-length 32 --num-steps 6 --out-dir " + d.file("m");
  const CommandResult t = train(base + " --val-data '" + sft + ", " + d.file("plain/val.bin") +
                                "' --train-data '" + sft + "=0.3, " + d.file("plain/train.bin") + "=0.7'");
  ASSERT_EQ(t.exit_code, 0) << t.output;
  for (const char* words : {"documents in ", "% full", "windows an epoch", "from 2 sets", "val.bin: loss"})
    EXPECT_NE(t.output.find(words), std::string::npos) << words << t.output;
  const CommandResult half =
      train(base + " --val-data '' --train-data '" + sft + "=0.3, " + d.file("plain/train.bin") + "'");
  EXPECT_EQ(half.exit_code, 2);
  EXPECT_NE(half.output.find("give every set a weight, or none"), std::string::npos) << half.output;
  const std::string other = d.file("swapped-set/train.mtbin");
  refused(train("--model " + d.file("m/model") + " --val-data '' --sequence-length 32 --train-data " + other),
          "another vocabulary");
  refused(run_command(megatrain_command("data check " + other + " --tokenizer " + d.file("llama3"))),
          "was made with vocabulary");
  d.write("mix.yaml", "train_data:\n  - " + sft + "=1\n  - " + d.file("plain/train.bin") + "=2\n");
  const CommandResult listed =
      run_command(megatrain_command("train " + d.file("mix.yaml") + " --device cpu " + base +
                                    " --hidden-size 16 --num-layers 1 --num-heads 1"));
  EXPECT_EQ(listed.exit_code, 0) << listed.output;
}

// Weights that run away: steps are dropped and counted, the unit is named, the run stops, checkpoints are
// whole.
TEST_F(Cli, StopsWhenNothingIsFiniteAnyMore) {
  const CommandResult r =
      train("--learning-rate 1e30 --num-steps 40 --checkpoint-interval 1 --max-skipped-steps 3");
  EXPECT_EQ(r.exit_code, 2) << r.output;
  for (const char* words : {"is not finite", "the update was dropped", "4 steps in a row were not finite"})
    EXPECT_NE(r.output.find(words), std::string::npos) << words << "\n" << r.output;
  EXPECT_TRUE(std::filesystem::exists(d.file("out/model/model.safetensors")));
  const CommandResult again = train("--num-steps 40 --checkpoint-interval 1");
  EXPECT_NE(again.output.find("holds checkpoints of an earlier run"), std::string::npos) << again.output;
  EXPECT_EQ(train("--num-steps 2 --overwrite").exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(d.file("out/checkpoints/step-1")));
}

TEST_F(Cli, ResumeRefusesWhatDoesNotFit) {
  ASSERT_EQ(train("--num-steps 4 --checkpoint-interval 2").exit_code, 0);
  const std::string resume = "--num-steps 6 --checkpoint-interval 2 --resume ";
  refused(train(resume + "--batch-size 3"), "batch_size (3, was");
  refused(train(resume + "--seed 99"), "the data would not go on where it stopped");
  refused(train(resume + "--hidden-size 8"), "the shape cannot change on resume");
  refused(train(resume + "--resume-from " + d.file("out/checkpoints/none")), "is not a whole checkpoint");
  const CommandResult lr = train(resume + "--learning-rate 0.5");
  EXPECT_EQ(lr.exit_code, 0);
  EXPECT_NE(lr.output.find("resume: learning_rate is 0.5, was"), std::string::npos) << lr.output;
  // A damaged newest one is said, and the one before it taken.
  const std::string file = d.file("out/checkpoints/step-6/unit-0001.safetensors");
  std::string bytes = read_text_file(file);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  d.write("out/checkpoints/step-6/unit-0001.safetensors", bytes);
  const CommandResult back = train("--num-steps 7 --checkpoint-interval 2 --resume");
  EXPECT_EQ(back.exit_code, 0);
  EXPECT_NE(back.output.find("its checksum does not fit"), std::string::npos) << back.output;
  EXPECT_NE(back.output.find("step-4, 4 steps done"), std::string::npos) << back.output;
  refused(train("--num-steps 4 --out-dir /proc/nowhere"), "cannot write there");
}

TEST_F(Cli, InfoSaysWhatIsThere) {
  ASSERT_EQ(train("--num-steps 1 --family llama --num-kv-heads 1").exit_code, 0);
  const CommandResult r = run_command(megatrain_command("info " + d.file("out/model")));
  EXPECT_EQ(r.exit_code, 0);
  for (const char* words :
       {"llama", "num_kv_heads              1", "char, ", "chat template             no", "host memory"})
    EXPECT_NE(r.output.find(words), std::string::npos) << r.output;
  refused(run_command(megatrain_command("info " + d.path)), "has no config.json");
}

TEST_F(Cli, EveryFamilyTrainsAndGoesOn) {
  for (const char* family : {"llama", "qwen2", "qwen3", "mistral"}) {
    const CommandResult r = train(std::string("--num-steps 30 --family ") + family);
    ASSERT_EQ(r.exit_code, 0) << r.output;
    const CommandResult more = train("--num-steps 0 --save-dtype bf16 --model " + d.file("out/model") +
                                     " --out-dir " + d.file("o2"));
    ASSERT_EQ(more.exit_code, 0) << more.output;
    EXPECT_EQ(run_command(megatrain_command("generate " + d.file("o2/model") + " -p the -n 5")).exit_code, 0);
  }
  refused(train("--family llama --activation gelu_new"), "bias, activation");
  refused(train("--num-kv-heads 1"), "gpt2 has none");
}

TEST_F(Cli, SameCommandSameModel) {
  ASSERT_EQ(train("--out-dir " + d.file("a")).exit_code, 0);
  ASSERT_EQ(
      train("--out-dir " + d.file("b") + " --residency stream --serialize --poison --threads 2").exit_code,
      0);
  EXPECT_EQ(read_text_file(d.file("a/model/model.safetensors")),
            read_text_file(d.file("b/model/model.safetensors")));
}

TEST_F(Cli, CtrlCSavesAndSaysHowToGoOn) {
  const std::string command =
      megatrain_command("train " + config + " --num-steps 100000000 --log-interval 1000000");
  const CommandResult r = run_command("timeout --foreground --preserve-status -s INT 2 " + command);
  EXPECT_EQ(r.exit_code, 0) << r.output;
  EXPECT_NE(r.output.find("--log-interval 1000000 --resume"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("checkpoint of step "), std::string::npos) << r.output;
  EXPECT_TRUE(std::filesystem::exists(d.file("out/model/model.safetensors")));
}

TEST_F(Cli, MissingFiles) {
  refused(run_command(megatrain_command("train /nonexistent.yaml")), "/nonexistent.yaml: cannot open");
  refused(train("--train-data " + d.file("nope.bin") + " --vocab-size 50"), "nope.bin: cannot open");
  refused(run_command(megatrain_command("prepare /nonexistent.txt --out " + d.file("x"))), "cannot open");
  refused(run_command(megatrain_command("generate /nonexistent -p x")), "no tokenizer");
  refused(run_command(megatrain_command("eval /nonexistent x.bin")), "has no config.json");
}
TEST_F(Cli, TokenOutsideTheVocabulary) {
  write_token_file(d.file("data/train.bin"), std::vector<int32_t>(1000, 999));
  refused(train(), "token 999 at position 0 is outside the vocabulary");
}
TEST_F(Cli, OddByteCount) {
  d.write("data/train.bin", std::string(1001, '\1'));
  refused(train(), "1001 bytes, an odd number");
}
TEST_F(Cli, EmptyText) {
  for (const char* text : {"", " \n\t\n"})
    refused(run_command(megatrain_command("prepare " + d.write("empty.txt", text) + " --out " + d.file("x"))),
            "has no text");
}
TEST_F(Cli, TooFewTokens) {
  write_token_file(d.file("data/train.bin"), {1, 2, 3});
  refused(train(), "too few for sequence_length 16");
}
TEST_F(Cli, NanLearningRate) {
  refused(train("--learning-rate nan"), "learning_rate: nan is not a finite number");
  refused(train("--learning-rate inf"), "not a finite number");
}
TEST_F(Cli, SequenceLongerThanPositions) {
  refused(train("--max-position-embeddings 8"), "sequence_length: 16 tokens, but the model has 8 positions");
  ASSERT_EQ(train("--num-steps 1").exit_code, 0);
  refused(train("--sequence-length 32 --init-from " + d.file("out/model")), "the model has 16 positions");
}
TEST_F(Cli, HeadsNotDividingTheWidth) {
  refused(train("--num-heads 3"), "3 heads do not divide hidden_size 16");
}
TEST_F(Cli, UnknownKeyAndFlag) {
  d.write("c.yaml", "hiden_size: 16\n");
  refused(train(), "c.yaml:1: unknown option 'hiden_size'; did you mean 'hidden_size'?");
  d.write("c.yaml", "hidden_size: 16\n");
  refused(train("--lerning-rate 3"), "did you mean '--learning-rate'?");
}
TEST_F(Cli, WrongTypes) {
  for (const char* line : {"hidden_size: wide", "hidden_size: 1.5", "bias: perhaps", "learning_rate: fast",
                           "activation: relu", "hidden_size: [1, 2]"}) {
    d.write("c.yaml", line);
    refused(train(), "c.yaml:1: ");
  }
  d.write("c.yaml", "hidden_size: 16\nhidden_size: 32\n");
  refused(train(), "c.yaml:2: hidden_size is given twice");
  d.write("c.yaml", "a: [1\n");
  refused(train(), "not valid YAML");
  d.write("c.yaml", "just text\n");
  refused(train(), "a map of options was expected");
}
TEST_F(Cli, UnwritableOutput) {
  d.write("file", "x");
  refused(train("--out-dir " + d.file("file/below")), "cannot write there");
  refused(train("--trace " + d.file("no/such/dir/t.json")), "cannot create");
  refused(run_command(megatrain_command("prepare " + d.file("text.txt") + " --out " + d.file("file/below"))),
          "cannot write there");
}
TEST_F(Cli, ImpossibleRanges) {
  refused(train("--batch-size 0"), "batch_size");
  refused(train("--dropout 1"), "dropout");
  refused(train("--micro-batch 9"), "micro_batch: 9 is more than batch_size 4");
  refused(train("--memory-limit 8parsecs"), "memory_limit: cannot read");
  refused(train("--memory-limit 10KiB"), "not enough device memory");
  refused(train("--vocab-size 3"), "less than the");
}
TEST_F(Cli, CorruptModel) {
  ASSERT_EQ(train("--num-steps 1").exit_code, 0);
  const std::string path = d.file("out/model/model.safetensors");
  const std::string whole = read_text_file(path);
  d.write("out/model/model.safetensors", whole.substr(0, whole.size() / 2));
  refused(run_command(megatrain_command("generate " + d.file("out/model") + " -p the")), "model.safetensors");
  d.write("out/model/config.json", "{}");
  refused(run_command(megatrain_command("generate " + d.file("out/model") + " -p the")), "config.json");
}

// What `plan` says is what `train` does, and it needs neither the machine nor the data.
TEST_F(Cli, PlanSaysWhatTrainWillDo) {
  const std::string machine = d.write("h200.yaml",
                                      "name: test\ndevice: cuda\ndevice_name: NVIDIA H200\ncores: 16\n"
                                      "device_memory: 138\nhost_memory: 112\ndisk_free: 0\n");
  const std::string plan = "plan " MT_SOURCE_DIR "/configs/13b.yaml --batch-size 32 --machine " + machine;
  const CommandResult text = run_command(megatrain_command(plan));
  EXPECT_EQ(text.exit_code, 0) << text.output;
  for (const char* part :
       {"12.85B parameters", "device memory", "host memory", "tok/s", "bound by", "116223 steps"})
    EXPECT_NE(text.output.find(part), std::string::npos) << part << "\n" << text.output;
  const CommandResult json = run_command(megatrain_command(plan + " --json --timeline " + d.file("t.html")));
  const auto j = nlohmann::json::parse(json.output);
  EXPECT_EQ(j["homes"].size(), 41u);
  EXPECT_LE(j["memory"]["device"]["bytes"], j["memory"]["device"]["available"]);
  EXPECT_GT(j["predicted"]["mfu"], 0.3);
  EXPECT_NE(read_text_file(d.file("t.html")).find("block_backward"), std::string::npos);
  // Less memory, slower; too little, a change that works.
  const auto seconds = [&](const std::string& more) {
    const CommandResult r = run_command(megatrain_command(plan + " --json " + more));
    return r.exit_code == 0 ? nlohmann::json::parse(r.output)["predicted"]["step_seconds"].get<double>()
                            : -1.0;
  };
  const double all = seconds(""), half = seconds("--gpu-memory 70GiB --host-memory 1TiB");
  EXPECT_GE(half, all);
  const CommandResult short_of = run_command(megatrain_command(plan + " --gpu-memory 24GiB"));
  refused(short_of, "set memory_limit to");
  EXPECT_GT(seconds("--gpu-memory 24GiB --disk 4TB"), all);
  // Here, from a saved model: the memory that train prints is the one that plan prints.
  const CommandResult trained = train("--num-steps 1");
  const CommandResult planned =
      run_command(megatrain_command("plan " + d.file("c.yaml") + " --init-from " + d.file("out/model")));
  ASSERT_EQ(planned.exit_code, 0) << planned.output;
  const auto line = [](const std::string& text_, const std::string& start) {
    const size_t at = text_.find(start);
    return at == std::string::npos ? "" : text_.substr(at, text_.find('\n', at) - at);
  };
  EXPECT_EQ(line(trained.output, "plan: "), line(planned.output, "plan: "));
  EXPECT_NE(line(planned.output, "plan: "), "");
  EXPECT_EQ(run_command(megatrain_command("plan --init-from " + d.file("out/model"))).exit_code, 2)
      << "1024 tokens are too long";
  EXPECT_EQ(run_command(megatrain_command("plan --sequence-length 16 --init-from " + d.file("out/model")))
                .exit_code,
            0);
  refused(run_command(megatrain_command("plan")), "give a config file");
}

TEST_F(Cli, MachineFilesAreReadStrictly) {
  const auto plan_with = [&](const std::string& yaml) {
    return run_command(megatrain_command(
        "plan " MT_SOURCE_DIR "/configs/111m.yaml --batch-size 8 --machine " + d.write("m.yaml", yaml)));
  };
  EXPECT_EQ(plan_with("device: cuda\ndevice_memory: 24\nhost_memory: 64\n").exit_code, 0);
  refused(plan_with("device: tpu\n"), "neither cpu nor cuda");
  refused(plan_with("device: cuda\nlink_upp: 3\n"),
          "m.yaml:2: 'link_upp' is nothing that a machine profile has");
  refused(plan_with("device: cuda\nlink_up: fast\n"), "a number");
  refused(plan_with("device: cuda\nlink_up: 0\n"), "link_up must be positive");
  refused(plan_with("device: cuda\ngemm_share: [1, 2]\n"), "need 64 values");
  refused(plan_with("[1, 2"), "not valid YAML");
}

TEST_F(Cli, DoctorWritesAProfileThatPlanReads) {
  const CommandResult dry = run_command(megatrain_command("doctor --dry"));
  EXPECT_EQ(dry.exit_code, 0) << dry.output;
  EXPECT_NE(dry.output.find("locked-memory limit"), std::string::npos) << dry.output;
#ifndef MT_SANITIZED
  const CommandResult r = run_command(
      megatrain_command("doctor --device cpu --out " + d.file("m.yaml") + " --disk-directory " + d.path));
  ASSERT_EQ(r.exit_code, 0) << r.output;
  EXPECT_NE(r.output.find("measuring: matrix products"), std::string::npos) << "no progress\n" << r.output;
  const CommandResult p =
      run_command(megatrain_command("plan " + d.file("c.yaml") + " --train-data " + d.file("data/train.bin") +
                                    " --machine " + d.file("m.yaml")));
  EXPECT_EQ(p.exit_code, 0) << p.output;
  EXPECT_NE(p.output.find("measured by megatrain doctor"), std::string::npos) << p.output;
  for (const auto& e : std::filesystem::directory_iterator(d.path))
    EXPECT_EQ(e.path().filename().string().find("doctor-"), std::string::npos) << "left behind";
#endif
}

TEST_F(Cli, BooleansAreFlagsAndMayBeTakenBack) {
  const CommandResult help = run_command(megatrain_command("train --help"));
  EXPECT_EQ(help.output.find("TEXT=true"), std::string::npos);
  EXPECT_NE(help.output.find("--resume "), std::string::npos) << help.output;
  for (const char* group : {"model:", "data:", "optimization:", "memory:", "output:"})
    EXPECT_NE(help.output.find(group), std::string::npos) << group;
  const CommandResult r = train("--num-steps 1 --no-tie-word-embeddings --serialize --poison false");
  EXPECT_EQ(r.exit_code, 0) << r.output;
  EXPECT_NE(r.output.find("* tie_word_embeddings       false"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("* serialize                 true"), std::string::npos) << r.output;
}

// A checkpoint with one bad weight is refused by tensor and index; let through, a run that trained nothing is
// no success.
TEST_F(Cli, WeightsThatAreNotFiniteAreRefused) {
  ASSERT_EQ(train("--num-steps 1").exit_code, 0);
  const std::string path = d.file("out/model/model.safetensors");
  std::string bytes = read_text_file(path);
  const uint32_t nan = 0x7fc00000;
  bytes.replace(bytes.size() - 8, 4, reinterpret_cast<const char*>(&nan), 4);
  d.write("out/model/model.safetensors", bytes);
  const std::string again =
      "--num-steps 2 --out-dir " + d.file("out2") + " --init-from " + d.file("out/model");
  const CommandResult r = train(again);
  EXPECT_EQ(r.exit_code, 2) << r.output;
  EXPECT_NE(r.output.find("is NaN at index"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("--allow-nonfinite-weights"), std::string::npos) << r.output;
  const CommandResult let = train(again + " --overwrite --allow-nonfinite-weights");
  EXPECT_EQ(let.exit_code, 2) << let.output;
  EXPECT_NE(let.output.find("not one of 2 steps could be applied"), std::string::npos) << let.output;
  EXPECT_EQ(let.output.find("-nan"), std::string::npos) << let.output;
  EXPECT_EQ(let.output.find("\nsaved "), std::string::npos) << let.output;
  EXPECT_NE(run_command(megatrain_command("generate " + d.file("out/model") + " -p the")).exit_code, 0);
  const CommandResult generated = run_command(
      megatrain_command("generate " + d.file("out/model") + " -p the -n 1 --allow-nonfinite-weights"));
  EXPECT_EQ(generated.exit_code, 2) << "it crashed";
  EXPECT_NE(generated.output.find("logits are not finite"), std::string::npos) << generated.output;
}

TEST_F(Cli, AFileThatEndsEarlySaysSo) {
  ASSERT_EQ(train("--num-steps 1").exit_code, 0);
  const std::string path = d.file("out/model/model.safetensors"), whole = read_text_file(path);
  d.write("out/model/model.safetensors", whole.substr(0, whole.size() - 100));
  const CommandResult r = run_command(megatrain_command("generate " + d.file("out/model") + " -p the"));
  refused(r, "the file ends early: it has " + std::to_string(whole.size() - 100) + " bytes and should have " +
                 std::to_string(whole.size()));
}

TEST_F(Cli, OtherEncodingsAreNamedWithTheCommandThatConvertsThem) {
  std::string utf16, latin;
  for (int i = 0; i < 60; ++i)
    for (const char c : std::string("gr\xfc\xdf dich, text ")) utf16 += c, utf16 += '\0', latin += c;
  const auto prepare = [&](const std::string& text, const char* tokenizer) {
    return run_command(megatrain_command("prepare " + d.write("t.txt", text) + " --out " + d.file("p") +
                                         " --tokenizer " + tokenizer));
  };
  for (const char* tokenizer : {"char", MT_GOLDEN_DIR "/bpe/tokenizer.json"}) {
    EXPECT_NE(prepare(utf16, tokenizer).output.find("iconv -f UTF-16LE -t UTF-8"), std::string::npos);
    EXPECT_NE(prepare("\xff\xfe" + utf16, tokenizer).output.find("iconv -f UTF-16 -t UTF-8"),
              std::string::npos);
    EXPECT_NE(prepare("\xfe\xff\0" + utf16, tokenizer).output.find("iconv -f UTF-16 -t UTF-8"),
              std::string::npos);
    EXPECT_NE(prepare(latin, tokenizer).output.find("iconv -f ISO-8859-1 -t UTF-8"), std::string::npos);
  }
}

TEST_F(Cli, RowsAndTextAreCheckedAsPrepareTakesThem) {
  const std::string text = d.file("text.txt");
  refused(run_command(megatrain_command("data check " + text)), "name the tokenizer");
  const CommandResult r =
      run_command(megatrain_command("data check " + text + " --tokenizer char --sequence-length 16"));
  EXPECT_EQ(r.exit_code, 0) << r.output;
  EXPECT_NE(r.output.find("one stream; windows of 16"), std::string::npos) << r.output;
  d.write("bad.jsonl", "{\"messages\":5}\n{\"text\":\"\"}\n");
  const CommandResult rows =
      run_command(megatrain_command("data check " + d.file("bad.jsonl") + " --tokenizer byte"));
  EXPECT_EQ(rows.exit_code, 2) << rows.output;
  EXPECT_NE(rows.output.find("no row can be used"), std::string::npos) << rows.output;
  refused(train("--train-data " + text), "run: megatrain prepare");
  EXPECT_EQ(train("--num-steps 1 --out " + d.file("named")).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(d.file("named/model")));
  EXPECT_EQ(run_command(megatrain_command("prepare " + text + " --out-dir " + d.file("p2"))).exit_code, 0);
}

// Refused at once, with figures: a 64.9B model on a machine that lacks 1 TB.
TEST_F(Cli, SeventyBillionParametersAreRefusedInNumbers) {
  const CommandResult r = run_command(megatrain_command("train " MT_SOURCE_DIR "/configs/70b.yaml"));
  refused(r, "64.86B parameters need");
  for (const char* part : {"master weights 241.", "Adam moments 483.", "gradients 241.", "is available"})
    EXPECT_NE(r.output.find(part), std::string::npos) << r.output;
}

TEST(Config, GigaGptSizesHaveTheirParameterCounts) {
  const std::pair<const char*, double> sizes[] = {
      {"111m", 0.111}, {"1p3b", 1.316}, {"13b", 12.85}, {"70b", 64.9}, {"175b", 174.6}};
  for (const auto& [name, billions] : sizes) {
    const TrainConfig c = load_config(std::string(MT_SOURCE_DIR) + "/configs/" + name + ".yaml");
    validate(c);
    const auto model = make_model(model_spec(c, 0));
    EXPECT_NEAR(static_cast<double>(model->parameter_count()) / 1e9, billions, 0.005 * billions) << name;
  }
  for (const char* name : {"quickstart", "shakespeare_char"})
    EXPECT_NO_THROW(validate(load_config(std::string(MT_SOURCE_DIR) + "/configs/" + name + ".yaml"))) << name;
}

TEST(Config, YamlRoundTripsAndNearestIsNear) {
  TrainConfig c;
  c.hidden_size = 96, c.learning_rate = 1.25e-3, c.bias = false, c.sample_prompt = "a: \"b\" #c\n";
  ScratchDirectory d;
  const TrainConfig back = load_config(d.write("c.yaml", config_yaml(c)));
  EXPECT_EQ(config_yaml(back), config_yaml(c));
  EXPECT_EQ(nearest("lern_rate", {"learning_rate", "num_steps"}), "learning_rate");
}

}  // namespace
}  // namespace megatrain
