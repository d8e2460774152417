#include "io/json.h"

#include "core/error.h"

namespace megatrain {
namespace {

constexpr int kMaxDepth = 64;

// A few bytes of brackets would make a document of gigabytes: count before parsing.
bool too_deep(const std::string& text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

nlohmann::json parse_json(const std::string& text, const std::string& where) {
  if (too_deep(text)) fail(where + ": the JSON is nested too deeply");
  nlohmann::json j = nlohmann::json::parse(text, nullptr, false);
  if (j.is_discarded()) fail(where + ": is not valid JSON; the file is damaged or of another kind");
  return j;
}

nlohmann::ordered_json parse_ordered_json(const std::string& text, const std::string& where) {
  if (too_deep(text)) fail(where + ": the JSON is nested too deeply");
  try {
    return nlohmann::ordered_json::parse(text);
  } catch (const nlohmann::json::exception& e) {
    fail(where + ": is not valid JSON: " + e.what());
  }
}

}  // namespace megatrain
