#pragma once
// defines: DType, size_of, name_of, bf16 conversion helpers (std only: .cu files may include this).

#include <cstdint>
#include <cstring>

namespace megatrain {

enum class DType : uint8_t { f32, bf16, u16, i32, f64 };

constexpr int64_t size_of(DType t) {
  return t == DType::f64 ? 8 : (t == DType::f32 || t == DType::i32) ? 4 : 2;
}

constexpr const char* name_of(DType t) {
  switch (t) {
    case DType::f32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::u16:
      return "u16";
    case DType::i32:
      return "i32";
    case DType::f64:
      return "fp64";
  }
  return "?";
}

inline uint32_t float_bits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}

inline float bits_float(uint32_t u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

/// The fp32 master weight lives in two 16-bit planes (docs/design.md, "Numerical policy").
/// `hi` is the weight rounded half-up to bf16 and is what streams; `lo` restores fp32 exactly.
struct SplitFloat {
  uint16_t hi, lo;
};

inline SplitFloat split_float(float x) {
  const uint32_t bits = float_bits(x);
  return {static_cast<uint16_t>((bits + 0x8000u) >> 16), static_cast<uint16_t>(bits)};
}

/// Exact inverse of split_float for every 32-bit pattern, inf and NaN included: when `lo` >= 0x8000
/// the rounding carried into `hi`, so one is taken back (modulo 2^16).
inline float join_float(uint16_t hi, uint16_t lo) {
  const uint32_t carried = static_cast<uint32_t>(lo) >> 15;
  return bits_float((((hi - carried) & 0xffffu) << 16) | lo);
}

}  // namespace megatrain
