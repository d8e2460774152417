#include "data/bpe/normalizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/bpe/pattern.h"

namespace megatrain {
namespace {

using Options = int;

std::string mapped(std::string_view text, Options options) {
  utf8proc_uint8_t* raw = nullptr;
  const auto n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                              static_cast<utf8proc_ssize_t>(text.size()), &raw,
                              static_cast<utf8proc_option_t>(options | UTF8PROC_STABLE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> hold(raw, std::free);
  if (n < 0) fail(fmt::format("tokenizer: the text cannot be normalised ({})", utf8proc_errmsg(n)));
  return {reinterpret_cast<const char*>(raw), static_cast<size_t>(n)};
}

// Below U+0300 every text is in NFC already: its bytes in UTF-8 start with less than 0xcc.
bool plainly_composed(std::string_view text) {
  for (char c : text)
    if (static_cast<unsigned char>(c) >= 0xcc) return false;
  return true;
}

bool ascii(std::string_view text) {
  for (char c : text)
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  return true;
}

// U+11A7 joins with nothing, but utf8proc 2.8 takes it for a Hangul trailing consonant and swallows it.
constexpr std::string_view kNotATrailer = "\xe1\x86\xa7";

std::string mapped_apart(std::string_view text, Options options) {
  std::string out;
  for (size_t at = 0;;) {
    const size_t end = text.find(kNotATrailer, at);
    out += mapped(text.substr(at, end - at), options);
    if (end == std::string_view::npos) return out;
    out += kNotATrailer;
    at = end + kNotATrailer.size();
  }
}

// A line end joins with nothing, so lines are independent, and most need no work.
std::string normalise(const std::string& text, Options options, bool composed) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t newline = text.find('\n', at);
    const size_t end = newline == std::string::npos ? text.size() : newline + 1;
    const std::string_view line(text.data() + at, end - at);
    if (composed ? plainly_composed(line) : ascii(line))
      out += line;
    else
      out += mapped_apart(line, options);
    at = end;
  }
  return out;
}

std::string lowercase(const std::string& text) {
  std::string out;
  const auto* p = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (size_t at = 0; at < text.size();) {
    utf8proc_int32_t c = 0;
    const auto n = utf8proc_iterate(p + at, static_cast<utf8proc_ssize_t>(text.size() - at), &c);
    if (n <= 0) fail("tokenizer: the text is not valid UTF-8");
    utf8proc_uint8_t buffer[4];
    const auto m = utf8proc_encode_char(utf8proc_tolower(c), buffer);
    out.append(reinterpret_cast<char*>(buffer), static_cast<size_t>(m));
    if (c == 0x130) out += "\xcc\x87";  // the one lower case of two code points
    at += static_cast<size_t>(n);
  }
  return out;
}

std::string replaced(const std::string& text, const Pattern& pattern, const std::string& content) {
  Pattern::Matcher matcher(pattern, text);
  std::string out;
  size_t at = 0, begin = 0, end = 0;
  while (matcher.next(begin, end)) {
    out.append(text, at, begin - at) += content;
    at = end;
  }
  return out.append(text, at);
}

Pattern pattern_of(const nlohmann::json& p, const std::string& where) {
  if (p.is_object() && p.contains("String")) return Pattern::literal(p["String"].get<std::string>());
  if (p.is_object() && p.contains("Regex")) return Pattern::regex(p["Regex"].get<std::string>(), where);
  fail(where + ": a pattern is neither a String nor a Regex");
}

}  // namespace

Normalizer::Normalizer(const nlohmann::json& definition, const std::string& where) {
  if (!definition.is_null()) add(definition, where + ": normalizer", 0);
}

void Normalizer::add(const nlohmann::json& d, const std::string& where, int depth) {
  const std::string type = d.at("type");
  if (depth > 8) fail(where + ": nested too deeply");
  if (type == "Sequence") {
    for (const auto& n : d.at("normalizers")) add(n, where, depth + 1);
  } else if (type == "NFC") {
    steps_.emplace_back([](auto t) { return normalise(t, UTF8PROC_COMPOSE, true); });
  } else if (type == "NFD") {
    steps_.emplace_back([](auto t) { return normalise(t, UTF8PROC_DECOMPOSE, false); });
  } else if (type == "NFKC") {
    steps_.emplace_back([](auto t) { return normalise(t, UTF8PROC_COMPOSE | UTF8PROC_COMPAT, false); });
  } else if (type == "NFKD") {
    steps_.emplace_back([](auto t) { return normalise(t, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, false); });
  } else if (type == "Lowercase") {
    steps_.emplace_back([](auto t) { return lowercase(t); });
  } else if (type == "Prepend") {
    local_ = false;
    steps_.emplace_back([p = d.at("prepend").get<std::string>()](auto t) { return t.empty() ? t : p + t; });
  } else if (type == "Replace") {
    local_ = false;
    steps_.emplace_back([p = pattern_of(d.at("pattern"), where),
                         c = d.at("content").get<std::string>()](auto t) { return replaced(t, p, c); });
  } else {
    fail(fmt::format("{}: type '{}' is not supported", where, type.substr(0, 60)));
  }
}

std::string Normalizer::operator()(std::string text) const {
  for (const auto& step : steps_) text = step(std::move(text));
  return text;
}

}  // namespace megatrain
