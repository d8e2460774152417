#pragma once
// defines: gpt2_piece — GPT-2's pre-tokenizer pattern, written out: most pre-training text passes through it.

#include <cstddef>
#include <string_view>

namespace megatrain {

/// End of the piece that starts at `at` by
/// '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ (encoder.py of GPT-2). `text` is
/// valid UTF-8. Ten times as fast as the regular expression.
size_t gpt2_piece(std::string_view text, size_t at);

}  // namespace megatrain
