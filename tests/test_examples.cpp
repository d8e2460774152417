// Fine-tuning rows: forms, ids and masks against transformers, documents on disk, and what a run makes of
// them.
#include <gtest/gtest.h>

#include "core/error.h"
#include "data/examples/encoder.h"
#include "data/prepare/records.h"
#include "data/token_file.h"
#include "io/file.h"
#include "scratch.h"

namespace megatrain {
namespace {

using Json = nlohmann::ordered_json;

std::string without_generation(std::string s) {
  for (const char* tag : {"{% generation %}", "{% endgeneration %}"})
    for (size_t at; (at = s.find(tag)) != std::string::npos;) s.erase(at, std::string(tag).size());
  return s;
}

std::optional<ChatFormat> format_of(const std::string& source) {
  ScratchDirectory d;
  d.write("chat_template.jinja", source);
  d.write("tokenizer_config.json", R"({"bos_token":"<s>","eos_token":"</s>"})");
  return ChatFormat::load(d.path);
}

Row conversation(const Json& messages) {
  return parse_row({{"messages", messages}});
}

TEST(Examples, IdsAndMasksAreThoseOfTransformers) {
  const std::string golden = MT_GOLDEN_DIR;
  const auto j = Json::parse(read_text_file(golden + "/masks.json"));
  for (const auto& c : j["cases"]) {
    const auto tokenizer =
        load_bpe_tokenizer(golden + "/tokenizers/" + c["tokenizer"].get<std::string>() + ".json");
    const std::string name = c["name"], source = j["templates"][name];
    for (const bool tagged : {true, false}) {  // without the tags, turns are found by rendering up to them
      const ExampleEncoder encoder(*tokenizer, format_of(tagged ? source : without_generation(source)),
                                   TrainOn::assistant);
      const Example e = encoder.encode(conversation(c["messages"]));
      EXPECT_EQ(e.ids, c["ids"].get<std::vector<int32_t>>()) << name;
      std::vector<int> mask(e.trained.begin(), e.trained.end());
      EXPECT_EQ(mask, c["mask"].get<std::vector<int>>())
          << name << (tagged ? " tagged " : " untagged ") << c["messages"];
    }
  }
}

TEST(Examples, LastTurnAndAllTurns) {
  const auto tokenizer = load_bpe_tokenizer(std::string(MT_GOLDEN_DIR) + "/tokenizers/llama3.json");
  const std::string source =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  const Json chat = {{{"role", "user"}, {"content", "a"}},
                     {{"role", "assistant"}, {"content", "first"}},
                     {{"role", "user"}, {"content", "b"}},
                     {{"role", "assistant"}, {"content", "second"}}};
  auto text = [&](TrainOn what) {
    const Example e = ExampleEncoder(*tokenizer, format_of(source), what).encode(conversation(chat));
    std::string out;
    for (size_t i = 0; i < e.ids.size(); ++i)
      if (e.trained[i]) out += tokenizer->decode(e.ids[i]);
    return out;
  };
  EXPECT_EQ(text(TrainOn::assistant), "first</s>second</s>");
  EXPECT_EQ(text(TrainOn::last), "second</s>");
  EXPECT_EQ(text(TrainOn::all).size(),
            std::string("<|im_start|>user\na</s>\n<|im_start|>assistant\nfirst</s>\n"
                        "<|im_start|>user\nb</s>\n<|im_start|>assistant\nsecond</s>\n")
                .size());
}

TEST(Rows, FormsBecomeTheSameConversation) {
  const Json want = Json::parse(
      R"([{"role":"system","content":"S"},{"role":"user","content":"old"},{"role":"assistant","content":"gone"},
          {"role":"user","content":"do\nit"},{"role":"assistant","content":"done"}])");
  const char* forms[] = {
      R"({"instruction":"do","input":"it","output":"done","system":"S","history":[["old","gone"]]})",
      R"({"conversations":[{"from":"human","value":"old"},{"from":"gpt","value":"gone"},{"from":"human","value":"do\nit"},
          {"from":"gpt","value":"done"}],"system":"S","tools":""})",
      R"({"messages":[{"role":"system","content":"S"},{"role":"user","content":"old"},{"role":"assistant","content":"gone"},
          {"role":"user","content":"do\nit"},{"role":"assistant","content":"done"}]})",
      R"({"prompt":[{"role":"system","content":"S"},{"role":"user","content":"old"},{"role":"assistant","content":"gone"},
          {"role":"user","content":"do\nit"}],"completion":[{"role":"assistant","content":"done"}]})"};
  for (const char* form : forms) EXPECT_EQ(parse_row(Json::parse(form)).messages, want) << form;
}

TEST(Rows, MalformedOnesAreNamed) {
  ScratchDirectory d;
  d.write("x.jsonl",
          "{\"text\":\"good\"}\n"
          "{\"text\":\n"
          "{\"text\":5}\n\n"
          "{\"messages\":[]}\n"
          "{\"messages\":[{\"role\":\"user\",\"content\":\"only\"}]}\n"
          "{\"messages\":[{\"role\":\"wizard\",\"content\":\"x\"}]}\n"
          "{\"messages\":[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"assistant\",\"content\":\"x\"}]}\n"
          "{\"conversations\":[{\"from\":\"dog\",\"value\":\"x\"}]}\n"
          "{\"instruction\":\"x\",\"output\":[]}\n"
          "{\"prompt\":\"x\",\"completion\":\"\"}\n"
          "{\"text\":\"\\ud800 lone\"}\n"
          "[1]\n{\"other\":1}\n");
  const auto reader = RecordReader::open(d.file("x.jsonl"), {});
  std::vector<std::string> errors;
  for (Record r; reader->next(r);) try {
      parse_row(r.data, {});
      errors.emplace_back();
    } catch (const Error& e) {
      errors.push_back(":" + std::to_string(r.number) + " " + e.what());
    }
  ASSERT_EQ(errors.size(), 13u);
  EXPECT_EQ(errors[0], "");
  const char* words[] = {":2 is not valid",           ":3 'text'",
                         ":5 has no messages",        ":6 no message is the assistant's",
                         ":7 the role 'wizard'",      ":8 a message of the user is empty",
                         ":9 the speaker 'dog'",      ":10 'output'",
                         ":11 'completion' is empty", ":12 has half of a surrogate",
                         ":13 is not an object",      ":14 has none of"};
  for (size_t i = 1; i < errors.size(); ++i) EXPECT_EQ(errors[i].rfind(words[i - 1], 0), 0u) << errors[i];
}

TEST(Examples, CompletionsTrainTheAnswerAndItsEnd) {
  const auto tokenizer = load_bpe_tokenizer(std::string(MT_GOLDEN_DIR) + "/bpe");
  const ExampleEncoder encoder(*tokenizer, std::nullopt, TrainOn::assistant);
  const Example e =
      encoder.encode(parse_row({{"prompt", "Sherlock Holmes took"}, {"completion", " his bottle"}}));
  std::string trained;
  for (size_t i = 0; i < e.ids.size(); ++i)
    if (e.trained[i]) trained += tokenizer->decode(e.ids[i]);
  EXPECT_EQ(trained, " his bottle<|endoftext|>");
  EXPECT_THROW(encoder.encode(conversation({{{"role", "assistant"}, {"content", "x"}}})), Error);
}

TEST(Documents, RoundTripAndDamage) {
  ScratchDirectory d;
  const std::string path = d.file("x.mtbin");
  {
    TokenFormat format;
    format.vocab_size = 100, format.flags = TokenFileHeader::kMarked;
    TokenWriter w(path, format);
    const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    const uint8_t trained[] = {0, 1, 1, 1, 0, 0, 0, 1, 1};
    for (auto [first, count] : {std::pair{0, 3}, {3, 1}, {4, 5}}) {
      w.begin_document();
      w.add(ids + first, count, trained + first);
    }
    w.finish();
  }
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  const TokenFile f(path, 100);
  ASSERT_EQ(f.documents(), 3);
  EXPECT_EQ(f.document(2), (std::pair<int64_t, int64_t>(4, 5)));
  int32_t tokens[9];
  uint8_t context[9];
  f.read(0, 9, tokens, context);
  EXPECT_EQ(tokens[0], 1);
  EXPECT_EQ(std::vector<int>(context, context + 9), (std::vector<int>{1, 0, 0, 0, 1, 1, 1, 0, 0}));
  const std::string good = read_text_file(path);
  for (size_t cut = 0; cut < good.size(); cut += 3) {
    d.write("cut.mtbin", good.substr(0, cut));
    EXPECT_THROW(TokenFile(d.file("cut.mtbin"), 100), Error) << cut;
  }
  for (size_t at = 0; at < good.size(); ++at) {  // no changed bit goes unseen
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 7)));
    if (at >= 64 + 36 && at < 64 + 40) continue;  // the pad between them
    d.write("bad.mtbin", bad);
    EXPECT_THROW(TokenFile(d.file("bad.mtbin"), int64_t{1} << 31), Error) << at;
  }
}

}  // namespace
}  // namespace megatrain
