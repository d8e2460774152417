// data check: what a token file holds and what a run would make of it.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <unordered_map>

#include "cli/commands.h"
#include "core/error.h"
#include "data/loader.h"

namespace megatrain {
namespace {

// FNV-1a over the ids: equal documents are found by it.
uint64_t hash_of(const std::vector<int32_t>& ids) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (int32_t id : ids) h = (h ^ static_cast<uint32_t>(id)) * 0x100000001b3ull;
  return h;
}

struct Findings {
  int64_t tokens = 0, trained = 0, lost = 0, truncated = 0, emptied = 0, untrained = 0, duplicated = 0,
          longest = 0, tiny = 0;
};

Findings inspect(const TokenFile& file, int64_t seq_len) {
  Findings f;
  std::unordered_map<uint64_t, int64_t> seen;
  for (int64_t i = 0; i < file.documents(); ++i) {
    const auto [start, size] = file.document(i);
    std::vector<int32_t> ids(static_cast<size_t>(size));
    std::vector<uint8_t> context(ids.size());
    file.read(start, size, ids.data(), context.data());
    f.duplicated += seen[hash_of(ids)]++ > 0;
    f.longest = std::max(f.longest, size);
    f.tiny += size < 2, f.tokens += size;
    int64_t within = 0, beyond = 0;
    for (int64_t t = 1; t < size; ++t)
      if (!context[static_cast<size_t>(t)]) ++(t <= seq_len ? within : beyond);
    f.trained += within, f.lost += beyond;
    f.truncated += size > seq_len + 1;
    f.untrained += within + beyond == 0;
    f.emptied += within == 0 && beyond > 0;
  }
  return f;
}

// Trained tokens in green on a terminal, in brackets elsewhere.
void show(const TokenFile& file, const Tokenizer& tokenizer, int64_t i) {
  const bool colour = isatty(STDOUT_FILENO);
  const auto [start, size] = file.document(i);
  std::vector<int32_t> ids(static_cast<size_t>(std::min<int64_t>(size, 400)));
  std::vector<uint8_t> context(ids.size());
  file.read(start, static_cast<int64_t>(ids.size()), ids.data(), context.data());
  fmt::print("--- example {} ({} tokens)\n", i, size);
  bool inside = false;
  for (size_t t = 0; t <= ids.size(); ++t) {
    const bool trained = t > 0 && t < ids.size() && !context[t];
    if (trained != inside)
      fmt::print("{}", colour ? (trained ? "\x1b[32m" : "\x1b[0m") : (trained ? "⟦" : "⟧"));
    inside = trained;
    if (t < ids.size()) fmt::print("{}", tokenizer.decode(ids[t]));
  }
  fmt::print("{}\n", static_cast<int64_t>(ids.size()) < size ? " ..." : "");
}

}  // namespace

namespace {

std::string vocabulary_line(const TokenFile& file, const Tokenizer* tokenizer, const std::string& where) {
  if (file.vocabulary_hash() == 0) return "says nothing about its vocabulary";
  if (!tokenizer) return fmt::format("vocabulary {:016x}", file.vocabulary_hash());
  if (tokenizer->hash() != file.vocabulary_hash())
    fail(fmt::format(
        "{}: was made with vocabulary {:016x} of {} tokens, {} has {:016x} of {}; prepare it again "
        "with the model's tokenizer",
        file.path(), file.vocabulary_hash(), file.vocab_size(), where, tokenizer->hash(),
        tokenizer->vocab_size()));
  return fmt::format("vocabulary {:016x}, as the tokenizer's", file.vocabulary_hash());
}

}  // namespace

bool is_prepared(const std::string& file) {
  const std::string ending = std::filesystem::path(file).extension().string();
  return ending == ".bin" || ending == ".mtbin";
}

namespace {

// Rows or text: prepared as `prepare` would, in a place of its own, and then looked at.
int check_source(DataCheckOptions o) {
  if (o.tokenizer.empty())
    fail(fmt::format(
        "{}: is no token file; name the tokenizer that it will be prepared with: --tokenizer MODEL (a "
        "directory or a tokenizer.json; byte or char for plain text)",
        o.file));
  if (!std::filesystem::exists(o.file))
    fail(o.file + ": cannot open (No such file or directory); check the path");
  namespace fs = std::filesystem;
  std::string place = (fs::temp_directory_path() / "megatrain-check-XXXXXX").string();
  if (!mkdtemp(place.data())) fail(place + ": cannot be made; set TMPDIR");
  struct Remover {
    std::string path;
    ~Remover() {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
  } const remover{place};
  PrepareOptions p;
  p.inputs = {o.file}, p.out_dir = place, p.tokenizer = o.tokenizer, p.val_fraction = 0;
  if (const int rc = run_prepare(p); rc != 0) return rc;
  o.file = place + (fs::exists(place + "/train.mtbin") ? "/train.mtbin" : "/train.bin"), o.tokenizer = place;
  return run_data_check(o);
}

}  // namespace

int run_data_check(const DataCheckOptions& o) {
  if (!is_prepared(o.file)) return check_source(o);
  std::string directory = o.tokenizer;
  if (directory.empty()) directory = std::filesystem::path(o.file).parent_path().string();
  const auto tokenizer = load_tokenizer(directory.empty() ? "." : directory);
  if (!o.tokenizer.empty() && !tokenizer) fail(o.tokenizer + ": has no tokenizer");
  const TokenFile file(o.file, tokenizer ? tokenizer->vocab_size() : std::numeric_limits<int32_t>::max());
  file.verify(show_progress("reading"));
  const std::string vocabulary = vocabulary_line(file, tokenizer.get(), directory);
  fmt::print("{}: {} tokens, {}\n", o.file, file.size(),
             tokenizer ? fmt::format("{} tokenizer of {}", tokenizer->kind(), tokenizer->vocab_size())
                       : "no tokenizer beside it");
  fmt::print("  {}\n", vocabulary);
  if (file.documents() == 0 || !file.marked()) {
    if (file.documents() > 0) fmt::print("  {} documents\n", file.documents());
    fmt::print("  one stream; windows of {}: {}\n", o.sequence_length, (file.size() - 1) / o.sequence_length);
    return 0;
  }
  const Findings f = inspect(file, o.sequence_length);
  const std::pair<const char*, int64_t> rows[] = {{"examples", file.documents()},
                                                  {"tokens", f.tokens},
                                                  {"trained tokens", f.trained},
                                                  {"longest example", f.longest},
                                                  {"cut by sequence_length", f.truncated},
                                                  {"trained tokens lost by that", f.lost},
                                                  {"nothing trained after the cut", f.emptied},
                                                  {"nothing trained at all", f.untrained},
                                                  {"fewer than two tokens", f.tiny},
                                                  {"duplicates of an earlier one", f.duplicated}};
  if (file.pairs()) fmt::print("  preference pairs: each two examples are a chosen and a rejected answer\n");
  for (const auto& [what, count] : rows) fmt::print("  {:<32}{}\n", what, count);
  for (int64_t i = 0; tokenizer && i < std::min(o.examples, file.documents()); ++i) show(file, *tokenizer, i);
  if (f.emptied + f.untrained == file.documents())
    fail(fmt::format("{}: no example trains anything with sequence_length {}; raise it or check the data",
                     o.file, o.sequence_length));
  return 0;
}

}  // namespace megatrain
