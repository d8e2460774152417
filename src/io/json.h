#pragma once
// defines: parse_json — the one way untrusted JSON comes in.

#include <nlohmann/json.hpp>
#include <string>

namespace megatrain {

/// Parses `text`; nesting deeper than 64 and malformed text throw an Error that starts with `where`.
nlohmann::json parse_json(const std::string& text, const std::string& where);
/// With the keys in their order; the error says what nlohmann's parser found.
nlohmann::ordered_json parse_ordered_json(const std::string& text, const std::string& where);

}  // namespace megatrain
