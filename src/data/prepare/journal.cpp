#include "data/prepare/journal.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/file.h"

namespace megatrain {
namespace {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PrepareCounts, rows, examples, skipped, untrained, tokens, trained,
                                   longest, bytes, val_examples)

nlohmann::json state_json(const TokenWriter::State& s) {
  return {{"tokens", s.tokens}, {"documents", s.documents}, {"checksum", s.checksum}};
}

TokenWriter::State state_of(const nlohmann::json& j) {
  return {j.at("tokens").get<uint64_t>(), j.at("documents").get<uint64_t>(),
          j.at("checksum").get<uint64_t>()};
}

}  // namespace

void PrepareJournal::save(const std::string& path) const {
  nlohmann::json j = {{"fingerprint", fingerprint},
                      {"blocks", blocks},
                      {"whole", whole},
                      {"train", state_json(train)},
                      {"val", state_json(val)}};
  to_json(j["counts"], counts);
  write_file_atomically(path, j.dump(1));
}

std::optional<PrepareJournal> PrepareJournal::load(const std::string& path, uint64_t fingerprint) {
  if (!std::filesystem::exists(path)) return {};
  const auto j = nlohmann::json::parse(read_text_file(path), nullptr, false);
  try {
    PrepareJournal p;
    p.fingerprint = j.at("fingerprint").get<uint64_t>();
    if (p.fingerprint != fingerprint) return {};
    p.blocks = j.at("blocks").get<int64_t>(), p.whole = j.at("whole").get<bool>();
    p.train = state_of(j.at("train")), p.val = state_of(j.at("val"));
    from_json(j.at("counts"), p.counts);
    return p;
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

}  // namespace megatrain
