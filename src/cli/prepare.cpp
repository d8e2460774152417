// prepare: files to tokens. Blocks of the input are encoded on several threads and written in order, so the
// output does not depend on the number of threads; a journal lets a killed run go on.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <future>
#include <optional>

#include "cli/commands.h"
#include "core/error.h"
#include "core/units.h"
#include "data/prepare/block_reader.h"
#include "data/prepare/journal.h"
#include "data/prepare/split.h"
#include "device/cpu/cpu_device.h"
#include "io/file.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kNamedErrors = 5;

std::unique_ptr<Tokenizer> tokenizer_for(const PrepareOptions& o, const std::vector<std::string>& files) {
  if (o.tokenizer == "byte") return make_byte_tokenizer();
  if (o.tokenizer == "char") {
    std::set<std::string, std::less<>> seen;
    RecordOptions options;
    options.cut = [](std::string_view text) { return text.rfind('\n') + 1; };
    const ProgressFn progress = show_progress("characters");
    for (size_t i = 0; i < files.size(); ++i) {
      if (input_kind(files[i]) != "text")
        fail("tokenizer: rows need byte, a tokenizer.json or a model's directory");
      const auto reader = RecordReader::open(files[i], options);
      for (Record r; reader->next(r); progress(static_cast<double>(i) / static_cast<double>(files.size())))
        add_characters(r.data, seen);
    }
    return make_char_tokenizer(seen);
  }
  if (!fs::exists(o.tokenizer))
    fail(
        fmt::format("tokenizer: '{}' is neither byte nor char nor a tokenizer.json or a directory with "
                    "vocab.json and merges.txt",
                    o.tokenizer));
  return load_bpe_tokenizer(o.tokenizer);
}

TrainOn train_on(const std::string& name) {
  return name == "all" ? TrainOn::all : name == "last" ? TrainOn::last : TrainOn::assistant;
}

/// One run of the command.
class Preparation {
 public:
  explicit Preparation(const PrepareOptions& o) : o_(o) {}

  int run() {
    open_inputs();
    choose_set();
    choose_split();
    choose_output();
    const bool finished = encode_all();
    if (!finished) {
      fmt::print("\nstopped; the same command goes on from here\n");
      return 0;
    }
    finish();
    return 0;
  }

 private:
  void open_inputs() {
    if (!(o_.val_fraction >= 0 && o_.val_fraction < 1)) fail("val_fraction: must be in [0, 1)");
    if (o_.inputs.empty() == o_.dataset.empty()) fail("prepare: give files, or --dataset NAME, and not both");
    if (!o_.dataset.empty()) {
      const RegisteredSet set = RegisteredSet::load(o_.dataset_dir, o_.dataset);
      files_ = expand_inputs(set.files), format_ = set.format;
    } else {
      files_ = expand_inputs(o_.inputs), format_ = RowFormat::parse(o_.columns);
    }
    tokenizer_ = tokenizer_for(o_, files_);
    record_.text_column = o_.text_column;
    record_.cut = [this](std::string_view text) { return tokenizer_->cut(text); };
    one_text_ = files_.size() == 1 && input_kind(files_[0]) == "text";
    if (format_.columns.contains("text"))
      record_.text_column = format_.columns["text"];
    else if (o_.text_column != "text")
      format_.columns["text"] = o_.text_column;
  }

  // The first row that can be read says what kind of set this is.
  void choose_set() {
    encoding_.format = format_;
    if (input_kind(files_[0]) != "text") {
      const auto reader = RecordReader::open(files_[0], record_);
      bool found = false;
      std::string error = "has no rows";
      for (Record r; !found && reader->next(r);) try {
          if (r.kind == Record::refused) fail(r.data);
          encoding_.set = BlockEncoder::set_of(r, format_), found = true;
        } catch (const Error& e) {
          error = fmt::format("no row can be used; the first one {}", e.what());
        }
      if (!found) fail(fmt::format("{}: {}", files_[0], error));
    }
    std::optional<ChatFormat> chat;
    if (fs::is_directory(o_.tokenizer)) chat = ChatFormat::load(o_.tokenizer);
    examples_.emplace(*tokenizer_, std::move(chat), train_on(o_.train_on));
    const bool text = encoding_.set == EncodingOptions::text;
    encoding_.whole_documents = !one_text_, encoding_.end_documents = text && !one_text_;
    if (encoding_.end_documents && tokenizer_->end_of_text() < 0) {
      encoding_.end_documents = false;
      if (!files_.empty() && o_.format == "bin")
        fail(
            "format: bin keeps documents apart by an end-of-text token, which this tokenizer lacks; use "
            "mtbin");
    }
  }

  // Which documents are for validation needs their number first (nanoGPT's way).
  void choose_split() {
    if (one_text_) {
      bool blank = false;
      const int64_t points = count_code_points(files_[0], blank);
      if (blank) fail(files_[0] + ": has no text");
      if (o_.val_fraction > 0)
        split_ = static_cast<int64_t>(static_cast<double>(points) * (1 - o_.val_fraction));
      return;
    }
    if (o_.val_fraction == 0) return;
    int64_t n = 0;
    const ProgressFn progress = show_progress("counting rows");
    for (size_t i = 0; i < files_.size(); ++i) {
      n += RecordReader::open(files_[i], record_)->count_rest();
      progress(static_cast<double>(i + 1) / static_cast<double>(files_.size()));
    }
    val_rows_ = validation_rows(static_cast<uint64_t>(n), o_.val_fraction, static_cast<uint32_t>(o_.seed));
    if (static_cast<int64_t>(val_rows_.size()) >= n) val_rows_.clear();  // a single row is for training
  }

  void choose_output() {
    ensure_writable_directory(o_.out_dir);
    lock_.emplace(o_.out_dir);
    const bool text = encoding_.set == EncodingOptions::text;
    output_ = TokenFormat::plain(tokenizer_->vocab_size());
    output_.vocabulary_hash = tokenizer_->hash();
    if (o_.format == "bin" && (output_.headed || !text))
      fail(text ? fmt::format("format: bin holds ids below 65536, the vocabulary has {}; use mtbin",
                              tokenizer_->vocab_size())
                : "format: bin cannot say which tokens are trained; use mtbin");
    if (!text) output_.headed = output_.wide = true, output_.flags = TokenFileHeader::kMarked;
    if (encoding_.set == EncodingOptions::pairs) output_.flags |= TokenFileHeader::kPairs;
    if (o_.format == "mtbin" || (text && !one_text_ && !encoding_.end_documents)) output_.headed = true;
    journal_path_ = o_.out_dir + "/prepare.progress.json";
    const uint64_t fingerprint = fingerprint_of();
    if (!o_.restart)
      if (auto earlier = PrepareJournal::load(journal_path_, fingerprint)) journal_ = *earlier;
    journal_.fingerprint = fingerprint;
    if (journal_.blocks > 0)
      fmt::print("going on after {} of input, {} examples\n",
                 format_bytes(static_cast<double>(journal_.counts.bytes)), journal_.counts.examples);
  }

  // FNV-1a over everything that the output depends on.
  uint64_t fingerprint_of() const {
    std::string all = fmt::format("1|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", tokenizer_->hash(), o_.val_fraction,
                                  o_.seed, o_.format, o_.columns, o_.dataset, record_.text_column,
                                  o_.train_on, o_.strict, fs::absolute(o_.tokenizer).string());
    for (const std::string& f : files_)
      all += fmt::format("|{}|{}|{}", fs::absolute(f).string(), fs::file_size(f),
                         fs::last_write_time(f).time_since_epoch().count());
    uint64_t h = 0xcbf29ce484222325ull;
    for (char c : all) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    return h;
  }

  std::string path_of(const char* stem) const { return output_.file_name(o_.out_dir + "/" + stem); }

  std::unique_ptr<TokenWriter> writer(const char* stem, const TokenWriter::State& state) const {
    auto w = std::make_unique<TokenWriter>(path_of(stem), output_, state);
    w->keep();
    return w;
  }

  // False when interrupted.
  bool encode_all() {
    if (journal_.whole) return true;
    train_ = writer("train", journal_.train), val_ = writer("val", journal_.val);
    const BlockEncoder encoder(*tokenizer_, *examples_, encoding_);
    BlockReader reader(files_, record_, split_);
    Block block;
    for (int64_t b = 0; b < journal_.blocks && reader.next(block); ++b) tell(reader);
    const int64_t threads = o_.threads > 0 ? o_.threads : available_cores();
    std::deque<std::future<EncodedBlock>> ahead;
    bool more = true;
    last_saved_ = Clock::now();
    while (more || !ahead.empty()) {
      while (more && !interrupted() && static_cast<int64_t>(ahead.size()) < 2 * threads) {
        more = reader.next(block);
        if (more && threads > 1)
          ahead.push_back(
              std::async(std::launch::async, [&encoder, b = std::move(block)] { return encoder.encode(b); }));
        else if (more)
          ahead.push_back(std::async(std::launch::deferred,
                                     [&encoder, b = std::move(block)] { return encoder.encode(b); }));
      }
      if (ahead.empty()) break;
      write(ahead.front().get());
      ahead.pop_front();
      tell(reader);
      if (std::chrono::duration<double>(Clock::now() - last_saved_).count() >= o_.journal_seconds)
        save(false);
    }
    save(!more);
    return !more;
  }

  void write(const EncodedBlock& block) {
    for (const Refusal& r : block.refused) refuse(r);
    PrepareCounts& n = journal_.counts;
    for (const EncodedDocument& d : block.documents) {
      const bool to_val = split_ >= 0 ? d.number > 0
                                      : std::binary_search(val_rows_.begin(), val_rows_.end(),
                                                           static_cast<uint32_t>(d.number));
      TokenWriter& out = to_val ? *val_ : *train_;
      if (d.begins) {
        if (!one_text_) out.begin_document();
        n.longest = std::max(n.longest, length_), length_ = 0;
        ++n.examples, n.val_examples += to_val;
      }
      const auto size = static_cast<int64_t>(d.ids.size());
      out.add(d.ids.data(), size, d.trained.empty() ? nullptr : d.trained.data());
      const int64_t trained = size < 2            ? 0
                              : d.trained.empty() ? size - 1
                                                  : std::count(d.trained.begin() + 1, d.trained.end(), 1);
      length_ += size, n.tokens += size, n.trained += trained;
      n.untrained += !d.trained.empty() && trained == 0;
    }
    n.longest = std::max(n.longest, length_);
    n.rows += block.rows, n.bytes += block.bytes;
    ++journal_.blocks;
  }

  void refuse(const Refusal& r) {
    if (one_text_) fail(r.where.substr(0, r.where.rfind(':')) + ": " + r.error);
    if (o_.strict) fail(fmt::format("{}: {}; leave --strict out to skip such rows", r.where, r.error));
    const int64_t n = ++journal_.counts.skipped;
    if (n <= kNamedErrors) fmt::print(stderr, "  skipped {}: {}\n", r.where, r.error);
    if (n == kNamedErrors + 1) fmt::print(stderr, "  more rows are skipped and counted\n");
  }

  void save(bool whole) {
    journal_.train = train_->sync(), journal_.val = val_->sync();
    journal_.whole = whole;
    journal_.save(journal_path_);
    last_saved_ = Clock::now();
  }

  void tell(const BlockReader& reader) {
    const auto now = Clock::now();
    if (now - last_told_ < std::chrono::seconds(2)) return;
    last_told_ = now;
    const double done = reader.fraction(), seconds = std::chrono::duration<double>(now - started_).count();
    fmt::print(stderr, "  {:.0f}% of {}, {} tokens, eta {}\n", 100 * done,
               format_bytes(static_cast<double>(reader.total_bytes())),
               format_count(static_cast<double>(journal_.counts.tokens)),
               format_duration(done > 0 ? seconds / done * (1 - done) : 0));
  }

  // Each file appears whole; a kill between them is gone on with from the journal.
  void finish() {
    const PrepareCounts& n = journal_.counts;
    if (journal_.train.tokens == 0) {
      fs::remove(journal_path_);
      for (const char* s : {"train", "val"}) writer(s, {})->discard();
      fail(fmt::format("{}: no example is left for training ({} rows, {} skipped)", files_[0], n.rows,
                       n.skipped));
    }
    train_.reset(), val_.reset();
    for (const auto& [stem, state] : {std::pair{"train", journal_.train}, {"val", journal_.val}}) {
      if (!fs::exists(path_of(stem) + ".tmp")) continue;  // already done by the run before
      const auto w = writer(stem, state);
      if (state.tokens > 0)
        w->finish();
      else
        w->discard();
    }
    if (journal_.val.tokens == 0) fs::remove(path_of("val"));  // of an earlier run
    tokenizer_->save(o_.out_dir);
    fs::remove(journal_path_);
    report();
  }

  void report() const {
    const PrepareCounts& n = journal_.counts;
    const std::string name = files_.size() == 1 ? files_[0] : fmt::format("{} files", files_.size());
    fmt::print("{}: {} of text, {} tokenizer with {} tokens\n", name,
               format_bytes(static_cast<double>(n.bytes)), tokenizer_->kind(), tokenizer_->vocab_size());
    const bool text = encoding_.set == EncodingOptions::text;
    if (!one_text_)
      fmt::print("  {} rows, {} {}, {} skipped; {} tokens{}; the longest has {}\n", n.rows, n.examples,
                 text ? "documents" : "examples", n.skipped, n.tokens,
                 text ? "" : fmt::format(", {} of them trained", n.trained), n.longest);
    if (n.untrained > 0) fmt::print("  {} examples train nothing\n", n.untrained);
    fmt::print("  {}  {} tokens\n", path_of("train"), journal_.train.tokens);
    if (journal_.val.tokens > 0) fmt::print("  {}    {} tokens\n", path_of("val"), journal_.val.tokens);
  }

  const PrepareOptions& o_;
  std::optional<DirectoryLock> lock_;
  std::vector<std::string> files_;
  RowFormat format_;
  RecordOptions record_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ExampleEncoder> examples_;
  EncodingOptions encoding_;
  bool one_text_ = false;  // a single text, split by its length
  int64_t split_ = -1, length_ = 0;
  std::vector<uint32_t> val_rows_;
  TokenFormat output_;
  PrepareJournal journal_;
  std::string journal_path_;
  std::unique_ptr<TokenWriter> train_, val_;
  Clock::time_point started_ = Clock::now(), last_told_ = Clock::now(), last_saved_ = Clock::now();
};

}  // namespace

int run_prepare(const PrepareOptions& o) {
  watch_interrupts();
  return Preparation(o).run();
}

}  // namespace megatrain
