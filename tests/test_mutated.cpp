// Files that came to harm, by the thousand: each is refused by its name, or read (and where it has a
// checksum, read as it was). MT_MUTATIONS sets how many; scripts/crash.sh runs more.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>

#include "cli/commands.h"
#include "cli/config.h"
#include "core/error.h"
#include "data/token_file.h"
#include "io/file.h"
#include "io/hf_model.h"
#include "mutate.h"
#include "scratch.h"
#include "tiny.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

const std::string kRows =
    R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello \u00e9\ud83d\ude00 there"}]}
{"messages":[{"role":"system","content":"Be kind"},{"role":"user","content":"2+2?"},{"role":"assistant","content":"4"}]}
{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"},)"
    R"({"role":"assistant","content":"d"}]}
)";
const std::string kAlpaca =
    R"([{"instruction":"Add","input":"1 2","output":"3","history":[["q","a"]]},
{"instruction":"Say","output":"yes","system":"s"},{"instruction":"x","input":"","output":"y"}]
)";

struct Mutated : ::testing::Test {
  ScratchDirectory d;
  void SetUp() override {
    fs::create_directories(d.file("tokenizer"));
    for (const char* f : {"vocab.json", "merges.txt"})
      fs::copy_file(std::string(MT_GOLDEN_DIR) + "/bpe/pair/" + f, d.file(std::string("tokenizer/") + f));
    d.write("tokenizer/chat_template.jinja",
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}");
  }
  static uint64_t count() {
    const char* many = std::getenv("MT_MUTATIONS");
    return many ? std::strtoull(many, nullptr, 10) : 1000;
  }
  static std::string command_output(const std::string& command) {
    const CommandResult r = run_command(command);
    EXPECT_EQ(r.exit_code, 0) << r.output;
    return r.output;
  }

  // Reads the file that was changed; what comes of it, or Error.
  using Read = std::function<std::string(const std::string& path)>;
  struct Count {
    int equal = 0, other = 0, refused = 0;
  };
  // Every way of harm to `content` under `name`. An exception that is no Error, or a crash, fails the test.
  Count all(const std::string& name, const std::string& content, uint64_t n, const Read& read) {
    const std::string whole = quietly(read, d.write(name, content));
    Count c;
    for (uint64_t i = 0; i < n; ++i) {
      std::string text = content;
      const std::string what = name + ": " + mutate(text, 33, i);
      try {
        const std::string got = quietly(read, d.write(name, text));
        ++(got == whole ? c.equal : c.other);
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()), "") << what;
        ++c.refused;
      } catch (const std::exception& e) {
        ADD_FAILURE() << what << ": " << e.what();
      }
    }
    d.write(name, content);
    std::printf("  %-18s %d equal, %d read otherwise, %d refused\n", name.c_str(), c.equal, c.other,
                c.refused);
    return c;
  }
  static std::string quietly(const Read& read, const std::string& path) {
    ::testing::internal::CaptureStdout(), ::testing::internal::CaptureStderr();
    struct Uncapture {
      ~Uncapture() { ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr(); }
    } const uncapture;
    return read(path);
  }

  std::string prepare(const std::string& path, const std::string& format) {
    PrepareOptions o;
    o.inputs = {path}, o.out_dir = d.file("out"), o.tokenizer = d.file("tokenizer"), o.val_fraction = 0,
    o.restart = true;
    o.format = format, o.threads = 1;
    fs::remove_all(o.out_dir);
    run_prepare(o);
    return read_text_file(o.out_dir + "/train." + (format == "bin" ? "bin" : "mtbin"));
  }
};

// Rows that cannot be used are skipped and counted, so what is left may differ.
TEST_F(Mutated, RowsAreReadSkippedOrRefused) {
  const uint64_t n = count() / 5;
  const auto texts = [&](const std::string& p) { return prepare(p, "mtbin"); };
  all("rows.jsonl", kRows, n, texts);
  all("alpaca.json", kAlpaca, n, texts);
}

TEST_F(Mutated, CompressedRowsAreRefusedOrEqual) {
  const uint64_t n = count() / 5;
  const auto texts = [&](const std::string& p) { return prepare(p, "mtbin"); };
  d.write("plain.jsonl", kRows);
  command_output("gzip -kn " + d.file("plain.jsonl"));
  const Count gz = all("rows.jsonl.gz", read_text_file(d.file("plain.jsonl.gz")), n, texts);
  EXPECT_EQ(gz.other, 0) << "gzip has a checksum";
  const std::string parquet = std::string(MT_GOLDEN_DIR) + "/parquet/chats.parquet";
  try {
    all("rows.parquet", read_text_file(parquet), n, texts);
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("reads no Parquet"), std::string::npos) << e.what();
  }
}

TEST_F(Mutated, TokenFilesAreRefusedOrEqual) {
  prepare(d.write("rows.jsonl", kRows), "mtbin");
  const Count c =
      all("train.mtbin", read_text_file(d.file("out/train.mtbin")), count() / 5, [](const std::string& p) {
        const TokenFile file(p, 65536);
        std::vector<int32_t> tokens(static_cast<size_t>(file.size()));
        file.read(0, file.size(), tokens.data());
        std::string out;
        for (const int32_t t : tokens) out += std::to_string(t) + " ";
        return out;
      });
  EXPECT_EQ(c.other, 0) << "the file has a checksum";
}

TEST_F(Mutated, ConfigsAndModelsAreReadOrRefused) {
  const uint64_t n = count() / 10;
  TrainConfig config;
  all("c.yaml", config_yaml(config), n, [](const std::string& p) {
    const TrainConfig c = load_config(p);
    validate(c);
    return config_yaml(c);
  });
  const ModelSpec spec = tiny_spec(2);
  TinyRun run(spec, tiny_plan());
  ExportOptions options;
  fs::create_directories(d.file("model"));
  save_model(d.file("model"), *run.model, run.store, options, {});
  for (const char* name : {"config.json", "model.safetensors"})
    (void)all(std::string("model/") + name, read_text_file(d.file(std::string("model/") + name)), n,
              [&](const std::string&) {
                const auto model = make_model(read_model_spec(d.file("model")));
                if (model->parameter_count() > 4 * run.model->parameter_count()) fail("another shape");
                const auto device = make_device(test_choice(), int64_t{1} << 30, 1);
                StateStore store(*device, *model, false);
                load_weights(d.file("model"), *model, store, 1, {});
                uint64_t sum = 0;
                for (int u = 0; u < model->unit_count(); ++u)
                  for (int64_t i = 0; i < model->units()[static_cast<size_t>(u)].numel; ++i)
                    sum = sum * 31 + (uint64_t{store.unit(u).hi[i]} << 16 | store.unit(u).lo[i]);
                return std::to_string(sum);
              });
}

}  // namespace
}  // namespace megatrain
