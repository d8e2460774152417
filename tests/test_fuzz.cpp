// Replays the fuzzers' corpora, what once crashed among them: no crash, no hang, no exception but Error.
#include <gtest/gtest.h>

#include <filesystem>

#include "fuzz/targets.h"
#include "io/file.h"

namespace megatrain {
namespace {

void replay(const std::string& name, void (*target)(const uint8_t*, size_t)) {
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(MT_SOURCE_DIR) + "/tests/fuzz/corpus/" + name)) {
    const std::string content = read_text_file(entry.path().string());
    SCOPED_TRACE(entry.path().filename().string());
    EXPECT_NO_THROW(target(reinterpret_cast<const uint8_t*>(content.data()), content.size()));
    ++files;
  }
  EXPECT_GT(files, 0);
}

TEST(FuzzCorpus, Safetensors) {
  replay("safetensors", fuzz::safetensors);
}
TEST(FuzzCorpus, Config) {
  replay("config", fuzz::config);
}
TEST(FuzzCorpus, Tokenizer) {
  replay("tokenizer", fuzz::tokenizer);
}
TEST(FuzzCorpus, Template) {
  replay("template", fuzz::chat_template);
}

}  // namespace
}  // namespace megatrain
