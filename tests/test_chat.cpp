// Chat templates: what jinja2 renders under transformers (scripts/make_template_goldens.py), and bounds.
#include <gtest/gtest.h>

#include "core/error.h"
#include "data/chat/template.h"
#include "io/file.h"
#include "scratch.h"

namespace megatrain {
namespace {

// Python counts code points.
size_t code_points(const std::string& text, size_t bytes) {
  size_t n = 0;
  for (size_t i = 0; i < bytes; ++i) n += (text[i] & 0xc0) != 0x80;
  return n;
}

TEST(ChatTemplates, RenderAsTransformersDoes) {
  const auto golden =
      nlohmann::ordered_json::parse(read_text_file(std::string(MT_GOLDEN_DIR) + "/templates.json"));
  for (const auto& c : golden["cases"]) {
    const std::string name = c["name"], source = golden["templates"][name];
    const auto& chat = golden["chats"][c["chat"].get<size_t>()];
    nlohmann::ordered_json context = {{"messages", chat},
                                      {"add_generation_prompt", c["prompt"]},
                                      {"tools", c["tools"].get<bool>() ? golden["tools"] : nullptr},
                                      {"documents", nullptr},
                                      {"bos_token", "<s>"},
                                      {"eos_token", "</s>"}};
    try {
      const auto r = ChatTemplate(source, name).render(context);
      ASSERT_FALSE(c["text"].is_null()) << name << " should be refused, not\n" << r.text;
      EXPECT_EQ(r.text, c["text"].get<std::string>()) << name << " chat " << c["chat"] << "\n" << source;
      if (name != "generation") continue;
      ASSERT_EQ(r.generated.size(), c["spans"].size());
      for (size_t i = 0; i < r.generated.size(); ++i) {
        EXPECT_EQ(code_points(r.text, r.generated[i].first), c["spans"][i][0].get<size_t>());
        EXPECT_EQ(code_points(r.text, r.generated[i].second), c["spans"][i][1].get<size_t>());
      }
    } catch (const Error& e) {
      EXPECT_TRUE(c["text"].is_null()) << name << " chat " << c["chat"] << ": " << e.what() << "\n" << source;
    }
  }
}

TEST(ChatTemplates, ErrorsNameTheLine) {
  auto expect = [](const std::string& source, const std::string& words) {
    try {
      ChatTemplate(source, "t").render({{"messages", nlohmann::ordered_json::array()}});
      ADD_FAILURE() << source;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
  };
  expect("a\n{% include 'x' %}", "t: chat template: line 2: the tag 'include' is not supported");
  expect("\n\n{{ 1 | nofilter }}", "line 3: the filter 'nofilter' is not supported");
  expect("{% for x in messages %}", "'endfor' is missing");
  expect("{{ raise_exception('roles!') }}", "refuses this conversation: roles!");
}

TEST(ChatTemplates, HostileOnesEnd) {
  const char* hostile[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{{ 'x' * 999999999999 }}",
      "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{{ range(999999999) }}",
      "{{ 9223372036854775807 * 9 }}",
      "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}",
      "{{ -9223372036854775807 - 9 }}",
  };
  for (const char* source : hostile) EXPECT_THROW(ChatTemplate(source, "t").render({}), Error) << source;
  EXPECT_THROW(ChatTemplate("{{ " + std::string(5000, '(') + " }}", "t"), Error);
  std::string chain = "{{ x";
  for (int i = 0; i < 5000; ++i) chain += ".a";
  EXPECT_THROW(ChatTemplate(chain + " }}", "t"), Error);
}

TEST(ChatFormat, IsFoundInTheDirectory) {
  ScratchDirectory d;
  EXPECT_FALSE(ChatFormat::load(d.path).has_value());
  d.write(
      "tokenizer_config.json",
      R"({"bos_token":{"content":"<b>"},"eos_token":"<e>","chat_template":"{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"})");
  const nlohmann::ordered_json messages = {{{"role", "user"}, {"content", "hi"}}};
  EXPECT_EQ(ChatFormat::load(d.path)->render(messages, true).text, "<b>hi<e>");
  d.write("chat_template.jinja", "{{ messages | length }}");
  EXPECT_EQ(ChatFormat::load(d.path)->render(messages, true).text, "1");
}

}  // namespace
}  // namespace megatrain
