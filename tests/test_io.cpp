// Safetensors, Hugging Face directories, metrics, atomic writes.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "device/cpu/cpu_device.h"
#include "io/file.h"
#include "io/hf_model.h"
#include "io/metrics.h"
#include "io/safetensors.h"
#include "scratch.h"
#include "tiny.h"

namespace megatrain {
namespace {

std::string container(const std::string& header, const std::string& data) {
  const uint64_t n = header.size();
  return std::string(reinterpret_cast<const char*>(&n), 8) + header + data;
}

TEST(Safetensors, RoundTrip) {
  ScratchDirectory d;
  const float a[] = {1, 2, 3, 4, 5, 6};
  SafetensorsWriter w(d.file("x.safetensors"));
  w.declare("a", "F32", {2, 3}), w.declare("b", "F32", {1});
  w.begin();
  w.append(a, 24), w.append(a + 5, 4);
  w.finish();
  const SafetensorsFile f(d.file("x.safetensors"));
  float got[6];
  f.read_f32(*f.find("a"), got);
  EXPECT_EQ(std::memcmp(a, got, 24), 0);
  f.read_f32(*f.find("b"), got);
  EXPECT_EQ(got[0], 6);
  EXPECT_EQ(f.find("c"), nullptr);
}

TEST(Safetensors, HalfPrecisionIsConverted) {
  ScratchDirectory d;
  const uint16_t v[] = {0x3c00, 0xc000, 0x0001, 0x3f80, 0xc000, 0x0000};  // F16: 1, -2, 2^-24; BF16: 1, -2, 0
  d.write(
      "x",
      container(
          R"({"h":{"dtype":"F16","shape":[3],"data_offsets":[0,6]},"b":{"dtype":"BF16","shape":[3],"data_offsets":[6,12]}})",
          std::string(reinterpret_cast<const char*>(v), 12)));
  const SafetensorsFile f(d.file("x"));
  float h[3], b[3];
  f.read_f32(*f.find("h"), h), f.read_f32(*f.find("b"), b);
  EXPECT_EQ(h[0], 1);
  EXPECT_EQ(h[1], -2);
  EXPECT_EQ(h[2], 0x1p-24f);
  EXPECT_EQ(b[0], 1);
  EXPECT_EQ(b[1], -2);
  EXPECT_EQ(b[2], 0);
}

TEST(Safetensors, DamagedFilesAreRefused) {
  ScratchDirectory d;
  const std::string bad[] = {
      "",
      "short",
      container("{}", "x"),
      container("[]", ""),
      std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10),
      container(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "1234"),
      container(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "1234"),
      container(R"({"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}})", "1234"),
      container(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "1234"),
      container(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", ""),
      container(
          R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
          "1234"),
      container(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "12345678"),
      container(R"({"a":5})", ""),
      container(R"({"a":{"dtype":"F32"}})", "")};
  for (const auto& content : bad) {
    d.write("x", content);
    EXPECT_THROW(SafetensorsFile(d.file("x")), Error) << content.substr(0, 90);
  }
}

class HuggingFace : public ::testing::TestWithParam<std::pair<bool, bool>> {};

TEST_P(HuggingFace, SaveAndLoadIsBitExact) {
  ModelSpec spec = tiny_spec(3, GetParam().first);
  spec.bias = GetParam().second, spec.activation = Activation::gelu_tanh;
  TinyRun run(spec, tiny_plan());
  run.train(2);
  ScratchDirectory d;
  save_model(d.path, *run.model, run.store, {});
  const ModelSpec back = read_model_spec(d.path);
  EXPECT_EQ(back.tied, spec.tied);
  EXPECT_EQ(back.bias, spec.bias);
  EXPECT_EQ(back.activation, spec.activation);
  EXPECT_EQ(back.intermediate_size, spec.intermediate_size);
  EXPECT_EQ(back.norm_eps, spec.norm_eps);
  TinyRun other(back, tiny_plan());
  load_weights(d.path, *other.model, other.store, 2);
  EXPECT_EQ(other.weights(), run.weights());
}

INSTANTIATE_TEST_SUITE_P(Shapes, HuggingFace,
                         ::testing::Values(std::pair{true, true}, std::pair{false, true},
                                           std::pair{true, false}));

TEST(HuggingFaceDirectory, MismatchesAreNamed) {
  TinyRun run(tiny_spec(2), tiny_plan());
  ScratchDirectory d;
  save_model(d.path, *run.model, run.store, {});
  auto expect = [&](const ModelSpec& spec, const std::string& words) {
    TinyRun other(spec, tiny_plan());
    try {
      load_weights(d.path, *other.model, other.store, 2);
      FAIL() << words;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
  };
  expect(tiny_spec(3), "'transformer.h.2.ln_1.weight' is missing");
  expect(tiny_spec(1), "'transformer.h.1.attn.c_attn.bias' does not belong");
  ModelSpec wide = tiny_spec(2);
  wide.intermediate_size = 32;
  expect(wide, "'transformer.h.0.mlp.c_fc.weight' has shape [16, 64], [16, 32]");
}

TEST(HuggingFaceDirectory, ConfigsThatChangeTheMathsAreRefused) {
  ScratchDirectory d;
  const std::string good =
      R"("model_type":"gpt2","vocab_size":10,"n_positions":8,"n_embd":4,"n_layer":1,"n_head":2)";
  d.write("config.json", "{" + good + "}");
  EXPECT_EQ(read_model_spec(d.path).intermediate_size, 16);
  for (const char* extra :
       {R"(,"activation_function":"relu")", R"(,"scale_attn_by_inverse_layer_idx":true)",
        R"(,"scale_attn_weights":false)", R"(,"add_cross_attention":true)", R"(,"n_head":"two")"}) {
    d.write("config.json", "{" + good + extra + "}");
    EXPECT_THROW(read_model_spec(d.path), Error) << extra;
  }
  for (const char* text : {"", "{}", "[1]", R"({"model_type":"bert"})", R"({"model_type":"gpt2"})"}) {
    d.write("config.json", text);
    EXPECT_THROW(read_model_spec(d.path), Error) << text;
  }
}

TEST(DirectoryWriter, IsWholeOrAbsent) {
  ScratchDirectory d;
  const std::string target = d.file("model");
  {
    DirectoryWriter w(target), &r = w;
    write_file_atomically(r.file("a"), "1");
  }  // never committed
  EXPECT_FALSE(std::filesystem::exists(target));
  EXPECT_FALSE(std::filesystem::exists(target + ".tmp"));
  for (const char* content : {"first", "second"}) {
    DirectoryWriter w(target);
    write_file_atomically(w.file("a"), content);
    w.commit();
    EXPECT_EQ(read_text_file(target + "/a"), content);
  }
  EXPECT_FALSE(std::filesystem::exists(target + ".old"));
}

TEST(Metrics, JsonLinesAndTensorBoardFraming) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);  // the check value of CRC-32C
  ScratchDirectory d;
  {
    MetricsFile m(d.file("m.jsonl"));
    m.write(1, {{"loss", 2.5}}), m.write(2, {{"loss", NAN}});
    TensorBoardWriter t(d.path);
    t.write(7, {{"loss", 2.5}, {"lr", 0.1}});
  }
  EXPECT_EQ(read_text_file(d.file("m.jsonl")), "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":null}\n");
  std::string events;
  for (const auto& e : std::filesystem::directory_iterator(d.path))
    if (e.path().filename().string().rfind("events.out", 0) == 0) events = read_text_file(e.path());
  int records = 0;
  for (size_t at = 0; at < events.size(); ++records) {  // length, crc, body, crc
    uint64_t length;
    std::memcpy(&length, &events[at], 8);
    uint32_t crc;
    std::memcpy(&crc, &events[at + 8], 4);
    const uint32_t raw = crc32c(events.substr(at, 8));
    EXPECT_EQ(crc, ((raw >> 15) | (raw << 17)) + 0xa282ead8u);
    at += 12 + length + 4;
  }
  EXPECT_EQ(records, 2);
}

}  // namespace
}  // namespace megatrain
