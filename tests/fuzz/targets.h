#pragma once
// defines: the readers of untrusted files as functions of bytes. libFuzzer drives them (preset fuzz), and
// test_fuzz replays the corpora kept in tests/fuzz/corpus.

#include <cstddef>
#include <cstdint>

namespace megatrain::fuzz {

void safetensors(const uint8_t* data, size_t size);
void config(const uint8_t* data, size_t size);
/// A tokenizer.json, then a zero byte, then a text for it.
void tokenizer(const uint8_t* data, size_t size);
void chat_template(const uint8_t* data, size_t size);

}  // namespace megatrain::fuzz
