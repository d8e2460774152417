#pragma once
// defines: Golden — a PyTorch fixture (scripts/make_goldens.py) and an engine made from it.

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "device_choice.h"
#include "engine/engine.h"
#include "io/hf_model.h"
#include "io/safetensors.h"
#include "optim/lr_schedule.h"

namespace megatrain {

struct Golden {
  explicit Golden(const std::string& name) : file(std::string(MT_GOLDEN_DIR) + "/" + name + ".safetensors") {
    json = nlohmann::json::parse(file.metadata().at("spec"));
    spec = parse_model_spec(file.metadata().at("config"), name);
    batch = json["batch"], seq_len = json["seq_len"], steps = json["steps"];
    model = make_model(spec);
  }

  void load(StateStore& store) const {
    for (int u = 0; u < model->unit_count(); ++u)
      for (const Parameter& p : model->units()[static_cast<size_t>(u)].parameters)
        store.set_parameter(u, p, values("weight." + p.name).data());
  }
  std::vector<float> values(const std::string& name) const {
    const SafetensorsEntry* e = file.find(name);
    if (!e) throw std::runtime_error("golden has no " + name);
    std::vector<float> v(static_cast<size_t>(e->numel()));
    file.read_f32(*e, v.data());
    return v;
  }
  /// Of one step: [batch, seq_len].
  const int32_t* ints(const std::string& name, int step) const {
    std::vector<int32_t>& all = ints_[name];
    if (all.empty()) {
      const SafetensorsEntry* e = file.find(name);
      all.resize(static_cast<size_t>(e->numel()));
      file.read_bytes(*e, 0, e->bytes, all.data());
    }
    return all.data() + step * batch * seq_len;
  }
  StepPlan plan(int64_t micro_batch) const {
    StepPlan p;
    p.batch = batch, p.seq_len = seq_len, p.micro_batch = micro_batch;
    p.compute = test_choice().compute, p.workspace = test_choice().workspace;
    return p;
  }
  StepSettings settings(int step) const {
    const double lr = json["learning_rate"];
    StepSettings s;
    s.optimizer.weight_decay = json["weight_decay"];
    s.optimizer.learning_rate = learning_rate_at(
        {"cosine_nanogpt", lr, lr / 10, json["warmup"], steps - json["warmup"].get<int64_t>()}, step);
    s.max_gradient_norm = json["clip"];
    return s;
  }

  SafetensorsFile file;
  nlohmann::json json;
  ModelSpec spec;
  std::unique_ptr<Model> model;
  int64_t batch, seq_len, steps;

 private:
  mutable std::map<std::string, std::vector<int32_t>> ints_;
};

/// ||a - b|| / ||b||, or ||a|| where b is zero.
inline double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double d = 0, n = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    d += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    n += static_cast<double>(b[i]) * b[i];
  }
  return n > 0 ? std::sqrt(d / n) : std::sqrt(d);
}

}  // namespace megatrain
