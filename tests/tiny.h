#pragma once
// defines: tiny_spec, TinyRun — small models on the CPU device for the engine's tests.

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <vector>

#include "core/rng.h"
#include "device_choice.h"
#include "engine/engine.h"

namespace megatrain {

inline ModelSpec tiny_spec(int64_t layers = 4, bool tied = true) {
  ModelSpec s;
  s.vocab_size = 37, s.hidden_size = 16, s.num_layers = layers, s.num_heads = 2;
  s.intermediate_size = 64, s.max_position_embeddings = 16, s.tied = tied, s.init_std = 0.1;
  return s;
}

/// One training run of a tiny model; everything that may change the bits is an argument.
struct TinyRun {
  TinyRun(const ModelSpec& spec, const StepPlan& plan, Engine::Options options = {}, int threads = 2)
      : model(make_model(spec)), device(test_device(threads)), store(*device, *model, store_options(plan)) {
    ThreadPool pool(threads);
    store.initialize(7, pool);
    options.host_threads = threads;
    engine = std::make_unique<Engine>(*device, *model, store, plan, options);
  }

  static StoreOptions store_options(const StepPlan& plan) {
    static std::atomic<int> count{0};
    StoreOptions o = plan.store_options();
    o.state_dir =
        (std::filesystem::temp_directory_path() / "megatrain-states-").string() + std::to_string(getpid());
    o.state_owner = "-" + std::to_string(count++);
    return o;
  }

  static std::vector<int32_t> batch(const ModelSpec& spec, const StepPlan& plan, int step, int shift) {
    std::vector<int32_t> out(static_cast<size_t>(plan.batch * plan.seq_len));
    for (size_t i = 0; i < out.size(); ++i)
      out[i] =
          static_cast<int32_t>(random_u32(11, static_cast<uint64_t>(step), i + static_cast<size_t>(shift)) %
                               static_cast<uint32_t>(spec.vocab_size));
    return out;
  }

  std::vector<double> train(int steps, double clip = 0.5) {
    std::vector<double> losses;
    for (int s = 0; s < steps; ++s) {
      const auto tokens = batch(model->spec(), engine->plan(), s, 0);
      auto targets = batch(model->spec(), engine->plan(), s, 1);
      targets[static_cast<size_t>(s) + 1] = -1;
      StepSettings settings;
      settings.optimizer.learning_rate = 1e-2;
      settings.max_gradient_norm = clip;
      settings.seed = 3;
      const StepResult r = engine->train_step(tokens.data(), targets.data(), settings);
      losses.push_back(r.loss), losses.push_back(r.gradient_norm);
    }
    engine->finish_update();
    return losses;
  }

  /// Every bit of weights and moments.
  std::vector<uint32_t> state() const {
    std::vector<uint32_t> out;
    for (int u = 0; u < model->unit_count(); ++u) {
      const int64_t n = model->units()[static_cast<size_t>(u)].numel;
      const auto hi = plane<uint16_t>(u, Plane::hi), lo = plane<uint16_t>(u, Plane::lo);
      const auto m = plane<uint32_t>(u, Plane::m), v = plane<uint32_t>(u, Plane::v);
      for (size_t i = 0; i < static_cast<size_t>(n); ++i)
        for (uint32_t bits : {static_cast<uint32_t>(hi[i]) << 16 | lo[i], m[i], v[i]}) out.push_back(bits);
    }
    return out;
  }
  template <class T>
  std::vector<T> plane(int u, Plane p) const {
    std::vector<T> out(static_cast<size_t>(model->units()[static_cast<size_t>(u)].numel));
    store.read(u, p, 0, out.data(), static_cast<int64_t>(out.size() * sizeof(T)));
    return out;
  }
  /// Master weights as fp32.
  std::vector<float> weights() const {
    std::vector<float> out;
    for (int u = 0; u < model->unit_count(); ++u) {
      const auto hi = plane<uint16_t>(u, Plane::hi), lo = plane<uint16_t>(u, Plane::lo);
      for (size_t i = 0; i < hi.size(); ++i) out.push_back(join_float(hi[i], lo[i]));
    }
    return out;
  }

  std::unique_ptr<Model> model;
  std::unique_ptr<Device> device;
  StateStore store;
  std::unique_ptr<Engine> engine;
};

inline StepPlan tiny_plan(int64_t batch = 14, int64_t micro_batch = 2) {
  StepPlan p;
  p.batch = batch, p.seq_len = 12, p.micro_batch = micro_batch;
  p.compute = test_choice().compute, p.workspace = test_choice().workspace;
  return p;
}

}  // namespace megatrain
