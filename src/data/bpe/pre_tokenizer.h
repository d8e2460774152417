#pragma once
// defines: PreTokenizer — the pre_tokenizer of a tokenizer.json: cuts text into the pieces that BPE works on.

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace megatrain {

/// ByteLevel, Split, Digits, Metaspace and sequences of them; another type is refused. Pieces are handed on
/// one by one, so that the size of a text does not matter.
class PreTokenizer {
 public:
  using Sink = std::function<void(std::string_view)>;
  /// One step: cuts `text` and calls the sink for each piece. `first`: the text starts the document.
  using Step = std::function<void(std::string_view text, bool first, const Sink&)>;

  PreTokenizer() = default;  ///< one piece
  PreTokenizer(const nlohmann::json& definition, const std::string& where);
  /// BPE is to see bytes, not characters.
  bool byte_level() const { return byte_level_; }
  /// A space between a letter or digit and a letter starts a piece, so a text may be cut there.
  bool splits_before_space() const { return splits_before_space_ && byte_level_; }
  /// Spaces are written as U+2581.
  bool metaspace() const { return metaspace_; }
  void operator()(std::string_view text, bool first, const Sink& sink) const { run(0, text, first, sink); }

 private:
  void add(const nlohmann::json& definition, const std::string& where, int depth);
  void run(size_t step, std::string_view text, bool first, const Sink& sink) const;

  std::vector<Step> steps_;
  bool byte_level_ = false, metaspace_ = false, splits_before_space_ = false;
};

}  // namespace megatrain
