#include "fuzz/targets.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "core/error.h"
#include "data/chat/template.h"
#include "data/tokenizer.h"
#include "io/hf_model.h"
#include "io/safetensors.h"

namespace megatrain::fuzz {
namespace {

std::string text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// A refusal is what should happen; anything else that is thrown is a fault.
template <class F>
void refusing(F&& f) {
  try {
    f();
  } catch (const Error&) {
  }
}

}  // namespace

void safetensors(const uint8_t* data, size_t size) {
  const int fd = memfd_create("fuzz", 0);
  if (fd < 0 || write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  refusing([&] {
    const SafetensorsFile file("/proc/self/fd/" + std::to_string(fd));
    for (const auto& [name, e] : file.entries()) {
      if (!is_float_dtype(e.dtype)) continue;
      std::vector<float> values(static_cast<size_t>(e.numel()));
      file.read_f32(e, values.data());
      std::vector<float> again(values.size());
      encode_f32(values.data(), e.numel(), e.dtype, again.data());
    }
  });
  close(fd);
}

void config(const uint8_t* data, size_t size) {
  refusing([&] {
    const ModelSpec spec = parse_model_spec(text_of(data, size), "config.json");
    if (spec.num_layers <= 64 && spec.num_heads <= 1024) make_model(spec);
  });
}

void tokenizer(const uint8_t* data, size_t size) {
  const std::string all = text_of(data, size);
  const size_t end = all.find('\0');
  refusing([&] {
    const auto t = parse_tokenizer(all.substr(0, end), "tokenizer.json");
    std::vector<int32_t> ids;
    t->encode(end == std::string::npos ? std::string("Hello  world 12 \u00e9") : all.substr(end + 1), ids);
    for (int32_t id : t->with_special_tokens(ids)) t->decode(id);
  });
}

void chat_template(const uint8_t* data, size_t size) {
  static const auto context = nlohmann::ordered_json::parse(
      R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"h\u00e9"},
          {"role":"assistant","content":"a","tool_calls":[{"function":{"name":"f","arguments":{"x":[1,2.5,null]}}}]}],
          "add_generation_prompt":true,"tools":null,"bos_token":"<s>","eos_token":"</s>"})");
  refusing([&] { ChatTemplate(text_of(data, size), "t").render(context); });
}

}  // namespace megatrain::fuzz
