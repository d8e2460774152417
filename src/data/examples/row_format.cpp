#include "data/examples/row_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "core/error.h"
#include "io/file.h"
#include "io/json.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kKnown[] = {"messages", "conversations", "instruction", "input",  "output",
                                  "system",   "history",       "tools",       "prompt", "completion",
                                  "text",     "chosen",        "rejected"};

bool known(const std::string& name) {
  return std::any_of(std::begin(kKnown), std::end(kKnown), [&](const char* k) { return name == k; });
}

std::string word(const std::string& text) {
  const size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

std::string string_of(const nlohmann::json& j, const char* key) {
  return j.contains(key) && j[key].is_string() ? j[key].get<std::string>() : "";
}

// LLaMA-Factory's column names by format (its docs, data/README.md), and ours.
const std::pair<const char*, const char*> kAlpaca[] = {
    {"prompt", "instruction"}, {"query", "input"},   {"response", "output"},   {"system", "system"},
    {"history", "history"},    {"chosen", "chosen"}, {"rejected", "rejected"}, {"tools", "tools"}};
const std::pair<const char*, const char*> kShareGpt[] = {{"messages", "conversations"},
                                                         {"system", "system"},
                                                         {"tools", "tools"},
                                                         {"chosen", "chosen"},
                                                         {"rejected", "rejected"}};
const std::pair<const char*, const char*> kTags[] = {{"user_tag", "human"},
                                                     {"assistant_tag", "gpt"},
                                                     {"observation_tag", "observation"},
                                                     {"function_tag", "function_call"},
                                                     {"system_tag", "system"}};

RowFormat format_of(const nlohmann::json& entry) {
  RowFormat f;
  const bool sharegpt = string_of(entry, "formatting") == "sharegpt";
  const auto columns = entry.value("columns", nlohmann::json::object());
  const auto map = [&](const auto& names) {
    for (const auto& [theirs, ours] : names)
      if (const std::string column = string_of(columns, theirs); !column.empty()) f.columns[ours] = column;
  };
  if (sharegpt)
    map(kShareGpt);
  else
    map(kAlpaca);
  const auto tags = entry.value("tags", nlohmann::json::object());
  if (const std::string t = string_of(tags, "role_tag"); !t.empty()) f.role_tag = t;
  if (const std::string t = string_of(tags, "content_tag"); !t.empty()) f.content_tag = t;
  for (const auto& [tag, role] : kTags)
    if (const std::string t = string_of(tags, tag); !t.empty()) f.roles[t] = role;
  return f;
}

}  // namespace

RowFormat RowFormat::parse(const std::string& text) {
  RowFormat f;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) {
    const size_t equals = item.find('=');
    const std::string ours = word(item.substr(0, equals)),
                      theirs = equals == std::string::npos ? "" : word(item.substr(equals + 1));
    if (!known(ours) || theirs.empty())
      fail(
          fmt::format("columns: '{}' is not NAME=COLUMN; the names are messages, conversations, instruction, "
                      "input, output, system, history, tools, prompt, completion, text, chosen, rejected",
                      word(item)));
    f.columns[ours] = theirs;
  }
  return f;
}

Json RowFormat::apply(const Json& row) const {
  if (!row.is_object() || plain()) return row;
  Json out = columns.empty() ? row : Json::object();
  for (const auto& [ours, theirs] : columns)
    if (row.contains(theirs)) out[ours] = row[theirs];
  if (!system.empty() && !out.contains("system")) out["system"] = system;
  const auto rename_turn = [&](Json& turn) {
    if (!turn.is_object()) return;
    Json t = Json::object();
    if (turn.contains(role_tag)) t["from"] = turn[role_tag];
    if (turn.contains(content_tag)) t["value"] = turn[content_tag];
    if (t.contains("from") && t["from"].is_string())
      if (const auto it = roles.find(t["from"].get<std::string>()); it != roles.end()) t["from"] = it->second;
    turn = t;
  };
  if (role_tag == "from" && content_tag == "value" && roles.empty()) return out;
  if (out.contains("conversations") && out["conversations"].is_array())
    for (Json& turn : out["conversations"]) rename_turn(turn);
  for (const char* side : {"chosen", "rejected"})
    if (out.contains(side)) rename_turn(out[side]);
  return out;
}

RegisteredSet RegisteredSet::load(const std::string& directory, const std::string& name) {
  const std::string path = directory + "/dataset_info.json";
  const auto j = parse_json(read_text_file(path), path);
  if (!j.is_object() || !j.contains(name) || !j[name].is_object()) {
    std::string names;
    for (const auto& [key, value] : j.items()) names += (names.empty() ? "" : ", ") + key;
    fail(fmt::format("{}: has no set '{}'; it has: {}", path, name, names.substr(0, 400)));
  }
  const std::string file = string_of(j[name], "file_name");
  if (file.empty())
    fail(fmt::format("{}: '{}' names no file_name; fetch it from its hub into {} and enter the file", path,
                     name, directory));
  const fs::path relative = fs::path(file).lexically_normal();
  if (relative.is_absolute() || *relative.begin() == "..")
    fail(fmt::format("{}: '{}' names a file outside of its directory", path, name));
  RegisteredSet set;
  set.files = {(fs::path(directory) / relative).string()};
  set.format = format_of(j[name]);
  return set;
}

}  // namespace megatrain
