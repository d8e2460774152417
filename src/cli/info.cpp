// info: a model directory in a page.
#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <map>

#include "cli/commands.h"
#include "core/error.h"
#include "core/units.h"
#include "data/chat/template.h"
#include "device/cpu/host_memory.h"
#include "io/hf_model.h"
#include "ops/cuda_workspace.h"

namespace fs = std::filesystem;

namespace megatrain {
namespace {

std::string bytes(double n) {
  return format_bytes(n);
}

void print_architecture(const ModelSpec& s, const Model& model) {
  fmt::print("architecture\n  {:<26}{}\n", "family", s.family);
  const std::pair<const char*, int64_t> sizes[] = {
      {"hidden_size", s.hidden_size}, {"num_layers", s.num_layers},
      {"num_heads", s.num_heads},     {"num_kv_heads", s.kv_heads()},
      {"head_dim", s.head_dim()},     {"intermediate_size", s.intermediate_size},
      {"vocab_size", s.vocab_size},   {"max_position_embeddings", s.max_position_embeddings}};
  for (const auto& [name, value] : sizes) fmt::print("  {:<26}{}\n", name, value);
  fmt::print("  {:<26}{}\n", "tied embeddings", s.tied ? "yes" : "no");
  if (s.family != "gpt2")
    fmt::print("  {:<26}{}, theta {}{}\n", "rotary positions", s.rope.type, s.rope.theta,
               s.rope.type == "default" ? "" : fmt::format(", factor {}", s.rope.factor));
  std::map<int64_t, int64_t> windows;
  for (int64_t l = 0; l < s.num_layers; ++l) ++windows[s.window(l)];
  for (const auto& [window, layers] : windows)
    if (window > 0) fmt::print("  {:<26}{} tokens in {} layers\n", "attention window", window, layers);
  const int64_t total = model.parameter_count(), block = model.units()[1].parameter_count();
  fmt::print("  {:<26}{} ({} a block, {} in the ends)\n", "parameters",
             format_count(static_cast<double>(total)), format_count(static_cast<double>(block)),
             format_count(static_cast<double>(total - block * s.num_layers)));
}

void print_files(const std::string& directory) {
  double total = 0;
  int files = 0;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().extension() == ".safetensors") total += static_cast<double>(entry.file_size()), ++files;
  fmt::print("weights\n  {:<26}{} in {} safetensors file{}\n", "on disk", bytes(total), files,
             files == 1 ? "" : "s");
}

void print_tokenizer(const std::string& directory, const ModelSpec& spec) {
  fmt::print("tokenizer\n");
  const auto t = load_tokenizer(directory);
  if (!t) {
    fmt::print("  none\n");
    return;
  }
  fmt::print("  {:<26}{}, {} tokens{}\n", "kind", t->kind(), t->vocab_size(),
             t->vocab_size() > spec.vocab_size ? "  MORE THAN THE MODEL HAS" : "");
  if (t->end_of_text() >= 0)
    fmt::print("  {:<26}{} ({})\n", "end of text", t->decode(t->end_of_text()), t->end_of_text());
  const auto format = ChatFormat::load(directory);
  fmt::print("  {:<26}{}\n", "chat template", format ? "yes" : "no");
  if (!format) return;
  const nlohmann::ordered_json messages = {{{"role", "user"}, {"content", "Hello"}}};
  try {
    fmt::print("  {:<26}{}\n", "  \"Hello\" becomes",
               nlohmann::json(format->render(messages, true).text).dump());
  } catch (const Error& e) {
    fmt::print("  {:<26}{}\n", "  it refuses", e.what());
  }
}

// The least that a step streams through, by the planner's own sums.
int64_t least_device_memory(const Model& model, int64_t tokens) {
  PlanRequest r;
  r.batch = r.micro_batch = 1, r.seq_len = tokens, r.device_shares_host = false;
  r.compute = DType::bf16, r.workspace = cuda_workspace_bytes;
  return least_device_bytes(model, r);
}

void print_training(const ModelSpec& s, const Model& model, const MachineOptions& machine) {
  const auto n = static_cast<double>(StateStore::bytes_needed(model, true));
  const double clipped = n / 12 * 16;
  const DeviceChoice choice = choose_device(machine.device, machine.compute);
  const auto here = static_cast<double>(available_host_memory()) * 0.9;
  fmt::print("training\n  {:<26}{} (weights 4, Adam 8 bytes a parameter)\n", "host memory", bytes(n));
  fmt::print("  {:<26}{} (gradients wait 4 bytes a parameter for the norm)\n", "  with clipping",
             bytes(clipped));
  if (choice.usable_memory > 0)
    fmt::print("  {:<26}{} on {}\n", "  this machine offers",
               bytes(static_cast<double>(choice.usable_memory)), choice.name);
  fmt::print("  {:<26}{} of host memory: {}\n", choice.usable_memory > 0 ? "" : "  this machine offers",
             bytes(here),
             here >= clipped ? "enough"
             : here >= n     ? "enough with max_gradient_norm: 0, or with device memory or the disk"
                             : "less; what device memory does not take goes to the disk");
  fmt::print("  {:<26}megatrain plan --init-from DIR says where everything would live and how fast it is\n",
             "");
  const int64_t tokens = std::min<int64_t>(s.max_position_embeddings, 2048);
  fmt::print("  {:<26}{} in bf16 for one sequence of {} tokens; more makes it faster\n",
             "device memory, at least", bytes(static_cast<double>(least_device_memory(model, tokens))),
             tokens);
  fmt::print("  {:<26}{:.3g} GFLOP a token forward and backward\n", "compute",
             model.step_flops(1, tokens) / static_cast<double>(tokens) / 1e9);
}

}  // namespace

int run_info(const std::string& directory, const MachineOptions& machine) {
  const ModelSpec spec = read_model_spec(directory);
  const auto model = make_model(spec);
  print_architecture(spec, *model);
  print_files(directory);
  print_tokenizer(directory, spec);
  print_training(spec, *model, machine);
  return 0;
}

}  // namespace megatrain
