#include "schedule/builder.h"

#include <algorithm>

namespace megatrain {
namespace {

// Appends tasks and derives the waits: for each access, the conflicting earlier tasks on other lanes that
// are not already known to have ended. check() verifies the result without using this code.
class Builder {
 public:
  Builder(const Model& model, const StepPlan& plan, const StepBuffers& buffers, const StartState& start)
      : model_(model), plan_(plan), b_(buffers), lives_(buffers.list().size()) {
    s_.buffers = buffers.list();
    version_.assign(static_cast<size_t>(model.unit_count()), 0);
    gradient_version_.assign(version_.size() + 1, 0);
    in_buffer_.assign(buffers.list().size(), -1);
    for (int u = 0; u < model.unit_count(); ++u) {
      initial(b_.host_weights(u)) = weights(u);
      if (start.pending_update) initial(b_.host_gradient(u)) = gradient(u, full(u));
      if (start.loaded[static_cast<size_t>(u)]) {
        initial(b_.weights(u)) = weights(u);
        in_buffer_[static_cast<size_t>(b_.weights(u))] = u;
      }
    }
    pending_.assign(version_.size(), start.pending_update);
  }

  Schedule finish(const std::string& name) {
    s_.name = name;
    mark_frees(s_);
    return std::move(s_);
  }

  int waves() const { return static_cast<int>(plan_.waves()); }
  int micros() const { return static_cast<int>(plan_.micro_batches()); }

  // Micro-batches [first_, last_) are the ones that forward(), head() and backward() speak of.
  void begin_wave(int wave) {
    const int size = static_cast<int>(plan_.wave_size());
    first_ = wave * size, last_ = std::min(first_ + size, micros());
  }

  // The unit's update first (if one is pending), then its weights, unless the buffer has them.
  void load(int u) {
    optimize_pending(u);
    const int w = b_.weights(u);
    int& held = in_buffer_[static_cast<size_t>(w)];
    if (held == u) return;
    held = u;
    std::vector<Access> a = {read(b_.host_weights(u), weights(u)), write(w, weights(u))};
    if (b_.staging() >= 0) a.push_back(write(b_.staging(), {Holds::scratch}));
    add(TaskKind::load_weights, Lane::h2d, u, -1, std::move(a));
  }

  void optimize_pending(int u) {
    if (!pending_[static_cast<size_t>(u)]) return;
    pending_[static_cast<size_t>(u)] = false;
    optimize(u, full(u));
  }

  void load_tokens() {
    for (int m = first_; m < last_; ++m)
      add(TaskKind::load_tokens, Lane::h2d, -1, m, {write(b_.tokens(m), tokens(m))});
  }

  void forward() {
    load(0);
    for (int m = first_; m < last_; ++m)
      compute(TaskKind::embed_forward, 0, m,
              {read(b_.weights(0), weights(0)), read(b_.tokens(m), tokens(m)),
               write(b_.activation(0, m), activation(0, m))});
    for (int l = 0; l < model_.block_count(); ++l) {
      const int u = model_.block_unit(l);
      load(u);
      for (int m = first_; m < last_; ++m)
        compute(TaskKind::block_forward, u, m,
                {read(b_.weights(u), weights(u)), read(b_.tokens(m), tokens(m)),
                 read(b_.activation(l, m), activation(l, m)),
                 write(b_.activation(l + 1, m), activation(l + 1, m)), scratch()});
    }
    load(model_.head_unit());
  }

  void head(TaskKind kind) {
    const int u = model_.head_unit(), top = model_.block_count();
    const bool backward = kind == TaskKind::head_loss;
    if (backward) begin_gradient(u);
    for (int m = first_; m < last_; ++m) {
      std::vector<Access> a = {read(b_.weights(u), weights(u)), read(b_.tokens(m), tokens(m)), scratch()};
      a.push_back(backward ? update(b_.activation(top, m), activation(top, m), dactivation(top, m))
                           : read(b_.activation(top, m), activation(top, m)));
      if (kind == TaskKind::head_logits)
        a.push_back(write(b_.logits(), {Holds::result, -1, m}));
      else
        a.push_back(write(b_.loss(m), {Holds::result, -1, m}));
      if (backward) a.push_back(accumulate(u));
      compute(kind, u, m, std::move(a));
      if (kind == TaskKind::head_logits) read_back({read(b_.logits(), {Holds::result, -1, m})}, m);
    }
    if (kind == TaskKind::head_logits) return;
    for (int m = first_; m < last_; ++m) read_back({read(b_.loss(m), {Holds::result, -1, m})}, m);
    if (backward && u != 0) end_gradient(u);
  }

  void backward() {
    const int top = model_.block_count();
    for (int l = top - 1; l >= 0; --l) {
      const int u = model_.block_unit(l);
      load(u);
      begin_gradient(u);
      for (int m = first_; m < last_; ++m)
        compute(TaskKind::block_backward, u, m,
                {read(b_.weights(u), weights(u)), read(b_.tokens(m), tokens(m)),
                 read(b_.activation(l, m), activation(l, m)),
                 update(b_.activation(top, m), dactivation(l + 1, m), dactivation(l, m)), accumulate(u),
                 scratch()});
      end_gradient(u);
    }
    const int e = b_.embedding_gradient_unit();
    begin_gradient(e);
    for (int m = first_; m < last_; ++m)
      compute(TaskKind::embed_backward, e, m,
              {read(b_.tokens(m), tokens(m)), read(b_.activation(top, m), dactivation(0, m)), accumulate(e)});
    if (e != 0 && last_ == micros())
      compute(TaskKind::add_gradient, 0, -1, {read(b_.gradient(e), gradient(e, micros())), accumulate(0)});
    end_gradient(0);
  }

 private:
  struct Life {
    int writer = -1;
    std::vector<int> readers;
  };

  Content weights(int u) const { return {Holds::weights, u, -1, version_[static_cast<size_t>(u)]}; }
  static Content gradient(int u, int version) { return {Holds::gradient, u, -1, version}; }
  static Content activation(int l, int m) { return {Holds::activation, l, m}; }
  static Content dactivation(int l, int m) { return {Holds::activation_gradient, l, m}; }
  static Content tokens(int m) { return {Holds::tokens, -1, m}; }
  Access scratch() const { return write(b_.work(), {Holds::scratch}); }
  Content& initial(int buffer) { return s_.buffers[static_cast<size_t>(buffer)].initial; }
  // Additions that make a gradient whole: one a micro-batch, and for a tied unit the embedding's part.
  int full(int u) const { return micros() + (u == 0 && model_.spec().tied); }

  // First wave: zeros. Later: the sum so far, which is still in the buffer or comes back from the host.
  void begin_gradient(int u) {
    int& v = gradient_version_[static_cast<size_t>(u)];
    if (first_ == 0) {
      v = 0;
      compute(TaskKind::zero_gradient, u, -1, {write(b_.gradient(u), gradient(u, 0))});
    } else if (!b_.keeps_gradient(u)) {
      add(TaskKind::load_gradient, Lane::h2d, u, -1,
          {read(b_.host_gradient(u), gradient(u, v)), write(b_.gradient(u), gradient(u, v))});
    }
  }

  Access accumulate(int u) {
    int& v = gradient_version_[static_cast<size_t>(u)];
    ++v;
    return update(b_.gradient(u), gradient(u, v - 1), gradient(u, v));
  }

  void end_gradient(int u) {
    const bool last = last_ == micros();
    if (!last && b_.keeps_gradient(u)) return;
    const Content g = gradient(u, gradient_version_[static_cast<size_t>(u)]), norm{Holds::result, u};
    std::vector<Access> offload = {read(b_.gradient(u), g), write(b_.host_gradient(u), g)};
    if (last) {
      compute(TaskKind::gradient_norm, u, -1, {read(b_.gradient(u), g), write(b_.norm(u), norm)});
      offload.push_back(read(b_.norm(u), norm)), offload.push_back(host_result());
    }
    add(TaskKind::offload_gradient, Lane::d2h, u, last ? -1 : last_, std::move(offload));
    if (last && plan_.update_in_backward) optimize(u, full(u));
  }

  void optimize(int u, int gradient_version) {
    const Content before = weights(u);
    ++version_[static_cast<size_t>(u)];
    int& held = in_buffer_[static_cast<size_t>(b_.weights(u))];
    if (held == u) held = -1;  // the device copy is now out of date
    add(TaskKind::optimize, Lane::host, u, -1,
        {update(b_.host_weights(u), before, weights(u)),
         read(b_.host_gradient(u), gradient(u, gradient_version))});
  }

  Access host_result() const { return write(b_.host_results(), {Holds::result}); }

  void read_back(std::vector<Access> a, int m) {
    a.push_back(host_result());
    add(TaskKind::read_back, Lane::d2h, -1, m, std::move(a));
  }

  void compute(TaskKind kind, int u, int m, std::vector<Access> a) {
    add(kind, Lane::compute, u, m, std::move(a));
  }

  void add(TaskKind kind, Lane lane, int u, int m, std::vector<Access> accesses) {
    const int index = static_cast<int>(s_.tasks.size());
    std::vector<int> needs;
    for (const Access& a : accesses) {
      Life& life = lives_[static_cast<size_t>(a.buffer)];
      if (life.writer >= 0) needs.push_back(life.writer);
      if (a.writes) {
        needs.insert(needs.end(), life.readers.begin(), life.readers.end());
        life = {index, {}};
      } else {
        life.readers.push_back(index);
      }
    }
    Task t{kind, lane, u, m, std::move(accesses), {}, {}};
    t.waits = minimal_waits(lane, std::move(needs));
    s_.tasks.push_back(std::move(t));
  }

  // Latest first, so that one wait often covers the rest.
  std::vector<int> minimal_waits(Lane lane, std::vector<int> needs) {
    std::sort(needs.rbegin(), needs.rend());
    needs.erase(std::unique(needs.begin(), needs.end()), needs.end());
    const auto l = static_cast<size_t>(lane);
    std::vector<int> clock =
        tail_[l] < 0 ? std::vector<int>(kLanes, -1) : clocks_[static_cast<size_t>(tail_[l])];
    std::vector<int> waits;
    for (int n : needs) {
      const Task& other = s_.tasks[static_cast<size_t>(n)];
      if (other.lane == lane || clock[static_cast<size_t>(other.lane)] >= n) continue;
      waits.push_back(n);
      for (size_t i = 0; i < kLanes; ++i) clock[i] = std::max(clock[i], clocks_[static_cast<size_t>(n)][i]);
    }
    tail_[l] = static_cast<int>(s_.tasks.size());
    clock[l] = tail_[l];
    clocks_.push_back(std::move(clock));  // what has surely ended once this task has
    return waits;
  }

  const Model& model_;
  const StepPlan& plan_;
  const StepBuffers& b_;
  Schedule s_;
  std::vector<Life> lives_;
  std::vector<int> version_, gradient_version_;
  std::vector<int> in_buffer_;  // unit whose current weights each buffer holds
  std::vector<bool> pending_;
  int first_ = 0, last_ = 0;
  std::vector<std::vector<int>> clocks_;
  int tail_[kLanes] = {-1, -1, -1, -1};
};

}  // namespace

Schedule build_train_step(const Model& model, const StepPlan& plan, const StepBuffers& buffers,
                          const StartState& start) {
  Builder b(model, plan, buffers, start);
  for (int w = 0; w < b.waves(); ++w) {
    b.begin_wave(w);
    b.load_tokens();
    b.forward();
    b.head(TaskKind::head_loss);
    b.backward();
  }
  return b.finish("train step");
}

Schedule build_update(const Model& model, const StepPlan& plan, const StepBuffers& buffers) {
  StartState start{true, std::vector<bool>(static_cast<size_t>(model.unit_count()), false)};
  Builder b(model, plan, buffers, start);
  for (int u = 0; u < model.unit_count(); ++u) b.optimize_pending(u);
  return b.finish("update");
}

Schedule build_forward(const Model& model, const StepPlan& plan, const StepBuffers& buffers,
                       const StartState& start, ForwardGoal goal) {
  Builder b(model, plan, buffers, start);
  for (int w = 0; w < b.waves(); ++w) {
    b.begin_wave(w);
    b.load_tokens();
    b.forward();
    b.head(goal == ForwardGoal::loss ? TaskKind::head_eval : TaskKind::head_logits);
  }
  return b.finish(goal == ForwardGoal::loss ? "evaluation" : "generation");
}

}  // namespace megatrain
