// Safetensors, Hugging Face directories, metrics, atomic writes.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "device/cpu/cpu_device.h"
#include "io/families/family.h"
#include "io/file.h"
#include "io/hf_model.h"
#include "io/json.h"
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
  expect(tiny_spec(1), "12 tensors do not belong to this model: transformer.h.1.attn.c_attn.bias, ");
  ModelSpec wide = tiny_spec(2);
  wide.intermediate_size = 32;
  expect(wide, "'transformer.h.0.mlp.c_fc.weight' has shape [16, 64], [16, 32]");
}

// A Qwen2 checkpoint in two shards, the norms in fp32 and the rest in bf16, as some tools write it.
struct ShardedQwen {
  ScratchDirectory d;
  ModelSpec spec;
  std::unique_ptr<TinyRun> run;
  std::string config =
      R"({"model_type":"qwen2","vocab_size":37,"hidden_size":16,"intermediate_size":24,"num_hidden_layers":2,
          "num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":16,"tie_word_embeddings":true,
          "rope_theta":1e6,"use_sliding_window":false,"torch_dtype":"bfloat16"})";

  explicit ShardedQwen(const std::string& dtype = "BF16") {
    spec = parse_model_spec(config, "config");
    run = std::make_unique<TinyRun>(spec, tiny_plan());
    d.write("config.json", config);
    d.write("tokenizer_config.json", "{}");
    d.write("generation_config.json", R"({"top_p":0.5})");
    d.write("pytorch_model.bin", "not carried");
    nlohmann::json map;
    for (int shard = 0; shard < 2; ++shard) {
      const std::string name = shard ? "b.safetensors" : "a.safetensors";
      SafetensorsWriter w(d.file(name));
      std::vector<std::pair<int, const Parameter*>> mine;
      for (int u = 0; u < run->model->unit_count(); ++u)
        for (const Parameter& p : run->model->units()[static_cast<size_t>(u)].parameters)
          if ((p.numel % 3 == 0) == (shard == 1)) mine.emplace_back(u, &p);
      for (auto [u, p] : mine) w.declare(p->name, type(*p, dtype), p->shape), map[p->name] = name;
      w.begin();
      for (auto [u, p] : mine) {
        std::vector<float> v(static_cast<size_t>(p->numel)), raw(v.size());
        run->store.get_parameter(u, *p, v.data());
        EXPECT_TRUE(encode_f32(v.data(), p->numel, type(*p, dtype), raw.data()));
        w.append(raw.data(), p->numel * element_size(type(*p, dtype)));
      }
      w.finish();
    }
    d.write("model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  }
  static std::string type(const Parameter& p, const std::string& dtype) {
    return p.shape.size() == 1 ? "F32" : dtype;
  }
  void expect_refused(const std::string& words) const {
    TinyRun other(spec, tiny_plan());
    try {
      load_weights(d.path, *other.model, other.store, 2);
      FAIL() << words;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
  }
};

TEST(HuggingFaceDirectory, ExportLooksLikeTheImport) {
  for (const char* dtype : {"BF16", "F16", "F32"}) {
    const ShardedQwen from(dtype);
    TinyRun run(from.spec, tiny_plan());
    const ModelSource source = load_weights(from.d.path, *run.model, run.store, 3);
    ScratchDirectory to;
    save_model(to.path, *run.model, run.store, {&source, "", 3});
    for (const char* name :
         {"a.safetensors", "b.safetensors", "config.json", "generation_config.json", "tokenizer_config.json"})
      EXPECT_EQ(read_text_file(to.file(name)), read_text_file(from.d.file(name))) << name << dtype;
    EXPECT_EQ(parse_json(read_text_file(to.file("model.safetensors.index.json")), "index")["weight_map"],
              parse_json(read_text_file(from.d.file("model.safetensors.index.json")), "index")["weight_map"]);
    EXPECT_FALSE(std::filesystem::exists(to.file("pytorch_model.bin")));
    EXPECT_EQ(run.state().size(), from.run->state().size());
    save_model(to.path, *run.model, run.store, {&source, "F32", 2});
    TinyRun again(from.spec, tiny_plan());
    load_weights(to.path, *again.model, again.store, 2);
    EXPECT_EQ(again.weights(), run.weights());
    EXPECT_EQ(parse_json(read_text_file(to.file("config.json")), "config")["torch_dtype"], "float32");
  }
}

TEST(HuggingFaceDirectory, HalfPrecisionThatOverflowsIsRefused) {
  const ShardedQwen from("F16");
  TinyRun run(from.spec, tiny_plan());
  const ModelSource source = load_weights(from.d.path, *run.model, run.store, 1);
  std::vector<float> big(37 * 16, 1e5f);
  run.store.set_parameter(0, run.model->units()[0].parameters[0], big.data());
  ScratchDirectory to;
  EXPECT_THROW(save_model(to.path, *run.model, run.store, {&source, "", 1}), Error);
  save_model(to.path, *run.model, run.store, {&source, "BF16", 1});
}

TEST(HuggingFaceDirectory, DamagedShardsAreNamed) {
  const std::string index = "model.safetensors.index.json";
  ShardedQwen m;
  const std::string good = read_text_file(m.d.file(index)), shard = read_text_file(m.d.file("b.safetensors"));
  m.d.write(index, "{}");
  m.expect_refused("has no weight_map");
  m.d.write(index, R"({"weight_map":{"model.norm.weight":"../a.safetensors"}})");
  m.expect_refused("'../a.safetensors' is not a file of this directory");
  m.d.write(index, R"({"weight_map":{"model.norm.weight":"c.safetensors"}})");
  m.expect_refused("names the shard 'c.safetensors', which is absent");
  m.d.write(index, R"({"weight_map":{"model.none.weight":"a.safetensors"}})");
  m.expect_refused("'model.none.weight' is in 'a.safetensors', which does not have it");
  m.d.write(index, R"({"weight_map":{"model.norm.weight":"a.safetensors"}})");
  m.expect_refused("is missing");
  m.d.write(index, good);
  m.d.write("b.safetensors", shard.substr(0, shard.size() - 3));
  m.expect_refused("b.safetensors");
  std::filesystem::remove(m.d.file(index));
  m.expect_refused("Python pickles");
}

TEST(Configs, EveryFamilyWritesWhatItReads) {
  for (const HfFamily& f : families()) {
    ModelSpec s = tiny_spec(3, false);
    s.family = f.model_type;
    const bool gpt2 = s.family == "gpt2";
    if (!gpt2) {
      s.num_heads = 4, s.num_kv_heads = 2, s.head_size = 8, s.norm_eps = 1e-6;
      s.qkv_bias = s.family == "qwen2", s.qk_norm = s.family == "qwen3";
      s.rope = {"yarn", 5e5, 4.0, 8};
      if (s.family == "mistral") s.windows = {5, 5, 5};
      if (s.family == "qwen3") s.windows = {0, 7, 0};
    }
    nlohmann::ordered_json j = {{"model_type", s.family}};
    f.write(s, j);
    const ModelSpec back = parse_model_spec(j.dump(), "config");
    EXPECT_EQ(back.family, s.family);
    EXPECT_EQ(back.head_dim(), s.head_dim());
    EXPECT_EQ(back.kv_heads(), s.kv_heads());
    EXPECT_EQ(back.qkv_bias, s.qkv_bias);
    EXPECT_EQ(back.qk_norm, s.qk_norm);
    EXPECT_EQ(back.windows, s.windows);
    EXPECT_EQ(back.rope.type, s.rope.type);
    EXPECT_EQ(back.rope.theta, s.rope.theta);
    EXPECT_EQ(back.rope.factor, s.rope.factor);
    EXPECT_EQ(back.norm_eps, s.norm_eps);
    EXPECT_EQ(back.max_position_embeddings, s.max_position_embeddings);
    EXPECT_EQ(back.tied, s.tied);
  }
}

TEST(Configs, WhatIsNotKnownIsRefusedByName) {
  nlohmann::json good = {
      {"vocab_size", 10},       {"hidden_size", 8},         {"intermediate_size", 8},
      {"num_hidden_layers", 2}, {"num_attention_heads", 2}, {"model_type", "llama"},
      {"_name_or_path", "x"},   {"eos_token_id", {1, 2}},   {"quantization_config", nullptr}};
  EXPECT_EQ(parse_model_spec(good.dump(), "c").max_position_embeddings, 2048);
  const std::pair<const char*, nlohmann::json> bad[] = {
      {"quantization_config", {{"bits", 4}}},
      {"hidden_act", "gelu"},
      {"attention_dropout", 0.1},
      {"partial_rotary_factor", 0.5},
      {"num_experts", 8},
      {"rope_scaling", {{"type", "longrope"}}},
      {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}, {"mrope_section", {1, 2}}}},
      {"hidden_size", "8"},
      {"hidden_size", 8.5},
      {"num_attention_heads", 3},
      {"num_hidden_layers", -1},
      {"vocab_size", nullptr},
      {"sliding_window", 5}};
  for (const auto& [key, value] : bad) {
    nlohmann::json j = good;
    j[key] = value;
    try {
      parse_model_spec(j.dump(), "c");
      ADD_FAILURE() << key << " " << value;
    } catch (const Error& e) {
      const std::string what = e.what(), named = std::string(key) == "num_hidden_layers"     ? "num_layers"
                                                 : std::string(key) == "num_attention_heads" ? "num_heads"
                                                                                             : key;
      EXPECT_NE(what.find(named), std::string::npos) << what;
    }
  }
  // null and absence differ where transformers' class has a default of its own
  good["model_type"] = "mistral", good["num_key_value_heads"] = 2;
  EXPECT_EQ(parse_model_spec(good.dump(), "c").window(1), 4096);
  good["sliding_window"] = nullptr;
  EXPECT_EQ(parse_model_spec(good.dump(), "c").window(1), 0);
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
