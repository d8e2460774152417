#pragma once
// defines: StepPlan, StepBuffers, build_train_step, build_update, build_forward — the layer-major step.

#include <memory>

#include "model/layer_template.h"
#include "schedule/schedule.h"
#include "store/state_store.h"

namespace megatrain {

/// What the planner decides for a run: how a step is cut and what stays on the device.
struct StepPlan {
  int64_t batch = 0;           ///< sequences of one optimizer step
  int64_t seq_len = 0;         ///< tokens of a sequence, T
  int64_t micro_batch = 0;     ///< sequences of one micro-batch (the last may be smaller)
  int64_t wave = 0;            ///< micro-batches of one wave, 0: all. A wave is layer-major; block inputs are
                               ///< kept for one wave, gradient accumulators rest on the host between waves
  int resident_blocks = 0;     ///< the last blocks that keep a weight buffer of their own
  Homes homes;                 ///< where each unit's state lives; empty: host memory
  std::vector<int> levels;     ///< of saving, per block (BlockTemplate::levels); empty: block inputs only
  int offloaded_inputs = 0;    ///< the first blocks, whose inputs rest in host memory between the passes
  bool resident_ends = false;  ///< untied embedding and head keep their own buffers too
  bool update_in_backward = false;  ///< optimize each unit as its gradient lands (needs no global norm)
  bool packed = false;              ///< sequences hold several documents (PackedDocuments)
  bool training = true;             ///< false: forward only (evaluation, generation)
  int64_t cache_capacity = 0;  ///< generation: tokens whose keys and values are kept; one micro-batch then
  DType compute = DType::f32;
  int64_t (*workspace)(const OpShapes&) = nullptr;  ///< the device's workspace, null: none

  /// Rows of the cache: padding behind a short sequence has a place too.
  int64_t cache_rows() const { return cache_capacity + seq_len; }
  /// int32s that a token brings: itself and its target; packed: place in its document, documents' spans.
  int64_t ints_per_token() const { return packed ? 5 : 2; }
  int64_t micro_batches() const { return (batch + micro_batch - 1) / micro_batch; }
  int64_t wave_size() const { return wave > 0 && wave < micro_batches() ? wave : micro_batches(); }
  int64_t waves() const { return (micro_batches() + wave_size() - 1) / wave_size(); }
  int level(int layer) const { return levels.empty() ? 0 : levels[static_cast<size_t>(layer)]; }
  /// False: a gradient is used up as soon as it is whole, and needs no home.
  bool gradients_rest() const { return !(update_in_backward && waves() == 1); }
  StoreOptions store_options() const;
  int64_t sequences_of(int64_t micro) const {
    return micro + 1 < micro_batches() ? micro_batch : batch - micro * micro_batch;
  }
};

/// Every buffer of a run, and which one holds what. Shared by the training, update and forward schedules. A
/// piece of state has a home, and where it has to be elsewhere, a slot of a ring there; homes on the device
/// and in host memory are used in place.
class StepBuffers {
 public:
  /// `named`: false for sizes only (the planner's search): no names, and what micro-batches have as one.
  StepBuffers(const Model& model, const StepPlan& plan, bool named = true);

  const std::vector<Buffer>& list() const { return list_; }
  /// Where the unit's state lives. gradient: -1 where it does not rest (StepPlan::gradients_rest).
  int home_weights(int unit) const { return at(home_weights_, unit); }
  int home_states(int unit) const { return at(home_states_, unit); }
  int home_gradient(int unit) const { return at(home_gradient_, unit); }
  /// In host memory, for the update or on the way; -1: never there.
  int host_weights(int unit) const { return at(host_weights_, unit); }
  int host_states(int unit) const { return at(host_states_, unit); }
  int host_gradient(int unit) const { return at(host_gradient_, unit); }
  /// On the device, to compute with.
  int weights(int unit) const { return at(weights_, unit); }
  int gradient(int unit) const { return at(gradient_, unit); }
  /// The unit's weights stay on the device from step to step; at_home: they live there.
  bool resident(int unit) const { return resident_[static_cast<size_t>(unit)]; }
  bool at_home(int unit) const { return weights(unit) == home_weights(unit); }
  /// Where the embedding's backward adds. A tied model sums the embedding's and the head's part apart and
  /// adds them once, so that the order of addition does not depend on the number of waves; this pseudo-unit
  /// is unit_count() then, else 0.
  int embedding_gradient_unit() const { return embedding_gradient_unit_; }
  /// True when no other unit uses this unit's gradient buffer: it can keep the sum between waves.
  bool keeps_gradient(int unit) const { return keeps_gradient_[static_cast<size_t>(unit)]; }
  /// Input of block `layer` (layer == L: output of the last block) for one micro-batch.
  int activation(int layer, int64_t micro) const;
  /// Where it rests in host memory between the passes; -1: it stays.
  int host_activation(int layer, int64_t micro) const;
  /// What block `layer` saves beside its input; -1: nothing.
  int saved(int layer, int64_t micro) const;
  int tokens(int64_t micro) const { return tokens_ + static_cast<int>(micro); }
  int loss(int64_t micro) const { return loss_ + static_cast<int>(micro); }
  int norm(int unit) const { return norm_ + unit; }
  int host_results() const { return host_results_; }
  int work() const { return work_; }
  int logits() const { return logits_; }
  int staging() const { return staging_; }
  int workspace() const { return workspace_; }
  /// Keys and values of one block; -1 without a cache. Only the compute lane touches them.
  int cache(int layer) const { return cache_ < 0 ? -1 : cache_ + layer; }
  /// Bytes that the engine takes in a place (device: as the arena will hand them out), without the store's.
  int64_t bytes(Place place) const;

 private:
  static int at(const std::vector<int>& v, int unit) { return v[static_cast<size_t>(unit)]; }
  template <class Name>
  int add(Name&& name, const char* group, Place place, int64_t bytes);
  template <class Bytes>
  void add_sum(int64_t count, const char* group, Place place, Bytes&& bytes_of);
  template <class Bytes>
  void ring(const std::vector<int>& units, int slots, const char* what, const char* group, Place place,
            std::vector<int>& out, Bytes&& bytes_of);
  template <class Wanted, class Bytes>
  void rings(int slots, const char* what, const char* group, Place place, std::vector<int>& out,
             Wanted&& wanted, Bytes&& bytes_of);
  void add_homes();
  void add_weights();
  void add_gradients();
  void add_host_slabs();
  void add_activations();
  void add_results();

  const Model& model_;
  const StepPlan& plan_;  // while it is being made
  bool named_;
  std::vector<Buffer> list_;
  std::vector<int> home_weights_, home_states_, home_gradient_, host_weights_, host_states_, host_gradient_,
      weights_, gradient_, activation_, host_activation_, saved_, saved_row_;
  std::vector<bool> resident_, keeps_gradient_;
  int layers_ = 0, offloaded_ = 0, embedding_gradient_unit_ = 0;
  int64_t wave_size_ = 0;
  bool training_ = true;
  int tokens_ = -1, loss_ = -1, norm_ = -1, host_results_ = -1, work_ = -1, logits_ = -1, staging_ = -1,
      workspace_ = -1, cache_ = -1;
};

/// What the buffers hold when a schedule starts.
struct StartState {
  bool pending_update = false;  ///< gradients of the previous step wait to be applied
  std::vector<bool> loaded;     ///< per unit: its own device buffer holds the current weights
};

/// One optimizer step: forward, loss and backward, layer-major over the micro-batches of each wave. A
/// pending update of the previous step runs unit by unit just before the unit's weights are loaded: exact, no
/// staleness.
Schedule build_train_step(const Model& model, const StepPlan& plan, const StepBuffers& buffers,
                          const StartState& start);
/// Applies a pending update and nothing else.
Schedule build_update(const Model& model, const StepPlan& plan, const StepBuffers& buffers);
enum class ForwardGoal { loss, logits };
/// Forward only, for evaluation (loss) or generation (logits of one position).
Schedule build_forward(const Model& model, const StepPlan& plan, const StepBuffers& buffers,
                       const StartState& start, ForwardGoal goal);

}  // namespace megatrain
