// bench_tokenizer TOKENIZER TEXT [IDS]: encodes a file three times on one thread, prints the best MB/s and,
// if asked, writes the ids as int32 (scripts/compare_tokenizers.py compares them with the tokenizers
// package).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "data/tokenizer.h"
#include "io/file.h"

int main(int argc, char** argv) {
  using namespace megatrain;
  try {
    if (argc < 3) fail("usage: bench_tokenizer TOKENIZER TEXT [IDS]");
    const auto tokenizer = load_bpe_tokenizer(argv[1]);
    const std::string text = read_text_file(argv[2]);
    double best = 1e30;
    std::vector<int32_t> ids;
    for (int i = 0; i < 3; ++i) {
      ids.clear();
      const auto start = std::chrono::steady_clock::now();
      tokenizer->encode(text, ids);
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    fmt::print("{} ids, {:.1f} MB/s\n", ids.size(), static_cast<double>(text.size()) / 1e6 / best);
    if (argc > 3)
      write_file_atomically(argv[3],
                            {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)});
  } catch (const Error& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
