#include "store/state_store.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numbers>

#include "core/error.h"
#include "core/rng.h"

namespace megatrain {
namespace {

// Box-Muller on a pair of counter-based uniforms: element i depends on (seed, stream, i) only.
float normal_at(uint64_t seed, uint64_t stream, uint64_t i) {
  const double u = random_uniform(seed, stream, 2 * i), v = random_uniform(seed, stream, 2 * i + 1);
  return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v));
}

constexpr uint64_t kInitStream = uint64_t{1} << 40;  // apart from the dropout streams

// Which group a plane moves with; fp32 mode streams both halves of the master.
Group group_of(Plane p, const StoreOptions& o) {
  const bool streams = p == Plane::hi || (p == Plane::lo && o.compute == DType::f32);
  return streams ? Group::weights : Group::states;
}

bool is_kept(Plane p, const StoreOptions& o) {
  return p == Plane::hi || (p == Plane::lo ? o.low_half : o.moments);
}

Place place_of(UnitHomes h, Group g) {
  return g == Group::weights ? h.weights : g == Group::states ? h.states : h.gradient;
}

// What the store keeps of a group: gradients only where they need room in the file.
int64_t stored_bytes(const UnitLayout& unit, Group g, UnitHomes h, const StoreOptions& o) {
  if (g != Group::gradient) return group_layout(unit, g, o).bytes;
  return o.gradients && h.gradient == Place::disk ? StateFile::padded(unit.numel * 4) : 0;
}

constexpr Group kGroups[] = {Group::weights, Group::states, Group::gradient};

// A private place for what threads convert, when it cannot be converted in place.
constexpr int64_t kRange = int64_t{1} << 20;

}  // namespace

GroupLayout group_layout(const UnitLayout& unit, Group group, const StoreOptions& o) {
  GroupLayout l;
  if (group == Group::gradient) {
    l.bytes = StateFile::padded(unit.numel * 4);
    return l;
  }
  for (const Plane p : {Plane::hi, Plane::lo, Plane::m, Plane::v}) {
    if (!is_kept(p, o) || group_of(p, o) != group) continue;
    l.offset[static_cast<int>(p)] = l.bytes;
    l.bytes += StateFile::padded(unit.numel * bytes_of(p));
  }
  return l;
}

int64_t StateStore::bytes_needed(const Model& model, const StoreOptions& o, Place place) {
  int64_t n = 0;
  for (int u = 0; u < model.unit_count(); ++u) {
    const UnitHomes h = home_of(o.homes, u);
    for (const Group g : kGroups)
      if (place_of(h, g) == place) n += stored_bytes(model.units()[static_cast<size_t>(u)], g, h, o);
  }
  return n;
}

int64_t StateStore::bytes() const {
  int64_t n = 0;
  for (const Block& b : blocks_) n += b.bytes;
  return n;
}

StateStore::StateStore(Device& device, const Model& model, StoreOptions options, const ProgressFn& progress)
    : device_(device), model_(model), options_(std::move(options)) {
  take(progress);
  for (int u = 0; u < model.unit_count(); ++u) point(u);
}

void StateStore::take(const ProgressFn& progress) {
  const int units = model_.unit_count();
  blocks_.resize(static_cast<size_t>(units) * 3);
  int64_t on_disk = 0;
  for (int u = 0; u < units; ++u)
    for (const Group g : kGroups) {
      Block& b = blocks_[index(u, g)];
      b.place = place_of(homes(u), g);
      b.bytes = stored_bytes(model_.units()[static_cast<size_t>(u)], g, homes(u), options_);
      if (b.place == Place::disk) b.file_offset = on_disk, on_disk += b.bytes;
    }
  if (on_disk > 0) {  // first, as it fails first
    std::filesystem::create_directories(options_.state_dir);
    file_ =
        std::make_unique<StateFile>(options_.state_dir + "/state" + options_.state_owner + ".bin", on_disk);
  }
  const int64_t on_device = bytes_needed(model_, options_, Place::device);
  if (on_device > 0)
    arena_ = std::make_unique<Arena>(device_, "states on the device", on_device,
                                     "lower memory_limit so that the planner keeps fewer of them there");
  for (int u = 0; u < units; ++u) {
    if (progress) progress(static_cast<double>(u) / units);
    for (const Group g : kGroups) {
      Block& b = blocks_[index(u, g)];
      if (b.bytes == 0 || b.place == Place::disk) continue;
      std::vector<int64_t> planes;
      for (const int64_t offset : layout(u, g).offset)
        if (offset >= 0) planes.push_back(offset);
      b.data = b.place == Place::host
                   ? device_.allocate_pinned(b.bytes, planes)
                   : arena_->take("states of " + model_.units()[static_cast<size_t>(u)].name, b.bytes);
      if (b.place == Place::device) device_.clear(b.data, b.bytes);
    }
  }
}

void StateStore::point(int u) {
  units_.emplace_back();
  const auto at = [&](Plane p) -> void* {
    int64_t offset = 0;
    const Block& b = block_of(u, p, offset);
    return offset < 0 || !b.data ? nullptr : static_cast<char*>(b.data) + offset;
  };
  UnitState& s = units_.back();
  s.hi = static_cast<uint16_t*>(at(Plane::hi)), s.lo = static_cast<uint16_t*>(at(Plane::lo));
  s.m = static_cast<float*>(at(Plane::m)), s.v = static_cast<float*>(at(Plane::v));
}

StateStore::~StateStore() {
  for (const Block& b : blocks_)
    if (b.place == Place::host) device_.release_pinned(b.data, b.bytes);
}

// `offset`: of the plane in the block; -1: not kept.
const StateStore::Block& StateStore::block_of(int unit, Plane p, int64_t& offset) const {
  const Group g = group_of(p, options_);
  offset = layout(unit, g).offset[static_cast<int>(p)];
  return blocks_[index(unit, g)];
}

char* StateStore::host_address(int unit, Plane p) const {
  int64_t offset = 0;
  const Block& b = block_of(unit, p, offset);
  return b.place == Place::host && offset >= 0 ? static_cast<char*>(b.data) + offset : nullptr;
}

void StateStore::read(int unit, Plane p, int64_t first, void* out, int64_t bytes) const {
  int64_t offset = 0;
  const Block& b = block_of(unit, p, offset);
  if (offset < 0) throw std::logic_error("a plane is read that is not kept");
  const char* from = static_cast<const char*>(b.data) + offset + first;
  if (b.place == Place::host) std::memcpy(out, from, static_cast<size_t>(bytes));
  if (b.place == Place::device) device_.copy_now(out, from, bytes);
  if (b.place == Place::disk) file_->read_part(b.file_offset + offset + first, out, bytes);
}

void StateStore::write(int unit, Plane p, int64_t first, const void* data, int64_t bytes) {
  int64_t offset = 0;
  const Block& b = block_of(unit, p, offset);
  if (offset < 0) return;  // generation keeps bf16 weights alone
  char* to = static_cast<char*>(b.data) + offset + first;
  if (b.place == Place::host) std::memcpy(to, data, static_cast<size_t>(bytes));
  if (b.place == Place::device) device_.copy_now(to, data, bytes);
  if (b.place == Place::disk) file_->write_part(b.file_offset + offset + first, data, bytes);
}

void StateStore::initialize(uint64_t seed, ThreadPool& pool, const ProgressFn& progress) {
  uint64_t stream = kInitStream;
  for (size_t u = 0; u < units_.size(); ++u)
    for (const Parameter& p : model_.units()[u].parameters) {
      if (progress) progress(static_cast<double>(u) / static_cast<double>(units_.size()));
      ++stream;
      const int64_t grain = host_address(static_cast<int>(u), Plane::hi) ? 65536 : kRange;
      std::mutex mutex;
      std::exception_ptr error;
      pool.parallel_ranges(p.numel, grain, [&](int64_t begin, int64_t end) {
        std::vector<float> x(static_cast<size_t>(end - begin), p.init == Init::ones ? 1.0f : 0.0f);
        if (p.init == Init::normal)
          for (int64_t i = begin; i < end; ++i)
            x[static_cast<size_t>(i - begin)] =
                static_cast<float>(p.init_std) * normal_at(seed, stream, static_cast<uint64_t>(i));
        try {
          set_range(static_cast<int>(u), p, begin, end - begin, x.data());
        } catch (...) {
          const std::lock_guard lock(mutex);
          error = std::current_exception();
        }
      });
      if (error) std::rethrow_exception(error);
    }
}

void StateStore::set_range(int unit, const Parameter& p, int64_t first, int64_t count, const float* values) {
  std::vector<uint16_t> hi(static_cast<size_t>(std::min(count, kRange))), lo(hi.size());
  for (int64_t done = 0; done < count;) {
    const int64_t n = std::min(kRange, count - done), at = (p.offset + first + done) * 2;
    for (int64_t i = 0; i < n; ++i) {
      const SplitFloat f = split_float(values[done + i]);
      hi[static_cast<size_t>(i)] = f.hi, lo[static_cast<size_t>(i)] = f.lo;
    }
    write(unit, Plane::hi, at, hi.data(), n * 2);
    write(unit, Plane::lo, at, lo.data(), n * 2);
    done += n;
  }
}

void StateStore::get_range(int unit, const Parameter& p, int64_t first, int64_t count, float* values) const {
  std::vector<uint16_t> hi(static_cast<size_t>(std::min(count, kRange))), lo(hi.size());
  for (int64_t done = 0; done < count;) {
    const int64_t n = std::min(kRange, count - done), at = (p.offset + first + done) * 2;
    read(unit, Plane::hi, at, hi.data(), n * 2);
    read(unit, Plane::lo, at, lo.data(), n * 2);
    for (int64_t i = 0; i < n; ++i)
      values[done + i] = join_float(hi[static_cast<size_t>(i)], lo[static_cast<size_t>(i)]);
    done += n;
  }
}

}  // namespace megatrain
