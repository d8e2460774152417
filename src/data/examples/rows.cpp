#include "data/examples/rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "io/json.h"

namespace megatrain {
namespace {

using Json = nlohmann::ordered_json;

std::string text_field(const Json& j, const char* name) {
  if (!j.contains(name) || j[name].is_null()) return "";
  if (!j[name].is_string()) fail(fmt::format("'{}' is not a text", name));
  return j[name].get<std::string>();
}

Json message(const std::string& role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

// Tools may come as a list or as its JSON text (sharegpt).
Json tools_of(const Json& j) {
  if (!j.contains("tools") || j["tools"].is_null()) return nullptr;
  if (j["tools"].is_array()) return j["tools"].empty() ? Json(nullptr) : j["tools"];
  const std::string text = text_field(j, "tools");
  if (text.empty()) return nullptr;
  Json parsed = Json::parse(text, nullptr, false);
  if (!parsed.is_array()) fail("'tools' is not a list");
  return parsed;
}

void check_messages(const Json& messages) {
  if (!messages.is_array() || messages.empty()) fail("has no messages");
  bool answered = false;
  for (const Json& m : messages) {
    if (!m.is_object() || !m.contains("role") || !m["role"].is_string()) fail("a message has no role");
    const std::string role = m["role"];
    static const char* known[] = {"system", "user", "assistant", "tool", "developer"};
    if (std::find(std::begin(known), std::end(known), role) == std::end(known))
      fail(fmt::format("the role '{}' is not known; known: system, user, assistant, tool, developer",
                       role.substr(0, 40)));
    const bool calls = m.contains("tool_calls") && m["tool_calls"].is_array() && !m["tool_calls"].empty();
    const bool content = m.contains("content") && !m["content"].is_null();
    if (!content && !calls) fail(fmt::format("a message of the {} has no content", role));
    if (content && m["content"].is_string() && m["content"].get<std::string>().empty() && !calls &&
        role != "system")
      fail(fmt::format("a message of the {} is empty", role));
    answered |= role == "assistant";
  }
  if (!answered) fail("no message is the assistant's, so there is nothing to train on");
}

Row conversation(Json messages, Json tools) {
  check_messages(messages);
  Row r;
  r.kind = Row::conversation, r.messages = std::move(messages), r.tools = std::move(tools);
  return r;
}

Json sharegpt_messages(const Json& j) {
  static const std::pair<const char*, const char*> roles[] = {{"human", "user"},
                                                              {"user", "user"},
                                                              {"gpt", "assistant"},
                                                              {"assistant", "assistant"},
                                                              {"function_call", "assistant"},
                                                              {"observation", "tool"},
                                                              {"tool", "tool"},
                                                              {"system", "system"}};
  Json messages = Json::array();
  if (const std::string system = text_field(j, "system"); !system.empty())
    messages.push_back(message("system", system));
  if (!j["conversations"].is_array()) fail("'conversations' is not a list");
  for (const Json& turn : j["conversations"]) {
    if (!turn.is_object()) fail("a turn is not an object");
    const std::string from = text_field(turn, "from");
    const auto* role =
        std::find_if(std::begin(roles), std::end(roles), [&](auto& r) { return from == r.first; });
    if (role == std::end(roles)) fail(fmt::format("the speaker '{}' is not known", from.substr(0, 40)));
    messages.push_back(message(role->second, text_field(turn, "value")));
  }
  return messages;
}

Json alpaca_messages(const Json& j) {
  Json messages = Json::array();
  if (const std::string system = text_field(j, "system"); !system.empty())
    messages.push_back(message("system", system));
  if (j.contains("history") && !j["history"].is_null()) {
    if (!j["history"].is_array()) fail("'history' is not a list");
    for (const Json& turn : j["history"]) {
      if (!turn.is_array() || turn.size() != 2 || !turn[0].is_string() || !turn[1].is_string())
        fail("'history' is not a list of pairs");
      messages.push_back(message("user", turn[0]));
      messages.push_back(message("assistant", turn[1]));
    }
  }
  const std::string input = text_field(j, "input");
  messages.push_back(message("user", text_field(j, "instruction") + (input.empty() ? "" : "\n" + input)));
  messages.push_back(message("assistant", text_field(j, "output")));
  return messages;
}

// A side's answer: a text, a turn, or a list of turns that may repeat the prompt.
std::string answer_of(const Json& side, const char* name) {
  if (side.is_string()) return side.get<std::string>();
  const Json& turn = side.is_array() && !side.empty() ? side.back() : side;
  for (const char* key : {"content", "value"})
    if (turn.is_object() && turn.contains(key) && turn[key].is_string()) return turn[key].get<std::string>();
  fail(fmt::format("'{}' is neither a text nor a turn nor a list of turns", name));
}

// The row without its answer, once with the chosen one and once with the rejected one.
Row pair(const Json& j) {
  Row r;
  r.kind = Row::pair;
  for (const char* side : {"chosen", "rejected"}) {
    const std::string answer = answer_of(j[side], side);
    if (answer.empty()) fail(fmt::format("'{}' is empty", side));
    Json row = j;
    row.erase("chosen"), row.erase("rejected");
    if (row.contains("conversations") && row["conversations"].is_array()) {
      row["conversations"].push_back({{"from", "gpt"}, {"value", answer}});
    } else if (row.contains("instruction")) {
      row["output"] = answer;
    } else if (row.contains("prompt") && row["prompt"].is_string()) {
      row["completion"] = answer;
    } else {
      const char* context = row.contains("messages") ? "messages" : "prompt";
      Json messages = row.contains(context) ? row[context] : Json::array();
      if (messages.empty() && j[side].is_array())  // TRL's implicit prompt: both sides are whole
        messages.insert(messages.end(), j[side].begin(), j[side].end() - 1);
      messages.push_back(message("assistant", answer));
      row = {{"messages", messages}, {"tools", row.contains("tools") ? row["tools"] : Json(nullptr)}};
    }
    r.sides.push_back(parse_row(row));
  }
  return r;
}

Row completion(const Json& j) {
  if (j["prompt"].is_array() && j["completion"].is_array()) {
    Json messages = j["prompt"];
    for (const Json& m : j["completion"]) messages.push_back(m);
    return conversation(messages, tools_of(j));
  }
  Row r;
  r.kind = Row::completion, r.prompt = text_field(j, "prompt"), r.answer = text_field(j, "completion");
  if (r.answer.empty()) fail("'completion' is empty, so there is nothing to train on");
  return r;
}

}  // namespace

Row parse_row(const Json& j) {
  if (!j.is_object()) fail("is not an object");
  if (j.contains("chosen") && j.contains("rejected")) return pair(j);
  if (j.contains("messages")) return conversation(j["messages"], tools_of(j));
  if (j.contains("conversations")) return conversation(sharegpt_messages(j), tools_of(j));
  if (j.contains("instruction")) return conversation(alpaca_messages(j), nullptr);
  if (j.contains("prompt") && j.contains("completion")) return completion(j);
  if (!j.contains("text"))
    fail("has none of: messages, conversations, instruction and output, prompt and completion, text");
  Row r;
  r.text = text_field(j, "text");
  if (r.text.empty()) fail("'text' is empty");
  return r;
}

Row parse_row(const std::string& text, const RowFormat& format) {
  Json json;
  try {
    json = parse_ordered_json(text, "row");
  } catch (const Error& e) {
    const std::string why = e.what();
    fail(why.find("surrogate") != std::string::npos
             ? "has half of a surrogate pair (\\uD800 to \\uDFFF alone)"
             : "is not valid JSON");
  }
  try {
    return parse_row(format.apply(json));
  } catch (const nlohmann::json::exception&) {
    fail("a field has the wrong type");
  }
}

}  // namespace megatrain
