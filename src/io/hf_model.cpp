#include "io/hf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <set>

#include "core/error.h"
#include "core/thread_pool.h"
#include "io/families/family.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr int64_t kPiece = int64_t{1} << 20;         // elements that a thread converts at a time
constexpr int64_t kShardBytes = int64_t{8} << 30;    // of models made here
constexpr int64_t kMaxCarried = int64_t{256} << 20;  // bytes of one tokenizer file

// Every layer's biases, for a GPT-2 without: transformers' always has them, as zeros.
std::vector<std::pair<std::string, int64_t>> absent_biases(const ModelSpec& s) {
  std::vector<std::pair<std::string, int64_t>> out;
  if (s.family != "gpt2" || s.bias) return out;
  const int64_t c = s.hidden_size;
  for (int64_t l = 0; l < s.num_layers; ++l)
    for (const auto& [name, n] : {std::pair{"ln_1", c},
                                  {"attn.c_attn", 3 * c},
                                  {"attn.c_proj", c},
                                  {"ln_2", c},
                                  {"mlp.c_fc", s.intermediate_size},
                                  {"mlp.c_proj", c}})
      out.emplace_back(fmt::format("transformer.h.{}.{}.bias", l, name), n);
  out.emplace_back("transformer.ln_f.bias", c);
  return out;
}

// Files of the bare model (GPT2Model, LlamaModel) lack the first part of every name.
std::string bare(const std::string& name) {
  for (const char* prefix : {"transformer.", "model."})
    if (name.rfind(prefix, 0) == 0) return name.substr(std::string(prefix).size());
  return name;
}

// Tensors that older checkpoints carry and that hold nothing to train.
bool is_ignorable(const std::string& name, const ModelSpec& s) {
  for (const char* buffer : {".attn.bias", ".attn.masked_bias", ".masked_bias", "rotary_emb.inv_freq",
                             "rotary_emb.cos_cached", "rotary_emb.sin_cached", "position_ids"})
    if (name.ends_with(buffer)) return true;
  return name.ends_with("rotary_emb.inv_freq") || (s.tied && name == "lm_head.weight");
}

// What such names tell of where they come from.
std::string kind_of_extra(const std::vector<std::string>& names) {
  for (const std::string& n : names) {
    if (n.find("lora_") != std::string::npos) return "; they are an adapter's: merge it into the model first";
    for (const char* part : {"qweight", "qzeros", ".scales", "absmax", "quant_map", "_scale_inv"})
      if (n.find(part) != std::string::npos)
        return "; they are a quantised model's: save it in bf16 or fp32 first";
  }
  return "";
}

bool is_carried(const std::string& name) {
  static const std::set<std::string> names = {"tokenizer.json",
                                              "tokenizer_config.json",
                                              "special_tokens_map.json",
                                              "added_tokens.json",
                                              "vocab.json",
                                              "merges.txt",
                                              "tokenizer.model",
                                              "vocab.txt",
                                              "meta.json",
                                              "generation_config.json",
                                              "chat_template.jinja",
                                              "chat_template.json",
                                              "LICENSE",
                                              "LICENSE.txt",
                                              "LICENSE.md",
                                              "USE_POLICY.md",
                                              "NOTICE"};
  return names.contains(name);
}

std::vector<std::pair<std::string, std::string>> carried_files(const std::string& directory) {
  std::vector<std::pair<std::string, std::string>> out;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!is_carried(name) || !entry.is_regular_file()) continue;
    if (static_cast<int64_t>(entry.file_size()) > kMaxCarried)
      fail(fmt::format("{}/{}: is larger than any tokenizer file; remove it", directory, name));
    out.emplace_back(name, read_text_file(entry.path().string()));
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// The weight files of a directory, opened, and where each tensor is.
class WeightFiles {
 public:
  explicit WeightFiles(const std::string& directory) : directory_(directory) {
    const bool indexed = !fs::exists(directory + "/" + kSingle) && fs::exists(directory + "/" + kIndex);
    if (indexed)
      open_index();
    else
      open_single();
  }

  struct Found {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
    std::string name;
    int shard = 0;
  };
  /// By our name, or without its prefix; file is null when there is none.
  Found find(const std::string& name) const {
    for (const std::string& n : {name, bare(name)})
      if (const auto it = home_.find(n); it != home_.end()) {
        const SafetensorsFile& f = *files_[static_cast<size_t>(it->second)];
        return {&f, f.find(n), n, it->second};
      }
    return {};
  }
  const std::map<std::string, int>& home() const { return home_; }
  const std::vector<std::string>& names() const { return names_; }
  std::string where() const { return directory_ + "/" + (names_.size() == 1 ? names_[0] : kIndex); }

 private:
  void open_single() {
    if (!fs::exists(directory_ + "/" + kSingle)) {
      const bool pickled = fs::exists(directory_ + "/pytorch_model.bin") ||
                           fs::exists(directory_ + "/pytorch_model.bin.index.json");
      fail(fmt::format("{}: has no {} and no {}{}", directory_, kSingle, kIndex,
                       pickled ? "; its .bin files are Python pickles, which are not read: save the model "
                                 "again with transformers' save_pretrained"
                               : "; check the path"));
    }
    names_ = {kSingle};
    files_.push_back(std::make_unique<SafetensorsFile>(directory_ + "/" + kSingle));
    for (const auto& [name, e] : files_[0]->entries()) home_[name] = 0;
  }

  void open_index() {
    const std::string path = directory_ + "/" + kIndex;
    const nlohmann::json j = parse_json(read_text_file(path), path);
    if (!j.is_object() || !j.contains("weight_map") || !j["weight_map"].is_object())
      fail(path + ": has no weight_map");
    std::map<std::string, int> shard_of;
    for (const auto& [name, file] : j["weight_map"].items()) {
      if (!file.is_string()) fail(fmt::format("{}: the file of '{}' is not a text", path, name));
      shard_of.try_emplace(file.get<std::string>(), 0);
    }
    for (auto& [file, shard] : shard_of) {
      if (file.empty() || file.find('/') != std::string::npos || file == "." || file == "..")
        fail(fmt::format("{}: '{}' is not a file of this directory", path, file));
      if (!fs::exists(directory_ + "/" + file))
        fail(fmt::format("{}: names the shard '{}', which is absent; download it again", path, file));
      shard = static_cast<int>(names_.size());
      names_.push_back(file);
      files_.push_back(std::make_unique<SafetensorsFile>(directory_ + "/" + file));
    }
    for (const auto& [name, file] : j["weight_map"].items()) {
      const int shard = shard_of.at(file.get<std::string>());
      if (!files_[static_cast<size_t>(shard)]->find(name))
        fail(fmt::format("{}: says that '{}' is in '{}', which does not have it", path, name,
                         file.get<std::string>()));
      home_[name] = shard;
    }
  }

  std::string directory_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, int> home_;
};

// What one thread copies in one go.
struct Piece {
  int unit;
  const Parameter* parameter;
  WeightFiles::Found from;
  int64_t first, count;
};

// One such weight makes every step's loss not finite.
void check_finite(const Piece& p, const std::vector<float>& values) {
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      fail(fmt::format(
          "{}: '{}' is {} at index {}: every loss would be too; use a sound copy, or let it pass with "
          "--allow-nonfinite-weights",
          p.from.file->path(), p.from.name, std::isnan(values[i]) ? "NaN" : "infinite",
          p.first + static_cast<int64_t>(i)));
}

void check_zero(const WeightFiles& files, const std::string& name) {
  const auto found = files.find(name);
  if (!found.file) return;
  std::vector<float> v(static_cast<size_t>(found.entry->numel()));
  found.file->read_f32(*found.entry, v.data());
  if (std::any_of(v.begin(), v.end(), [](float x) { return x != 0; }))
    fail(fmt::format("{}: '{}' is not zero, but the model was saved as one without biases", files.where(),
                     name));
}

// Everything that can be wrong with names, shapes and types is found before a weight is read.
std::vector<Piece> plan_import(const WeightFiles& files, const Model& model, ModelSource& source) {
  std::vector<Piece> pieces;
  std::set<std::string> used;
  for (int u = 0; u < model.unit_count(); ++u)
    for (const Parameter& p : model.units()[static_cast<size_t>(u)].parameters) {
      const auto found = files.find(p.name);
      if (!found.file) fail(fmt::format("{}: tensor '{}' is missing", files.where(), p.name));
      if (found.entry->shape != p.shape)
        fail(fmt::format("{}: tensor '{}' has shape [{}], [{}] was expected", files.where(), found.name,
                         fmt::join(found.entry->shape, ", "), fmt::join(p.shape, ", ")));
      if (!is_float_dtype(found.entry->dtype))
        fail(fmt::format("{}: tensor '{}' is of type {}; F32, F16 and BF16 are read (not quantised weights)",
                         files.where(), found.name, found.entry->dtype));
      used.insert(found.name);
      source.tensors[found.name] = {found.entry->dtype, found.shard};
      for (int64_t first = 0; first < p.numel; first += kPiece)
        pieces.push_back({u, &p, found, first, std::min(kPiece, p.numel - first)});
    }
  for (const auto& [name, n] : absent_biases(model.spec())) {
    const auto found = files.find(name);
    check_zero(files, name);
    if (found.file) used.insert(found.name), source.tensors[found.name] = {found.entry->dtype, found.shard};
  }
  std::vector<std::string> extra;
  for (const auto& [name, shard] : files.home()) {
    if (used.contains(name)) continue;
    (is_ignorable(name, model.spec()) ? source.ignored : extra).push_back(name);
  }
  if (!extra.empty()) {
    constexpr size_t kShown = 8;
    const std::vector<std::string> shown(
        extra.begin(), extra.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, extra.size())));
    fail(fmt::format("{}: {} tensor{} not belong to this model: {}{}{}", files.where(), extra.size(),
                     extra.size() == 1 ? " does" : "s do", fmt::join(shown, ", "),
                     extra.size() > kShown ? ", ..." : "", kind_of_extra(extra)));
  }
  return pieces;
}

// Runs f(i) for i in [0, n) on the pool and reports between rounds; the first error of any thread is thrown.
template <class F>
void in_rounds(ThreadPool& pool, int64_t n, int64_t round, const ProgressFn& progress, F&& f) {
  std::mutex mutex;
  std::exception_ptr error;
  for (int64_t begin = 0; begin < n && !error; begin += round) {
    if (progress) progress(static_cast<double>(begin) / static_cast<double>(n));
    pool.parallel_for(std::min(round, n - begin), [&](int64_t i) {
      try {
        f(begin + i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
    });
  }
  if (error) std::rethrow_exception(error);
}

// One tensor to write, in file order.
struct Outgoing {
  std::string name, dtype;
  std::vector<int64_t> shape;
  int unit = -1;                         // -1: zeros
  const Parameter* parameter = nullptr;  // null: zeros
  int shard = 0;
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
};

Outgoing place(const ExportOptions& o, const std::string& name, std::vector<int64_t> shape, int unit,
               const Parameter* p) {
  Outgoing out{name, o.dtype.empty() ? "F32" : o.dtype, std::move(shape), unit, p, 0};
  if (!o.source) return out;
  for (const std::string& n : {name, bare(name)})
    if (const auto it = o.source->tensors.find(n); it != o.source->tensors.end()) {
      out.name = n, out.shard = it->second.shard;
      if (o.dtype.empty()) out.dtype = it->second.dtype;
      return out;
    }
  return out;
}

std::vector<Outgoing> plan_export(const Model& model, const ExportOptions& o) {
  std::vector<Outgoing> out;
  for (int u = 0; u < model.unit_count(); ++u)
    for (const Parameter& p : model.units()[static_cast<size_t>(u)].parameters)
      out.push_back(place(o, p.name, p.shape, u, &p));
  for (const auto& [name, n] : absent_biases(model.spec())) out.push_back(place(o, name, {n}, -1, nullptr));
  if (o.source) {
    std::stable_sort(out.begin(), out.end(), [](auto& a, auto& b) { return a.shard < b.shard; });
    return out;
  }
  int64_t bytes = 0;
  int shard = 0;
  for (Outgoing& t : out) {
    const int64_t size = t.numel() * element_size(t.dtype);
    if (bytes > 0 && bytes + size > kShardBytes) ++shard, bytes = 0;
    t.shard = shard, bytes += size;
  }
  return out;
}

std::vector<std::string> shard_names(const std::vector<Outgoing>& tensors, const ExportOptions& o) {
  if (o.source) return o.source->shards;
  const int n = tensors.back().shard + 1;
  if (n == 1) return {kSingle};
  std::vector<std::string> names;
  for (int i = 1; i <= n; ++i) names.push_back(fmt::format("model-{:05}-of-{:05}.safetensors", i, n));
  return names;
}

/// Writes the tensors of one shard, converting on all threads.
class ShardExporter {
 public:
  ShardExporter(const StateStore& store, ThreadPool& pool, int64_t total, const ProgressFn& progress)
      : store_(store), pool_(pool), total_(total), progress_(progress) {}

  void write(const std::string& path, const std::vector<Outgoing>& tensors) {
    SafetensorsWriter out(path);
    for (const Outgoing& t : tensors) out.declare(t.name, t.dtype, t.shape);
    out.begin();
    for (const Outgoing& t : tensors)
      for (int64_t first = 0; first < t.numel(); first += kWindow)
        append(out, t, first, std::min(kWindow, t.numel() - first));
    out.finish();
  }

 private:
  static constexpr int64_t kWindow = 16 * kPiece;

  void append(SafetensorsWriter& out, const Outgoing& t, int64_t first, int64_t count) {
    const int64_t size = element_size(t.dtype);
    buffer_.resize(static_cast<size_t>(count * size));
    std::atomic<bool> fits{true};
    pool_.parallel_ranges(count, 65536, [&](int64_t begin, int64_t end) {
      std::vector<float> values(static_cast<size_t>(end - begin));
      if (t.parameter) store_.get_range(t.unit, *t.parameter, first + begin, end - begin, values.data());
      if (!encode_f32(values.data(), end - begin, t.dtype, buffer_.data() + begin * size)) fits = false;
    });
    if (!fits)
      fail(fmt::format("'{}' has a value beyond 65504, which F16 cannot hold; set save_dtype to fp32 or bf16",
                       t.name));
    out.append(buffer_.data(), count * size);
    if (progress_) progress_(static_cast<double>(done_ += count) / static_cast<double>(total_));
  }

  const StateStore& store_;
  ThreadPool& pool_;
  int64_t total_, done_ = 0;
  const ProgressFn& progress_;
  std::vector<char> buffer_;
};

const char* torch_name(const std::string& dtype) {
  return dtype == "F32" ? "float32" : dtype == "BF16" ? "bfloat16" : "float16";
}

std::string config_text(const ModelSpec& spec, const ExportOptions& o) {
  if (o.source && o.dtype.empty()) return o.source->config;
  nlohmann::ordered_json j;
  if (o.source) {
    j = nlohmann::ordered_json::parse(o.source->config);
  } else {
    const HfFamily* family = find_family(spec.family);
    j["architectures"] = {family->architecture}, j["model_type"] = family->model_type;
    family->write(spec, j);
    j["bos_token_id"] = nullptr, j["eos_token_id"] = nullptr;
  }
  j[j.contains("dtype") ? "dtype" : "torch_dtype"] = torch_name(o.dtype.empty() ? "F32" : o.dtype);
  return j.dump(2) + "\n";
}

void write_index(const std::string& directory, const std::vector<Outgoing>& tensors,
                 const std::vector<std::string>& shards) {
  nlohmann::json map = nlohmann::json::object();
  int64_t bytes = 0;
  for (const Outgoing& t : tensors) {
    map[t.name] = shards[static_cast<size_t>(t.shard)];
    bytes += t.numel() * element_size(t.dtype);
  }
  write_file_atomically(
      directory + "/" + kIndex,
      nlohmann::json{{"metadata", {{"total_size", bytes}}}, {"weight_map", map}}.dump(2) + "\n");
}

}  // namespace

bool ModelSource::has_tokenizer() const {
  return std::any_of(carried.begin(), carried.end(), [](auto& f) {
    return f.first == "tokenizer.json" || f.first == "merges.txt" || f.first == "tokenizer.model" ||
           f.first == "meta.json";
  });
}

ModelSpec read_model_spec(const std::string& directory) {
  const std::string path = directory + "/config.json";
  if (!fs::exists(path))
    fail(fmt::format("{}: has no config.json; a Hugging Face model directory was expected", directory));
  return parse_model_spec(read_text_file(path), path);
}

ModelSpec parse_model_spec(const std::string& config, const std::string& path) {
  const nlohmann::json j = parse_json(config, path);
  ConfigReader reader(j, path);
  const std::string type = reader.text("model_type", "");
  const HfFamily* family = find_family(type);
  if (!family) {
    std::vector<std::string> known;
    for (const HfFamily& f : families()) known.emplace_back(f.model_type);
    fail(fmt::format("{}: model_type '{}' is not supported; supported: {}", path, type.substr(0, 80),
                     fmt::join(known, ", ")));
  }
  ModelSpec s = family->read(reader);
  s.family = type;
  for (const char* key : {"is_encoder_decoder", "tie_encoder_decoder"}) reader.only(key, false);
  reader.only("chunk_size_feed_forward", 0), reader.only("pruned_heads", nlohmann::json::object());
  reader.finish();
  try {
    validate(s);
  } catch (const Error& e) {
    fail(path + ": " + e.what());
  }
  return s;
}

ModelSource load_weights(const std::string& directory, const Model& model, StateStore& store, int threads,
                         const ProgressFn& progress, bool allow_nonfinite) {
  ModelSource source;
  source.config = read_text_file(directory + "/config.json");
  source.carried = carried_files(directory);
  const WeightFiles files(directory);
  source.shards = files.names();
  const std::vector<Piece> pieces = plan_import(files, model, source);
  ThreadPool pool(threads);
  in_rounds(pool, static_cast<int64_t>(pieces.size()), 8 * threads, progress, [&](int64_t i) {
    const Piece& p = pieces[static_cast<size_t>(i)];
    std::vector<float> values(static_cast<size_t>(p.count));
    p.from.file->read_f32(*p.from.entry, p.first, p.count, values.data());
    if (!allow_nonfinite) check_finite(p, values);
    store.set_range(p.unit, *p.parameter, p.first, p.count, values.data());
  });
  return source;
}

void save_model(const std::string& directory, const Model& model, const StateStore& store,
                const ExportOptions& options, const ProgressFn& progress) {
  const std::vector<Outgoing> tensors = plan_export(model, options);
  const std::vector<std::string> shards = shard_names(tensors, options);
  write_file_atomically(directory + "/config.json", config_text(model.spec(), options));
  if (options.source)
    for (const auto& [name, content] : options.source->carried)
      write_file_atomically(fmt::format("{}/{}", directory, name), content);
  int64_t total = 0;
  for (const Outgoing& t : tensors) total += t.numel();
  ThreadPool pool(options.threads);
  ShardExporter exporter(store, pool, total, progress);
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    std::vector<Outgoing> mine;
    std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(mine),
                 [&](const Outgoing& t) { return t.shard == static_cast<int>(shard); });
    exporter.write(directory + "/" + shards[shard], mine);
  }
  if (shards.size() > 1 || shards[0] != kSingle) write_index(directory, tensors, shards);
}

}  // namespace megatrain
