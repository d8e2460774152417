#pragma once
// defines: Place, Plane, UnitHomes — where each piece of a unit's state lives (std only).

#include <cstdint>
#include <vector>

namespace megatrain {

/// Places of memory, nearest to the computation first.
enum class Place : uint8_t { device, host, disk };
constexpr int kPlaceCount = 3;
inline const char* name_of(Place p) {
  static const char* const names[] = {"device", "host", "disk"};
  return names[static_cast<int>(p)];
}

/// The planes of a unit's state: the fp32 master in two halves, and Adam's moments.
enum class Plane : uint8_t { hi, lo, m, v };
constexpr int kPlanes = 4;
constexpr int64_t bytes_of(Plane p) {
  return p == Plane::hi || p == Plane::lo ? 2 : 4;
}

/// Homes of one unit. `weights` is what streams (hi; in fp32 mode lo too), `states` what only the update
/// touches (lo, m, v): these are always wanted together, so that homes of their own would buy nothing that
/// another unit's homes cannot. The update runs where `states` live: device, or the host (for disk: over a
/// ring of slabs). States on the device ask for weights there.
struct UnitHomes {
  Place weights = Place::host, states = Place::host, gradient = Place::host;
  bool operator==(const UnitHomes&) const = default;
};
using Homes = std::vector<UnitHomes>;  ///< per unit; empty: everything in host memory

inline UnitHomes home_of(const Homes& homes, int unit) {
  return homes.empty() ? UnitHomes{} : homes[static_cast<size_t>(unit)];
}

}  // namespace megatrain
