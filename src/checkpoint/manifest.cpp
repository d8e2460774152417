#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/hash.h"
#include "core/error.h"
#include "io/file.h"
#include "io/json.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

constexpr const char* kFormat = "megatrain checkpoint 1";
constexpr int64_t kMaxManifest = int64_t{64} << 20;

std::string hash_of(const nlohmann::json& body) {
  Hash64 h;
  const std::string text = body.dump();
  h.add(text.data(), text.size());
  return h.hex();
}

Manifest from_body(const nlohmann::json& b) {
  Manifest m;
  m.step = b.at("step").get<int64_t>(), m.optimizer_steps = b.at("optimizer_steps").get<int64_t>();
  m.skipped = b.at("skipped").get<int64_t>();
  m.program = b.at("program").get<std::string>(), m.data = b.at("data").get<std::string>();
  m.options = b.at("options").get<std::map<std::string, std::string>>();
  for (const auto& f : b.at("files"))
    m.files.push_back({f.at("name").get<std::string>(), f.at("unit").get<std::string>(),
                       f.at("numel").get<int64_t>(), f.at("bytes").get<int64_t>(),
                       f.at("hash").get<std::string>()});
  return m;
}

// Names in a manifest stay inside its directory.
bool plain_name(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name != "." && name != "..";
}

CheckpointEntry open_entry(const std::string& path) {
  const std::string file = path + "/manifest.json";
  if (!fs::exists(file)) fail(path + ": has no manifest, so it was not finished");
  if (static_cast<int64_t>(fs::file_size(file)) > kMaxManifest) fail(file + ": is too large; it is damaged");
  CheckpointEntry e{path, Manifest::parse(read_text_file(file), file)};
  for (const auto& f : e.manifest.files) {
    std::error_code error;
    const auto size = plain_name(f.name) ? fs::file_size(path + "/" + f.name, error) : 0;
    if (!plain_name(f.name) || error) fail(fmt::format("{}: {} is missing", path, f.name));
    if (static_cast<int64_t>(size) != f.bytes)
      fail(fmt::format("{}: {} has {} bytes, {} were written", path, f.name, size, f.bytes));
  }
  return e;
}

}  // namespace

std::string Manifest::text() const {
  nlohmann::json b = {{"step", step},       {"optimizer_steps", optimizer_steps},
                      {"skipped", skipped}, {"program", program},
                      {"options", options}, {"data", data}};
  for (const File& f : files)
    b["files"].push_back(
        {{"name", f.name}, {"unit", f.unit}, {"numel", f.numel}, {"bytes", f.bytes}, {"hash", f.hash}});
  return nlohmann::json{{"format", kFormat}, {"body", b}, {"hash", hash_of(b)}}.dump(1) + "\n";
}

Manifest Manifest::parse(const std::string& text, const std::string& where) {
  const nlohmann::json j = parse_json(text, where);
  try {
    if (j.at("format") != kFormat)
      fail(fmt::format("{}: is of another format than '{}'; use the version that wrote it", where, kFormat));
    if (j.at("hash") != hash_of(j.at("body"))) fail(where + ": its checksum does not fit; it is damaged");
    return from_body(j.at("body"));
  } catch (const nlohmann::json::exception&) {
    fail(where + ": is not a manifest; it is damaged");
  }
}

int64_t Manifest::bytes() const {
  int64_t n = 0;
  for (const File& f : files) n += f.bytes;
  return n;
}

std::vector<CheckpointEntry> list_checkpoints(const std::string& directory,
                                              std::vector<std::string>& complaints) {
  std::vector<CheckpointEntry> out;
  if (!fs::is_directory(directory)) return out;
  for (const auto& d : fs::directory_iterator(directory)) {
    const std::string name = d.path().filename().string();
    if (!d.is_directory() || name.starts_with(".")) continue;
    try {
      out.push_back(open_entry(d.path().string()));
    } catch (const Error& e) {
      complaints.emplace_back(e.what());
    } catch (const fs::filesystem_error& e) {
      complaints.emplace_back(e.what());
    }
  }
  std::sort(out.begin(), out.end(), [](auto& a, auto& b) { return a.manifest.step > b.manifest.step; });
  return out;
}

void remove_leftovers(const std::string& directory) {
  if (!fs::is_directory(directory)) return;
  std::vector<fs::path> old;
  for (const auto& d : fs::directory_iterator(directory))
    if (d.is_directory() && d.path().filename().string().starts_with(".")) old.push_back(d.path());
  std::error_code ignored;
  for (const auto& p : old) fs::remove_all(p, ignored);
}

void prune_checkpoints(const std::string& directory, int64_t keep, int64_t every) {
  std::vector<std::string> complaints;
  const auto all = list_checkpoints(directory, complaints);
  for (size_t i = static_cast<size_t>(std::max<int64_t>(keep, 1)); i < all.size(); ++i) {
    if (every > 0 && all[i].manifest.step % every == 0) continue;
    const fs::path from = all[i].path, to = fs::path(directory) / (".old-" + from.filename().string());
    std::error_code error;
    fs::rename(from, to, error);  // what is half deleted must not look whole
    if (!error) fs::remove_all(to, error);
  }
}

}  // namespace megatrain
