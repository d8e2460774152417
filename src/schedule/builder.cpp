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
      holds(b_.home_weights(u), u), initial(b_.home_weights(u)) = weights(u);
      holds(b_.home_states(u), u), initial(b_.home_states(u)) = states(u);
      if (start.pending_update) {
        holds(b_.home_gradient(u), u), initial(b_.home_gradient(u)) = gradient(u, full(u));
        gradient_version_[static_cast<size_t>(u)] = full(u);
      }
      if (start.loaded[static_cast<size_t>(u)]) holds(b_.weights(u), u), initial(b_.weights(u)) = weights(u);
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

  // Updates that run on the device take little time and wait for nobody: before anything else.
  void optimize_on_device() {
    for (int u = 0; u < model_.unit_count(); ++u)
      if (on_device(u)) optimize_pending(u);
  }

  // The unit's update first (if one is pending), then its weights, unless the buffer has them.
  void load(int u) {
    optimize_pending(u);
    const int to = b_.weights(u);
    if (holds_current(to, u)) return;
    if (!holds_current(b_.host_weights(u), u) && home_of(plan_.homes, u).weights == Place::disk)
      move(TaskKind::read_weights, Lane::disk_read, u, b_.home_weights(u), b_.host_weights(u), weights(u));
    const int from =
        home_of(plan_.homes, u).weights == Place::device ? b_.home_weights(u) : b_.host_weights(u);
    std::vector<Access> a = {read(from, weights(u)), write(to, weights(u))};
    if (b_.staging() >= 0) a.push_back(write(b_.staging(), {Holds::scratch}));
    holds(to, u);
    add(TaskKind::load_weights, Lane::h2d, u, -1, std::move(a));
  }

  void optimize_pending(int u) {
    if (!pending_[static_cast<size_t>(u)]) return;
    pending_[static_cast<size_t>(u)] = false;
    optimize(u);
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
      for (int m = first_; m < last_; ++m) {
        std::vector<Access> a = {read(b_.weights(u), weights(u)), read(b_.tokens(m), tokens(m)),
                                 read(b_.activation(l, m), activation(l, m)),
                                 write(b_.activation(l + 1, m), activation(l + 1, m)), scratch()};
        if (saves_ && b_.saved(l, m) >= 0) a.push_back(write(b_.saved(l, m), saved(l, m)));
        compute(TaskKind::block_forward, u, m, std::move(a));
        if (saves_ && b_.host_activation(l, m) >= 0)
          move(TaskKind::offload_input, Lane::d2h, u, b_.activation(l, m), b_.host_activation(l, m),
               activation(l, m), m);
      }
    }
    load(model_.head_unit());
  }
  // Forward for a backward that follows: block inputs and what levels keep are put by.
  void keep_activations() { saves_ = true; }

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
      for (int m = first_; m < last_; ++m) {
        if (b_.host_activation(l, m) >= 0)
          move(TaskKind::load_input, Lane::h2d, u, b_.host_activation(l, m), b_.activation(l, m),
               activation(l, m), m);
        std::vector<Access> a = {read(b_.weights(u), weights(u)),
                                 read(b_.tokens(m), tokens(m)),
                                 read(b_.activation(l, m), activation(l, m)),
                                 update(b_.activation(top, m), dactivation(l + 1, m), dactivation(l, m)),
                                 accumulate(u),
                                 scratch()};
        if (b_.saved(l, m) >= 0) a.push_back(update(b_.saved(l, m), saved(l, m), {Holds::scratch}));
        compute(TaskKind::block_backward, u, m, std::move(a));
      }
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
  Content states(int u) const { return {Holds::states, u, -1, version_[static_cast<size_t>(u)]}; }
  static Content saved(int l, int m) { return {Holds::saved, l, m}; }
  static Content gradient(int u, int version) { return {Holds::gradient, u, -1, version}; }
  static Content activation(int l, int m) { return {Holds::activation, l, m}; }
  static Content dactivation(int l, int m) { return {Holds::activation_gradient, l, m}; }
  static Content tokens(int m) { return {Holds::tokens, -1, m}; }
  Access scratch() const { return write(b_.work(), {Holds::scratch}); }
  Content& initial(int buffer) { return s_.buffers[static_cast<size_t>(buffer)].initial; }
  // Additions that make a gradient whole: one a micro-batch, and for a tied unit the embedding's part.
  int full(int u) const { return micros() + (u == 0 && model_.spec().tied); }

  // First wave: zeros. Later: the sum so far, which is still in the buffer or comes back from its home.
  void begin_gradient(int u) {
    int& v = gradient_version_[static_cast<size_t>(u)];
    if (first_ == 0) {
      v = 0;
      compute(TaskKind::zero_gradient, u, -1, {write(b_.gradient(u), gradient(u, 0))});
    } else if (!b_.keeps_gradient(u)) {
      load_gradient(u);
    }
  }

  // From where it rests to the device.
  void load_gradient(int u) {
    const Content g = gradient(u, gradient_version_[static_cast<size_t>(u)]);
    if (b_.gradient(u) == b_.home_gradient(u)) return;
    if (b_.home_gradient(u) != b_.host_gradient(u))
      move(TaskKind::read_gradient, Lane::disk_read, u, b_.home_gradient(u), b_.host_gradient(u), g);
    move(TaskKind::load_gradient, Lane::h2d, u, b_.host_gradient(u), b_.gradient(u), g);
  }

  // From where it rests, or from the device where it does not, to host memory.
  void fetch_gradient(int u) {
    const Content g = gradient(u, gradient_version_[static_cast<size_t>(u)]);
    const int home = b_.home_gradient(u);
    if (home == b_.host_gradient(u)) return;
    if (home < 0 || home == b_.gradient(u))
      move(TaskKind::offload_gradient, Lane::d2h, u, b_.gradient(u), b_.host_gradient(u), g);
    else
      move(TaskKind::read_gradient, Lane::disk_read, u, home, b_.host_gradient(u), g);
  }

  // To where it rests.
  void rest_gradient(int u) {
    const Content g = gradient(u, gradient_version_[static_cast<size_t>(u)]);
    const int home = b_.home_gradient(u);
    if (home < 0 || home == b_.gradient(u)) return;
    move(TaskKind::offload_gradient, Lane::d2h, u, b_.gradient(u), b_.host_gradient(u), g,
         last_ == micros() ? -1 : last_);
    if (home != b_.host_gradient(u))
      move(TaskKind::write_gradient, Lane::disk_write, u, b_.host_gradient(u), home, g);
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
    if (last) {
      compute(TaskKind::gradient_norm, u, -1, {read(b_.gradient(u), g), write(b_.norm(u), norm)});
      add(TaskKind::read_norm, Lane::d2h, u, -1, {read(b_.norm(u), norm), host_result()});
    }
    rest_gradient(u);
    if (last && plan_.update_in_backward) optimize(u);
  }

  bool on_device(int u) const { return home_of(plan_.homes, u).states == Place::device; }

  // Where the states live; what is not there comes, and goes home afterwards.
  void optimize(int u) {
    const Content w = weights(u), s = states(u), g = gradient(u, full(u));
    gradient_version_[static_cast<size_t>(u)] = full(u);
    const UnitHomes home = home_of(plan_.homes, u);
    const int hw = b_.host_weights(u), hs = b_.host_states(u);
    if (on_device(u)) {
      if (b_.home_gradient(u) >= 0) load_gradient(u);
    } else {
      if (home.weights == Place::disk)
        move(TaskKind::read_weights, Lane::disk_read, u, b_.home_weights(u), hw, w);
      if (home.weights == Place::device)
        move(TaskKind::offload_weights, Lane::d2h, u, b_.home_weights(u), hw, w);
      if (home.states == Place::disk)
        move(TaskKind::read_states, Lane::disk_read, u, b_.home_states(u), hs, s);
      fetch_gradient(u);
    }
    ++version_[static_cast<size_t>(u)];
    if (!b_.at_home(u)) forget(b_.weights(u), u);  // out of date
    if (on_device(u)) {
      std::vector<Access> a = {update(b_.home_weights(u), w, weights(u)),
                               update(b_.home_states(u), s, states(u)), read(b_.gradient(u), g)};
      if (plan_.update_in_backward) a.push_back(read(b_.norm(u), {Holds::result, u}));
      compute(TaskKind::optimize, u, -1, std::move(a));
      return;
    }
    add(TaskKind::optimize, Lane::host, u, -1,
        {update(hw, w, weights(u)), update(hs, s, states(u)), read(b_.host_gradient(u), g)});
    if (home.weights == Place::device)
      move(TaskKind::load_weights, Lane::h2d, u, hw, b_.home_weights(u), weights(u));
    if (home.weights == Place::disk)
      move(TaskKind::write_weights, Lane::disk_write, u, hw, b_.home_weights(u), weights(u));
    if (home.states == Place::disk)
      move(TaskKind::write_states, Lane::disk_write, u, hs, b_.home_states(u), states(u));
  }

  // Which unit's current state each buffer holds.
  void holds(int buffer, int u) {
    if (buffer >= 0) in_buffer_[static_cast<size_t>(buffer)] = u;
  }
  bool holds_current(int buffer, int u) const {
    return buffer >= 0 && in_buffer_[static_cast<size_t>(buffer)] == u;
  }
  void forget(int buffer, int u) {
    if (holds_current(buffer, u)) in_buffer_[static_cast<size_t>(buffer)] = -1;
  }

  void move(TaskKind kind, Lane lane, int u, int from, int to, const Content& what, int m = -1) {
    holds(to, u);
    add(kind, lane, u, m, {read(from, what), write(to, what)});
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
  bool saves_ = false;
  int first_ = 0, last_ = 0;
  std::vector<std::vector<int>> clocks_;
  std::vector<int> tail_ = std::vector<int>(kLanes, -1);
};

}  // namespace

Schedule build_train_step(const Model& model, const StepPlan& plan, const StepBuffers& buffers,
                          const StartState& start) {
  Builder b(model, plan, buffers, start);
  b.keep_activations();
  b.optimize_on_device();
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
  b.optimize_on_device();
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
