#pragma once
// defines: text helpers of chat templates: Python's str methods over UTF-8.

#include <string>
#include <string_view>
#include <vector>

namespace megatrain::chat {

/// One entry per code point.
std::vector<std::string> characters(const std::string& text);
std::string upper(const std::string& text);
std::string lower(const std::string& text);
/// First letter of every word upper case, the rest lower (`words` false: of the text).
std::string title(const std::string& text, bool words);
/// Python's strip; `chars` empty: white space. `sides`: 1 left, 2 right, 3 both.
std::string strip(const std::string& text, const std::string& chars, int sides);
/// Python's split; `separator` empty: at white space. `limit` < 0: none.
std::vector<std::string> split(const std::string& text, const std::string& separator, int64_t limit);
std::string replace(const std::string& text, const std::string& from, const std::string& to, int64_t limit);

}  // namespace megatrain::chat
