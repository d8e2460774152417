#include "device/arena.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/units.h"

namespace megatrain {

Arena::Arena(Device& device, std::string name, int64_t bytes, std::string hint)
    : device_(device), name_(std::move(name)), hint_(std::move(hint)), capacity_(padded(bytes)) {
  if (device.memory_used() + capacity_ > device.memory_limit())
    fail(fmt::format("{}: {} needed, but {} has {} of its {} free; {}", name_,
                     format_bytes(static_cast<double>(capacity_)), device.name(),
                     format_bytes(static_cast<double>(device.memory_limit() - device.memory_used())),
                     format_bytes(static_cast<double>(device.memory_limit())), hint_));
  data_ = static_cast<char*>(device.allocate(capacity_));
}

Arena::~Arena() {
  device_.release(data_, capacity_);
}

void* Arena::take(const std::string& name, int64_t bytes) {
  if (sealed_) throw std::logic_error(name_ + ": '" + name + "' taken inside a step");
  const int64_t need = padded(bytes);
  if (used_ + need > capacity_) {
    auto held = ranges_;
    std::sort(held.begin(), held.end(), [](auto& a, auto& b) { return a.bytes > b.bytes; });
    std::string largest;
    for (size_t i = 0; i < held.size() && i < 3; ++i)
      largest += fmt::format("{}{} {}", i ? ", " : "", held[i].name,
                             format_bytes(static_cast<double>(held[i].bytes)));
    fail(fmt::format("{}: '{}' needs {}, {} of {} is held (largest: {}); {}", name_, name,
                     format_bytes(static_cast<double>(need)), format_bytes(static_cast<double>(used_)),
                     format_bytes(static_cast<double>(capacity_)), largest, hint_));
  }
  void* p = data_ + used_;
  used_ += need;
  ranges_.push_back({name, need});
  return p;
}

}  // namespace megatrain
