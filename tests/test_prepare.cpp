// From files to tokens: compressed and broken inputs, cuts, nanoGPT's split, killed and restarted runs.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <zlib.h>
#include <zstd.h>

#include <csignal>
#include <numeric>
#include <thread>

#include "core/error.h"
#include "core/rng.h"
#include "data/bpe/gpt2_scanner.h"
#include "data/bpe/pattern.h"
#include "data/prepare/block_reader.h"
#include "data/prepare/bytes.h"
#include "data/prepare/split.h"
#include "data/token_file.h"
#include "io/file.h"
#include "scratch.h"

namespace megatrain {
namespace {

std::string gzip(const std::string& text) {
  z_stream z{};
  deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&z, text.size()) + 64, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data())),
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data()), z.avail_out = static_cast<uInt>(out.size());
  deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string read_through(const std::string& path) {
  const auto in = ByteReader::open(path);
  std::string out;
  char piece[1000];
  while (const size_t n = in->read(piece, sizeof piece)) out.append(piece, n);
  return out;
}

std::string book() {
  return read_text_file(std::string(MT_SOURCE_DIR) + "/data/sherlock.txt");
}

TEST(Bytes, CompressedFilesReadAsTheyWere) {
  const ScratchDirectory d;
  const std::string text = book().substr(0, 300000), half = text.substr(0, 1000);
  EXPECT_EQ(read_through(d.write("a.txt", text)), text);
  EXPECT_EQ(read_through(d.write("a.txt.gz", gzip(text))), text);
  EXPECT_EQ(read_through(d.write("a.txt.zst", zstd(text))), text);
  EXPECT_EQ(read_through(d.write("b.gz", gzip(half) + gzip(text))), half + text)
      << "members follow one another";
  EXPECT_EQ(read_through(d.write("b.zst", zstd(half) + zstd(text))), half + text);
}

TEST(Bytes, DamagedOnesAreRefused) {
  const ScratchDirectory d;
  const std::string text = book().substr(0, 100000);
  for (const auto& [name, whole] : {std::pair{"x.gz", gzip(text)}, {"x.zst", zstd(text)}}) {
    for (size_t cut : {size_t{3}, whole.size() / 2, whole.size() - 1})
      EXPECT_THROW(read_through(d.write(name, whole.substr(0, cut))), Error) << name << " cut at " << cut;
    EXPECT_THROW(read_through(d.write(name, "plain text")), Error) << name;
  }
  std::string bad = gzip(text);
  bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 64);
  EXPECT_THROW(read_through(d.write("y.gz", bad)), Error);
}

std::vector<std::string> records_of(const std::string& path) {
  const auto reader = RecordReader::open(path, {});
  std::vector<std::string> out;
  for (Record r; reader->next(r);)
    out.push_back(std::to_string(r.number) + (r.kind == Record::refused ? "!" : ":") + r.data);
  return out;
}

TEST(Records, LinesAndArraysAreCutApart) {
  const ScratchDirectory d;
  const std::vector<std::string> want = {"1:{\"a\": \"x,]\\\"}\"}", "2:[1, {\"b\": 2}]", "3:7"};
  EXPECT_EQ(records_of(d.write("x.json", " [{\"a\": \"x,]\\\"}\"},\n [1, {\"b\": 2}],7]\n")), want);
  EXPECT_EQ(records_of(d.write("x.jsonl", "{}\r\n\n \n{\"b\": 1}")),
            (std::vector<std::string>{"1:{}\r", "4:{\"b\": 1}"}));
  EXPECT_TRUE(records_of(d.write("none.json", "[ ]")).empty());
  for (const char* bad : {"{}", "[1, 2", "[\"a", "", "[1,"})
    EXPECT_THROW(records_of(d.write("bad.json", bad)), Error) << bad;
}

// A line of 100 MB is named and passed over, in the memory of one that may be read.
TEST(Records, AnEndlessLineIsRefusedByItsNumber) {
  const ScratchDirectory d;
  d.write("x.jsonl.zst", zstd("{}\n" + std::string(100'000'000, 'x') + "\n{\"a\":1}\n"));
  const auto got = records_of(d.file("x.jsonl.zst"));
  ASSERT_EQ(got.size(), 3u);
  EXPECT_EQ(got[1], "2!is 100 MB long; at most 67 MB are read");
  EXPECT_EQ(got[2], "3:{\"a\":1}");
}

// numpy 2: default_rng(2357).permutation(20)[:5] and (1000)[:8], default_rng(7).permutation(100000)[:5].
TEST(Split, DrawsWhatNumpyDraws) {
  auto sorted = [](std::vector<uint32_t> v) {
    std::sort(v.begin(), v.end());
    return v;
  };
  EXPECT_EQ(validation_rows(20, 0.25, 2357), sorted({10, 12, 18, 3, 11}));
  EXPECT_EQ(validation_rows(1000, 0.008, 2357), sorted({388, 151, 457, 984, 2, 430, 579, 824}));
  EXPECT_EQ(validation_rows(100000, 0.00005, 7), sorted({45070, 71435, 99538, 45453, 95412}));
  EXPECT_EQ(validation_rows(8013769, 0.0005, 2357).size(), 4007u) << "OpenWebText: ceil of 4006.88";
  EXPECT_TRUE(validation_rows(10, 0, 1).empty());
}

std::vector<std::string> pieces(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0, end; at < text.size(); at = end)
    end = gpt2_piece(text, at), out.push_back(text.substr(at, end - at));
  return out;
}

TEST(Gpt2Scanner, IsTheRegularExpression) {
  const Pattern pattern =
      Pattern::regex(R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", "test");
  auto by_regex = [&](const std::string& text) {
    Pattern::Matcher m(pattern, text);
    std::vector<std::string> out;
    for (size_t begin = 0, end = 0; m.next(begin, end);) out.push_back(text.substr(begin, end - begin));
    return out;
  };
  const std::string sherlock = book();
  EXPECT_EQ(pieces(sherlock), by_regex(sherlock));
  const char* parts[] = {" ",      "  ",     "\n",     "\t",         "a",      "Z",      "ll",
                         "'",      "'s",     "'ve",    "'x",         "7",      "!",      "?!",
                         "\u00e9", "\u0416", "\u4e2d", "\u0301",     "\u00a0", "\u2003", "\u3000",
                         "\u0663", "\u2167", "\u00b2", "\U0001F600", "\u200d", "_",      "-"};
  for (uint64_t round = 0; round < 3000; ++round) {
    std::string text;
    for (uint64_t i = 0; i < 12; ++i) text += parts[random_u32(8, round, i) % std::size(parts)];
    ASSERT_EQ(pieces(text), by_regex(text)) << text;
  }
}

// A text cut where the tokenizer says gives the ids of the whole.
TEST(Cut, PartsGiveTheIdsOfTheWhole) {
  std::string text = book().substr(0, 60000);
  for (const char* odd : {" \u00e9t\u00e9 a\u0301 b", "don't 'S  x\n\n y", " <s> a</s> b c"})
    text.insert(text.size() / 3, odd);
  const std::string golden = MT_GOLDEN_DIR;
  int cutting = 0;
  for (const char* name : {"/tokenizers/llama3.json", "/tokenizers/qwen.json", "/tokenizers/metaspace.json",
                           "/tokenizers/llama2.json", "/bpe"}) {
    if (!std::filesystem::exists(golden + name)) continue;
    const auto t = load_bpe_tokenizer(golden + name);
    std::vector<int32_t> whole, parts;
    t->encode_ordinary(text, whole);
    std::string_view rest = text;
    size_t n = 0;
    for (; rest.size() > 700; ++n) {
      const size_t at = t->cut(rest.substr(0, 700));
      if (at == 0) break;
      t->encode_ordinary(rest.substr(0, at), parts);
      rest.remove_prefix(at);
    }
    t->encode_ordinary(rest, parts);
    EXPECT_EQ(parts, whole) << name;
    cutting += n > 50;
  }
  EXPECT_GE(cutting, 3);
}

class Prepare : public ::testing::Test {
 protected:
  static std::string command(const std::string& rest) { return std::string(MT_BINARY) + " prepare " + rest; }
  CommandResult prepare(const std::string& rest) const { return run_command(command(rest)); }
  std::string golden = MT_GOLDEN_DIR, tokenizer = " --tokenizer " + golden + "/bpe";
  ScratchDirectory d;
};

#ifdef MT_SANITIZED
constexpr uint64_t kDocuments = 150;
#else
constexpr uint64_t kDocuments = 900;  // 6 MB
#endif

std::string corpus() {
  const std::string text = book();
  std::string out;
  for (uint64_t i = 0; i < kDocuments; ++i) {
    const size_t at = random_u32(1, 2, i) % (text.size() - 20000), n = 200 + random_u32(1, 3, i) % 13000;
    std::string piece;
    for (char c : text.substr(at, n))
      if (static_cast<unsigned char>(c) < 0x80 && c != '"' && c != '\\')
        piece += c == '\n' ? std::string("\\n") : c == '\r' ? "" : std::string(1, c);
    out += "{\"text\": \"" + piece + "\"}\n";
  }
  return out;
}

TEST_F(Prepare, ThreadsAndFormsOfTheInputChangeNothing) {
  const std::string rows = corpus();
  d.write("x.jsonl", rows), d.write("x.jsonl.gz", gzip(rows)), d.write("x.jsonl.zst", zstd(rows));
  std::string array = "[" + rows;
  for (size_t at = 1; (at = array.find("}\n", at)) != std::string::npos;) array.replace(at + 1, 1, ",");
  array.back() = ']';
  d.write("x.json", array);
  std::filesystem::create_directories(d.file("dir"));
  const size_t middle = rows.find('\n', rows.size() / 2) + 1;
  d.write("dir/a.jsonl", rows.substr(0, middle)), d.write("dir/b.jsonl.gz", gzip(rows.substr(middle)));
  const std::string out = d.file("out");
  std::string train, val;
  for (const char* input :
       {"x.jsonl --threads 1", "x.jsonl --threads 3", "x.jsonl.gz", "x.jsonl.zst", "x.json", "dir"}) {
    const CommandResult r = prepare(d.file(input) + " -o " + out + tokenizer + " --val-fraction 0.01");
    ASSERT_EQ(r.exit_code, 0) << r.output;
    EXPECT_NE(r.output.find(std::to_string(kDocuments) + " documents, 0 skipped"), std::string::npos)
        << r.output;
    if (train.empty()) train = read_text_file(out + "/train.bin"), val = read_text_file(out + "/val.bin");
    EXPECT_TRUE(read_text_file(out + "/train.bin") == train) << input;
    EXPECT_TRUE(read_text_file(out + "/val.bin") == val) << input;
  }
  EXPECT_GT(val.size(), 1000u);
}

// Killed at random instants and run again until it is done: byte for byte the same files.
TEST_F(Prepare, AKilledRunGoesOn) {
  d.write("x.jsonl", corpus());
  const std::string rest =
      " -o " + d.file("out") + tokenizer + " --val-fraction 0.02 --journal-seconds 0 --threads 2 --format ";
  for (const std::string format : {"bin", "mtbin"}) {
    const std::string whole_out = d.file("whole-" + format), out = d.file("out");
    ASSERT_EQ(prepare(d.file("x.jsonl") + " -o " + whole_out + tokenizer + " --val-fraction 0.02 --format " +
                      format)
                  .exit_code,
              0);
    int kills = 0, resumed = 0;
    for (uint64_t attempt = 0; attempt < 60; ++attempt) {
      const pid_t child = fork();
      if (child == 0) {
        const int null = open("/dev/null", O_WRONLY);
        dup2(null, 1), dup2(null, 2);
        const std::string all = command(d.file("x.jsonl") + rest + format);
        execl("/bin/sh", "sh", "-c", ("exec " + all).c_str(), nullptr);
        _exit(127);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10 + random_u32(5, 6, attempt) % 120));
      kill(child, SIGKILL);
      int status = 0;
      waitpid(child, &status, 0);
      if (WIFEXITED(status)) break;
      ++kills;
      resumed += std::filesystem::exists(out + "/prepare.progress.json");
      for (const char* stem : {"/train.", "/val."}) {
        const std::string file = out + stem + format;
        if (std::filesystem::exists(file)) {
          EXPECT_TRUE(read_text_file(file) == read_text_file(whole_out + stem + format));
        }
      }
    }
    EXPECT_GT(kills, 0);
    const CommandResult last = prepare(d.file("x.jsonl") + rest + format);
    EXPECT_EQ(last.exit_code, 0) << last.output;
    for (const char* stem : {"/train.", "/val."})
      EXPECT_TRUE(read_text_file(out + stem + format) == read_text_file(whole_out + stem + format))
          << stem << format;
    for (const auto& e : std::filesystem::directory_iterator(out))
      EXPECT_EQ(e.path().string().find(".tmp"), std::string::npos) << e.path();
    EXPECT_FALSE(std::filesystem::exists(out + "/prepare.progress.json"));
    std::filesystem::remove_all(out);
  }
}

TEST_F(Prepare, BadRowsAreNamedSkippedOrStopIt) {
  d.write("x.jsonl",
          "{\"text\": \"good one\"}\n{\"text\": \"\\udc00\"}\nbroken\n{\"text\": \"\xff\"}\n{\"text\": "
          "\"another\"}\n");
  const std::string rest = d.file("x.jsonl") + " -o " + d.file("out") + tokenizer + " --val-fraction 0";
  const CommandResult r = prepare(rest);
  EXPECT_EQ(r.exit_code, 0);
  for (const char* line : {"x.jsonl:2: has half of a surrogate pair", "x.jsonl:3: is not valid JSON",
                           "x.jsonl:4: ", "5 rows, 2 documents, 3 skipped"})
    EXPECT_NE(r.output.find(line), std::string::npos) << line << "\n" << r.output;
  const CommandResult s = prepare(rest + " --strict");
  EXPECT_EQ(s.exit_code, 2);
  EXPECT_NE(s.output.find("x.jsonl:2: has half"), std::string::npos) << s.output;
}

TEST_F(Prepare, RegisteredSetsAndColumns) {
  d.write("dataset_info.json", R"({
    "qa": {"file_name": "qa.json", "columns": {"prompt": "question", "response": "reply"}},
    "talk": {"file_name": "talk.jsonl", "formatting": "sharegpt",
             "columns": {"messages": "dialog"}, "tags": {"role_tag": "who", "content_tag": "what",
             "user_tag": "me", "assistant_tag": "bot"}},
    "ranked": {"file_name": "ranked.json", "ranking": true, "columns": {"prompt": "q", "chosen": "good", "rejected": "bad"}},
    "hub": {"hf_hub_url": "some/where"}, "outside": {"file_name": "../../etc/passwd"}})");
  d.write("qa.json", R"([{"question": "What is it?", "reply": "A pipe.", "other": 1}])");
  d.write("talk.jsonl",
          R"({"dialog": [{"who": "me", "what": "Hello"}, {"who": "bot", "what": "Good day"}]})");
  d.write("ranked.json", R"([{"q": "Name?", "good": "Holmes", "bad": "Moriarty"}])");
  std::filesystem::create_directories(d.file("model"));
  for (const char* name : {"vocab.json", "merges.txt"})
    std::filesystem::copy_file(golden + "/bpe/pair/" + name, d.file(std::string("model/") + name));
  d.write("model/chat_template.jinja",
          "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt "
          "%}<assistant>{% endif %}");
  const std::string rest = " --dataset-dir " + d.path + " -o " + d.file("out") + " --tokenizer " +
                           d.file("model") + " --val-fraction 0";
  const auto text = [&](const char* name) {
    const CommandResult r = prepare("--dataset " + std::string(name) + rest);
    EXPECT_EQ(r.exit_code, 0) << r.output;
    const auto t = load_bpe_tokenizer(d.file("model"));
    const TokenFile f(d.file("out/train.mtbin"), t->vocab_size());
    EXPECT_EQ(f.vocabulary_hash(), t->hash());
    std::vector<int32_t> ids(static_cast<size_t>(f.size()));
    f.read(0, f.size(), ids.data());
    std::string out;
    for (int32_t id : ids) out += t->decode(id);
    return std::to_string(f.documents()) + (f.pairs() ? " in pairs: " : ": ") + out;
  };
  EXPECT_EQ(text("qa"), "1: <user>What is it?\n<assistant>A pipe.\n");
  EXPECT_EQ(text("talk"), "1: <user>Hello\n<assistant>Good day\n");
  EXPECT_EQ(text("ranked"), "2 in pairs: <user>Name?\n<assistant>Holmes\n<user>Name?\n<assistant>Moriarty\n");
  for (const auto& [name, why] :
       {std::pair{"none", "has no set 'none'; it has: hub, outside, qa, ranked, talk"},
        {"hub", "names no file_name"},
        {"outside", "outside of its directory"}}) {
    const CommandResult r = prepare("--dataset " + std::string(name) + rest);
    EXPECT_EQ(r.exit_code, 2);
    EXPECT_NE(r.output.find(why), std::string::npos) << r.output;
  }
  const CommandResult r =
      prepare(d.file("qa.json") + " -o " + d.file("out") + " --tokenizer " + d.file("model") +
              " --val-fraction 0 --columns 'prompt=question, completion=reply'");
  EXPECT_EQ(r.exit_code, 0) << r.output;
  EXPECT_NE(r.output.find("1 rows, 1 examples"), std::string::npos) << r.output;
}

// nanoGPT's int(n * 0.9): tiny Shakespeare has 1,115,394 characters, and its README names these counts.
TEST_F(Prepare, ATextOfShakespearesLengthIsSplitAsNanoGptDoes) {
  std::string text;
  for (int i = 0; text.size() < 1'115'394; ++i) text += "line " + std::to_string(i) + "\n";
  text.resize(1'115'394);
  const CommandResult r = prepare(d.write("input.txt", text) + " -o " + d.file("out") + " --tokenizer char");
  EXPECT_NE(r.output.find("train.bin  1003854 tokens"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("val.bin    111540 tokens"), std::string::npos) << r.output;
}

TEST_F(Prepare, ParquetGivesWhatJsonlGives) {
  const CommandResult r =
      prepare(golden + "/parquet/texts.parquet -o " + d.file("p") + tokenizer + " --val-fraction 0");
  if (r.output.find("reads no Parquet") != std::string::npos) GTEST_SKIP() << "built without Arrow";
  ASSERT_EQ(r.exit_code, 0) << r.output;
  for (const char* name : {"texts", "chats"}) {
    const std::string tok = std::string(name) == "texts" ? tokenizer : " --tokenizer " + d.file("model");
    std::filesystem::create_directories(d.file("model"));
    for (const char* f : {"vocab.json", "merges.txt"})
      std::filesystem::copy_file(golden + "/bpe/pair/" + f, d.file(std::string("model/") + f),
                                 std::filesystem::copy_options::overwrite_existing);
    d.write("model/chat_template.jinja",
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt "
            "%}<assistant>{% endif %}");
    for (const char* kind : {"parquet", "jsonl"}) {
      const CommandResult one = prepare(golden + "/parquet/" + name + "." + kind + " -o " + d.file(kind) +
                                        tok + " --val-fraction 0.2 --format mtbin");
      ASSERT_EQ(one.exit_code, 0) << one.output;
    }
    EXPECT_TRUE(read_text_file(d.file("parquet/train.mtbin")) == read_text_file(d.file("jsonl/train.mtbin")))
        << name;
    EXPECT_TRUE(read_text_file(d.file("parquet/val.mtbin")) == read_text_file(d.file("jsonl/val.mtbin")))
        << name;
  }
  const CommandResult bad =
      prepare(d.write("x.parquet", "PAR1 not really PAR1") + " -o " + d.file("b") + tokenizer);
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_NE(bad.output.find("cannot be read as Parquet"), std::string::npos) << bad.output;
}

}  // namespace
}  // namespace megatrain
