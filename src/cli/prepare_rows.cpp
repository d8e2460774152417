// prepare for rows (.jsonl, .json): conversations and completions become documents with marked targets.
#include <fmt/format.h>

#include <filesystem>

#include "cli/commands.h"
#include "core/error.h"
#include "core/rng.h"
#include "data/examples/encoder.h"
#include "data/token_file.h"
#include "io/file.h"

namespace megatrain {
namespace {

constexpr uint64_t kSplitStream = uint64_t{1} << 44, kSplitSeed = 2357;  // nanoGPT's seed
constexpr int64_t kNamedErrors = 5;

struct Counts {
  int64_t rows = 0, examples = 0, skipped = 0, untrained = 0, tokens = 0, trained = 0, longest = 0;
};

TrainOn train_on(const std::string& name) {
  return name == "all" ? TrainOn::all : name == "last" ? TrainOn::last : TrainOn::assistant;
}

void refuse_row(const PrepareOptions& o, const std::string& where, const std::string& error, Counts& n) {
  if (o.strict) fail(fmt::format("{}: {}; leave --strict out to skip such rows", where, error));
  if (++n.skipped <= kNamedErrors) fmt::print(stderr, "  skipped {}: {}\n", where, error);
  if (n.skipped == kNamedErrors + 1) fmt::print(stderr, "  more rows are skipped and counted\n");
}

void account(const Example& e, Counts& n) {
  int64_t trained = 0;
  for (size_t i = 1; i < e.ids.size(); ++i) trained += e.trained[i];  // the first is never predicted
  ++n.examples;
  n.tokens += static_cast<int64_t>(e.ids.size()), n.trained += trained;
  n.untrained += trained == 0;
  n.longest = std::max(n.longest, static_cast<int64_t>(e.ids.size()));
}

}  // namespace

int prepare_rows(const PrepareOptions& o, const Tokenizer& tokenizer) {
  std::optional<ChatFormat> format;
  if (std::filesystem::is_directory(o.tokenizer)) format = ChatFormat::load(o.tokenizer);
  const ExampleEncoder encoder(tokenizer, std::move(format), train_on(o.train_on));
  RowReader reader(o.input);
  const std::string train_file = o.out_dir + "/train.mtbin", val_file = o.out_dir + "/val.mtbin";
  DocumentWriter train(train_file, tokenizer.vocab_size()), val(val_file, tokenizer.vocab_size());
  Counts n;
  Row row;
  std::string where, error;
  const ProgressFn progress = show_progress(o.input);
  while (reader.next(row, where, error)) {
    progress(reader.fraction());
    const auto number = static_cast<uint64_t>(n.rows++);
    if (!error.empty()) {
      refuse_row(o, where, error, n);
      continue;
    }
    try {
      const Example e = encoder.encode(row);
      account(e, n);
      const bool to_val = random_uniform(kSplitSeed, kSplitStream, number) < o.val_fraction;
      (to_val ? val : train).add(e.ids, e.trained);
    } catch (const Error& e) {
      refuse_row(o, where, e.what(), n);
    }
  }
  if (train.documents() == 0)
    fail(
        fmt::format("{}: no example is left for training ({} rows, {} skipped)", o.input, n.rows, n.skipped));
  const int64_t kept = train.documents(), held = val.documents();
  train.finish();
  if (held > 0) val.finish();
  fmt::print("{}: {} rows, {} examples, {} skipped; {} tokens, {} of them trained; the longest has {}\n",
             o.input, n.rows, n.examples, n.skipped, n.tokens, n.trained, n.longest);
  if (n.untrained > 0) fmt::print("  {} examples train nothing\n", n.untrained);
  fmt::print("  {}  {} examples\n", train_file, kept);
  if (held > 0) fmt::print("  {}    {} examples\n", val_file, held);
  return 0;
}

}  // namespace megatrain
