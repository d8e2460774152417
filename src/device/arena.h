#pragma once
// defines: Arena — one block of one memory place, handed out as named ranges.

#include <string>
#include <vector>

#include "device/device.h"

namespace megatrain {

/// Owns one block of device memory. Every byte has a name, so that running out says what, how much,
/// and which setting to change. After seal() nothing more may be taken: no allocation in a step.
class Arena {
 public:
  struct Range {
    std::string name;
    int64_t bytes;
  };
  static constexpr int64_t kAlign = 256;
  static int64_t padded(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  /// Takes `bytes` of `device` at once. `hint` says which setting makes it smaller.
  Arena(Device& device, std::string name, int64_t bytes, std::string hint);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* take(const std::string& name, int64_t bytes);
  void seal() { sealed_ = true; }
  int64_t used() const { return used_; }
  int64_t capacity() const { return capacity_; }
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  Device& device_;
  std::string name_, hint_;
  int64_t capacity_, used_ = 0;
  char* data_ = nullptr;
  bool sealed_ = false;
  std::vector<Range> ranges_;
};

}  // namespace megatrain
