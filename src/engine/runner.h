#pragma once
// defines: Engine::Runner — turns a Task into calls of templates, copies and the optimizer.

#include "core/error.h"
#include "engine/engine.h"

namespace megatrain {

class Engine::Runner {
 public:
  Runner(Engine& engine, const StepSettings* settings) : e_(engine), settings_(settings) {}
  void operator()(const Task& task, Stream& stream);

 private:
  void* memory(int buffer) const;
  int64_t seq_len() const { return e_.decode_count_ > 0 ? e_.decode_count_ : e_.plan_.seq_len; }
  MicroBatch micro_batch(int m) const;
  KvCache cache(int layer) const;
  OpContext context(Stream& stream) const;
  UnitView weights(int u) const;
  UnitView gradient(int u) const;
  Tensor whole_gradient(int u) const;
  Tensor activation(int layer, int m) const;
  Tensor scalar(int buffer) const;
  const Tensor top(int m) const { return activation(e_.model_.block_count(), m); }
  int64_t host_slot(int task_unit, int task_micro) const;

  void optimize(const Task& task, Stream& stream);
  void optimize_on_host(int u, const AdamWConfig& config, int64_t step, double scale, Stream& stream);
  void optimize_on_device(int u, const AdamWConfig& config, int64_t step, double scale, Stream& stream);
  UnitState planes(int u, int weights_buffer, int states_buffer) const;
  void move(const Task& task, Stream& stream);
  void move_disk(const Task& task, Stream& stream);
  void join_planes(int u, int from, Stream& stream);
  void load_tokens(int m, Stream& stream);
  void head(const Task& task, Stream& stream);
  void block(const Task& task, Stream& stream);
  void read_result(const Task& task, Stream& stream);
  void compute(const Task& task, Stream& stream);
  bool updates_now() const { return e_.plan_.update_in_backward && settings_; }

  Engine& e_;
  const StepSettings* settings_;
};

}  // namespace megatrain
