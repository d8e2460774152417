#pragma once
// defines: cpu_stream, dropout_factor — small helpers shared by the CPU ops.

#include "core/rng.h"
#include "device/cpu/cpu_stream.h"
#include "ops/ops.h"

namespace megatrain {

inline CpuStream& cpu_stream(Stream& s) {
  return static_cast<CpuStream&>(s);
}

/// Rows per item so that an item touches about 64 K elements.
inline int64_t row_grain(int64_t columns) {
  return columns >= 65536 ? 1 : 65536 / (columns > 0 ? columns : 1);
}

/// Walks one dropout mask: next() is 0 or 1/(1-p) for consecutive elements.
class DropoutMask {
 public:
  DropoutMask(const Dropout& d, uint64_t offset)
      : seed_(d.seed),
        stream_(d.stream),
        index_(d.first + offset),
        threshold_(static_cast<uint32_t>(static_cast<double>(d.probability) * 4294967296.0)),
        keep_(1.0f / (1.0f - d.probability)),
        block_(philox4x32(index_ >> 2, stream_, seed_)) {}
  float next() {
    const uint32_t r = block_.v[index_ & 3];
    if ((++index_ & 3) == 0) block_ = philox4x32(index_ >> 2, stream_, seed_);
    return r < threshold_ ? 0.0f : keep_;
  }

 private:
  uint64_t seed_, stream_, index_;
  uint32_t threshold_;
  float keep_;
  Philox4 block_;
};

}  // namespace megatrain
