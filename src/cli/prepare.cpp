// prepare.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "cli/commands.h"
#include "core/error.h"
#include "core/units.h"
#include "io/file.h"
#include "io/hf_model.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

// Cuts at a code point, as nanoGPT's prepare.py does with its n * 0.9 characters.
size_t split_point(const std::string& text, double val_fraction) {
  size_t points = 0, at = 0;
  for (size_t i = 0; i < text.size(); ++i) points += (text[i] & 0xc0) != 0x80;
  auto keep = static_cast<size_t>(static_cast<double>(points) * (1 - val_fraction));
  for (; at < text.size(); ++at)
    if ((text[at] & 0xc0) != 0x80 && keep-- == 0) break;
  return at;
}

std::unique_ptr<Tokenizer> tokenizer_for(const PrepareOptions& o, const std::string& text) {
  if (o.tokenizer == "byte") return make_byte_tokenizer();
  if (o.tokenizer == "char") return make_char_tokenizer(text);
  if (!fs::exists(o.tokenizer))
    fail(
        fmt::format("tokenizer: '{}' is neither byte nor char nor a tokenizer.json or a directory with "
                    "vocab.json and merges.txt",
                    o.tokenizer));
  return load_bpe_tokenizer(o.tokenizer);
}

int64_t encode_to(const Tokenizer& tokenizer, std::string_view text, const std::string& path) {
  std::vector<int32_t> ids;
  auto last_word = std::chrono::steady_clock::now();
  tokenizer.encode(text, ids, [&](size_t done) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_word < std::chrono::seconds(2)) return;
    fmt::print(stderr, "  {}: {:.0f}%\n", path,
               100.0 * static_cast<double>(done) / static_cast<double>(text.size()));
    last_word = now;
  });
  write_token_file(path, ids, tokenizer.vocab_size());
  return static_cast<int64_t>(ids.size());
}

}  // namespace

int run_prepare(const PrepareOptions& o) {
  if (!(o.val_fraction >= 0 && o.val_fraction < 1)) fail("val_fraction: must be in [0, 1)");
  if (o.input.ends_with(".jsonl") || o.input.ends_with(".json")) {
    if (o.tokenizer == "char") fail("tokenizer: rows need byte, a tokenizer.json or a model's directory");
    const auto tokenizer = tokenizer_for(o, "");
    ensure_writable_directory(o.out_dir);
    const int result = prepare_rows(o, *tokenizer);
    tokenizer->save(o.out_dir);
    return result;
  }
  const std::string text = read_text_file(o.input);
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) fail(o.input + ": has no text");
  const auto tokenizer = tokenizer_for(o, text);
  ensure_writable_directory(o.out_dir);
  const size_t cut = split_point(text, o.val_fraction);
  const std::string_view all(text);
  const std::string train_file = token_file_name(o.out_dir + "/train", tokenizer->vocab_size()),
                    val_file = token_file_name(o.out_dir + "/val", tokenizer->vocab_size());
  const int64_t train = encode_to(*tokenizer, all.substr(0, cut), train_file);
  fmt::print("{}: {} of text, {} tokenizer with {} tokens\n  {}  {} tokens\n", o.input,
             format_bytes(static_cast<double>(text.size())), tokenizer->kind(), tokenizer->vocab_size(),
             train_file, train);
  if (cut < text.size())
    fmt::print("  {}    {} tokens\n", val_file, encode_to(*tokenizer, all.substr(cut), val_file));
  tokenizer->save(o.out_dir);
  return 0;
}

}  // namespace megatrain
