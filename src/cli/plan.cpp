#include "cli/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpointer.h"
#include "checkpoint/unit_file.h"
#include "cli/commands.h"
#include "cli/timeline_html.h"
#include "core/error.h"
#include "core/say.h"
#include "core/units.h"
#include "data/tokenizer.h"
#include "io/file.h"
#include "io/hf_model.h"
#include "io/machine_file.h"
#include "ops/cuda_workspace.h"

namespace megatrain {

MachineOptions machine_of(const TrainConfig& c) {
  return {c.device,
          c.compute,
          c.memory_limit,
          c.residency,
          c.threads,
          c.micro_batch,
          c.serialize,
          c.poison,
          c.host_memory,
          c.disk,
          c.state_dir.empty() ? c.out_dir + "/states" : c.state_dir,
          c.machine};
}

namespace {

// "5.86 s", "12.3 ms"; minutes and more as everywhere.
std::string short_time(double seconds) {
  if (seconds >= 60) return format_duration(seconds);
  return seconds >= 1 ? fmt::format("{:.2f} s", seconds) : fmt::format("{:.3g} ms", seconds * 1e3);
}

}  // namespace

PlanRequest training_request(const TrainConfig& c, const ModelSpec& spec) {
  PlanRequest r;
  r.batch = c.batch_size, r.seq_len = c.sequence_length;
  r.update_in_backward = c.max_gradient_norm == 0;
  if (c.checkpoint_interval >= 0)
    r.beside.emplace_back("checkpoint writers", CheckpointPolicy{}.threads * (kWriterBytes + kPassingBytes));
  const auto model = make_model(spec);
  r.disk_reserved =
      model->parameter_count() * 4 + (c.checkpoint_interval >= 0 ? 2 * checkpoint_bytes(*model) : 0);
  return r;
}

std::string estimate_text(const Model& model, const MemoryPlan& m, const MachineProfile& machine,
                          int64_t steps) {
  const StepPlan& p = m.step;
  const StepEstimate& e = m.estimate;
  const double tokens = static_cast<double>(p.batch * p.seq_len),
               flops = model.step_flops(p.batch, p.seq_len) / std::max(e.seconds, 1e-12);
  std::string lanes;
  for (int lane = 0; lane < kLanes; ++lane)
    if (e.busy[lane] > 0)
      lanes += fmt::format("{}{} {}", lanes.empty() ? "" : ", ", name_of(static_cast<Lane>(lane)),
                           short_time(e.busy[lane]));
  std::string out = fmt::format(
      "  predicted: {} a step ({}), {} tok/s, {:.3g} model TFLOP/s = {:.0f}% of the matrix rate; bound by "
      "{}\n",
      short_time(e.seconds), lanes, format_count(tokens / e.seconds), flops / 1e12,
      100 * flops / machine.gemm, e.verdict());
  out += fmt::format("  {} steps: {} (profile: {}, {})\n", steps,
                     format_duration(e.seconds * static_cast<double>(steps)), machine.name, machine.source);
  if (m.bytes(Place::disk) > 0)
    out += fmt::format(
        "  states on disk: {} read and {} written a step; written {:.3g} TB a day, {:.3g} TB in the whole "
        "run (a "
        "disk's endurance is given as TBW)\n",
        format_bytes(m.disk_read_bytes), format_bytes(m.disk_written_bytes),
        m.disk_written_bytes / e.seconds * 86400 / 1e12,
        m.disk_written_bytes * static_cast<double>(steps) / 1e12);
  return out;
}

namespace {

/// The config's model, from its own fields, its data's tokenizer or the directory it starts from.
ModelSpec spec_of(const TrainConfig& c) {
  if (!c.init_from.empty()) {
    ModelSpec spec = read_model_spec(c.init_from);
    spec.dropout = c.dropout;
    return spec;
  }
  int64_t vocab = 0;
  const std::vector<DataSet> sets = data_sets("train_data", c.train_data);
  if (c.vocab_size == 0 && !sets.empty())
    if (const auto tokenizer = load_tokenizer(std::filesystem::path(sets[0].path).parent_path().string()))
      vocab = tokenizer->vocab_size();
  return model_spec(c, vocab);
}

int64_t or_else(const std::string& text, const char* option, int64_t usual) {
  if (text == "0") return 0;
  const int64_t n = parse_bytes(text, option);
  return n > 0 ? n : usual;
}

// A machine that is not here: what its profile says, and what the options say instead.
PlanRequest request_elsewhere(const TrainConfig& c, const ModelSpec& spec, const MachineProfile& m) {
  PlanRequest r = training_request(c, spec);
  const bool cuda = m.device == "cuda";
  r.compute = cuda && c.compute != "fp32" ? DType::bf16 : DType::f32;
  r.workspace = cuda ? cuda_workspace_bytes : nullptr;
  r.micro_batch = c.micro_batch, r.residency = c.residency;
  r.micro_batch_tokens = cuda ? 16384 : 4096, r.device_shares_host = !cuda;
  r.device_limit = or_else(c.memory_limit, "memory_limit", m.device_memory);
  r.device_most = std::max(r.device_limit, m.device_memory);
  r.host_available = or_else(c.host_memory, "host_memory", m.host_memory);
  r.disk_available = or_else(c.disk, "disk", m.disk_free);
  r.beside.emplace_back("program, libraries, threads",
                        program_bytes(cuda ? DeviceKind::cuda : DeviceKind::cpu, static_cast<int>(m.cores)));
  r.machine = m;
  return r;
}

nlohmann::ordered_json as_json(const Model& model, const MemoryPlan& m, const MachineProfile& machine,
                               int64_t steps) {
  const StepPlan& p = m.step;
  nlohmann::ordered_json j;
  const double tokens = static_cast<double>(p.batch * p.seq_len), seconds = m.estimate.seconds;
  j["machine"] = machine.name, j["parameters"] = model.parameter_count();
  j["tokens_per_step"] = p.batch * p.seq_len;
  j["micro_batch"] = p.micro_batch, j["micro_batches"] = p.micro_batches(), j["waves"] = p.waves();
  for (const Place place : {Place::device, Place::host, Place::disk}) {
    auto& memory = j["memory"][name_of(place)];
    memory["bytes"] = m.bytes(place), memory["available"] = m.limit(place);
    for (const MemoryLine& l : m.lines)
      if (l.place == place) memory["lines"][l.what] = l.bytes;
  }
  for (int u = 0; u < model.unit_count(); ++u) {
    const UnitHomes h = home_of(p.homes, u);
    j["homes"].push_back(
        {name_of(h.weights), name_of(h.states), p.gradients_rest() ? name_of(h.gradient) : "none"});
  }
  for (int l = 0; l < model.block_count(); ++l) j["levels"].push_back(p.level(l));
  j["resident_blocks"] = p.resident_blocks, j["offloaded_inputs"] = p.offloaded_inputs;
  auto& e = j["predicted"];
  e["step_seconds"] = seconds, e["tokens_per_second"] = tokens / seconds;
  e["model_flops_per_second"] = model.step_flops(p.batch, p.seq_len) / seconds;
  e["mfu"] = model.step_flops(p.batch, p.seq_len) / seconds / machine.gemm;
  e["bound_by"] = m.estimate.verdict(), e["run_seconds"] = seconds * static_cast<double>(steps);
  for (int lane = 0; lane < kLanes; ++lane)
    e["busy_seconds"][name_of(static_cast<Lane>(lane))] = m.estimate.busy[lane];
  e["disk_read_bytes"] = m.disk_read_bytes, e["disk_written_bytes"] = m.disk_written_bytes;
  return j;
}

void write_timeline(const std::string& path, const Model& model, const MemoryPlan& m,
                    const MachineProfile& machine, const std::string& text) {
  constexpr int64_t kMostTasks = 40'000;
  StepPlan p = m.step;
  // A long step: its first waves say enough.
  const int64_t per_wave = (2 * model.block_count() + 4) * p.wave_size();
  const int64_t waves = std::clamp<int64_t>(kMostTasks / per_wave, 1, p.waves());
  if (waves < p.waves()) p.batch = p.micro_batch * p.wave_size() * waves;
  CostModel costs(model, machine);
  const StepBuffers buffers(model, p);
  const Schedule s = steady_step(model, p, buffers);
  const std::string title = fmt::format(
      "megatrain plan: {} parameters on {}{}", format_count(static_cast<double>(model.parameter_count())),
      machine.name,
      waves < m.step.waves() ? fmt::format(", the first {} of {} waves", waves, m.step.waves()) : "");
  write_file_atomically(path, timeline_html(s, simulate(s, p, costs), title, text));
}

}  // namespace

int run_plan(const TrainConfig& c, const PlanOptions& o) {
  validate(c);
  const ModelSpec spec = spec_of(c);
  const auto model = make_model(spec);
  MemoryPlan plan;
  MachineProfile machine;
  if (!c.machine.empty()) {
    machine = load_machine(c.machine);
    plan = plan_step(*model, request_elsewhere(c, spec, machine));
  } else {
    const Session s = Session::plan_for(spec, training_request(c, spec), machine_of(c));
    plan = s.plan, machine = s.profile;
  }
  const std::string text = fmt::format("model: {} parameters ({})\nplan: {}\n{}{}",
                                       format_count(static_cast<double>(model->parameter_count())),
                                       spec.family, plan_text(*model, plan), memory_table(plan),
                                       estimate_text(*model, plan, machine, c.num_steps));
  if (o.json)
    say("{}\n", as_json(*model, plan, machine, c.num_steps).dump(2));
  else
    say("{}", text);
  if (!o.timeline.empty()) {
    write_timeline(o.timeline, *model, plan, machine, text);
    if (!o.json) say("timeline: {}\n", o.timeline);
  }
  return 0;
}

}  // namespace megatrain
