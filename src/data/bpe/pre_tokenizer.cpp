#include "data/bpe/pre_tokenizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/bpe/gpt2_scanner.h"
#include "data/bpe/pattern.h"

namespace megatrain {
namespace {

// Of Llama 3 and Qwen 2: known to start a piece at a space before a letter.
constexpr const char* kKnown[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

enum class Behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

Behavior behavior_of(const std::string& name, const std::string& where) {
  const std::pair<const char*, Behavior> known[] = {{"Isolated", Behavior::isolated},
                                                    {"Removed", Behavior::removed},
                                                    {"MergedWithPrevious", Behavior::merged_with_previous},
                                                    {"MergedWithNext", Behavior::merged_with_next},
                                                    {"Contiguous", Behavior::contiguous}};
  for (const auto& [n, b] : known)
    if (name == n) return b;
  fail(fmt::format("{}: behavior '{}' is not supported", where, name.substr(0, 60)));
}

/// Joins matches and the text between them as the behavior says (tokenizers: normalizer.rs, split).
class Joiner {
 public:
  Joiner(Behavior b, std::string_view text, const PreTokenizer::Sink& sink)
      : behavior_(b), text_(text), sink_(sink) {}

  void add(size_t begin, size_t end, bool match) {
    if (begin == end) return;
    const bool join = open_ && ((behavior_ == Behavior::merged_with_previous && match && !last_match_) ||
                                (behavior_ == Behavior::merged_with_next && last_match_ && !match) ||
                                (behavior_ == Behavior::contiguous && match == last_match_));
    if (!join) {
      flush();
      begin_ = begin;
    }
    end_ = end, last_match_ = match;
    open_ = !(behavior_ == Behavior::removed && match);
  }
  void flush() {
    if (open_) sink_(text_.substr(begin_, end_ - begin_));
    open_ = false;
  }

 private:
  Behavior behavior_;
  std::string_view text_;
  const PreTokenizer::Sink& sink_;
  size_t begin_ = 0, end_ = 0;
  bool open_ = false, last_match_ = false;
};

void split(const Pattern& pattern, Behavior behavior, bool invert, std::string_view text,
           const PreTokenizer::Sink& sink) {
  Pattern::Matcher matcher(pattern, text);
  Joiner joiner(behavior, text, sink);
  size_t at = 0, begin = 0, end = 0;
  while (matcher.next(begin, end)) {
    joiner.add(at, begin, invert);
    joiner.add(begin, end, !invert);
    at = end;
  }
  joiner.add(at, text.size(), invert);
  joiner.flush();
}

PreTokenizer::Step split_step(const Pattern& pattern, Behavior behavior, bool invert) {
  return [=](std::string_view text, bool, const PreTokenizer::Sink& sink) {
    split(pattern, behavior, invert, text, sink);
  };
}

void gpt2_step(std::string_view text, bool, const PreTokenizer::Sink& sink) {
  for (size_t at = 0, end; at < text.size(); at = end) {
    end = gpt2_piece(text, at);
    sink(text.substr(at, end - at));
  }
}

PreTokenizer::Step metaspace_step(const std::string& replacement, const std::string& scheme, bool cut) {
  const Pattern mark = Pattern::literal(replacement);
  return [=](std::string_view text, bool first, const PreTokenizer::Sink& sink) {
    std::string marked;
    for (char c : text) {
      if (c == ' ')
        marked += replacement;
      else
        marked += c;
    }
    const bool prepend = scheme == "always" || (scheme == "first" && first);
    if (prepend && marked.rfind(replacement, 0) != 0) marked = replacement + marked;
    if (cut)
      split(mark, Behavior::merged_with_next, false, marked, sink);
    else if (!marked.empty())
      sink(marked);
  };
}

}  // namespace

PreTokenizer::PreTokenizer(const nlohmann::json& definition, const std::string& where) {
  if (!definition.is_null()) add(definition, where + ": pre_tokenizer", 0);
}

void PreTokenizer::add(const nlohmann::json& d, const std::string& where, int depth) {
  const std::string type = d.at("type");
  if (depth > 8) fail(where + ": nested too deeply");
  if (byte_level_) fail(where + ": nothing may follow ByteLevel");
  if (type == "Sequence") {
    for (const auto& p : d.at("pretokenizers")) add(p, where, depth + 1);
  } else if (type == "ByteLevel") {
    if (d.value("add_prefix_space", true))
      steps_.emplace_back([](std::string_view text, bool, const Sink& sink) {
        sink(text.rfind(' ', 0) == 0 ? std::string(text) : " " + std::string(text));
      });
    if (d.value("use_regex", true)) {
      splits_before_space_ = steps_.empty();
      steps_.emplace_back(gpt2_step);
    }
    byte_level_ = true;
  } else if (type == "Split") {
    const auto& p = d.at("pattern");
    const std::string expression = p.value("Regex", "");
    splits_before_space_ = steps_.empty() && !d.value("invert", false) && d.at("behavior") == "Isolated" &&
                           (expression == kKnown[0] || expression == kKnown[1]);
    const Pattern pattern = p.contains("Regex") ? Pattern::regex(p["Regex"].get<std::string>(), where)
                                                : Pattern::literal(p.at("String").get<std::string>());
    steps_.push_back(split_step(pattern, behavior_of(d.at("behavior").get<std::string>(), where),
                                d.value("invert", false)));
  } else if (type == "Digits") {
    steps_.push_back(
        split_step(Pattern::regex("\\p{N}", where),
                   d.value("individual_digits", false) ? Behavior::isolated : Behavior::contiguous, false));
  } else if (type == "Metaspace") {
    const std::string old = d.value("add_prefix_space", true) ? "always" : "never";
    steps_.push_back(metaspace_step(d.value("replacement", "\u2581"), d.value("prepend_scheme", old),
                                    d.value("split", true)));
    metaspace_ = true;
  } else {
    fail(fmt::format("{}: type '{}' is not supported", where, type.substr(0, 60)));
  }
}

void PreTokenizer::run(size_t step, std::string_view text, bool first, const Sink& sink) const {
  if (step == steps_.size()) return sink(text);
  if (step + 1 == steps_.size()) return steps_[step](text, first, sink);
  bool start = first;
  steps_[step](text, first, [&](std::string_view piece) {
    run(step + 1, piece, start, sink);
    start = false;
  });
}

}  // namespace megatrain
