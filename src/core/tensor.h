#pragma once
// defines: Tensor — a non-owning view (std only: .cu files may include this).

#include <cassert>
#include <initializer_list>

#include "core/dtype.h"

namespace megatrain {

/// A non-owning view of dense row-major memory on some device. Copied freely; owns nothing.
/// The owner of the bytes is always an Arena (device or pinned host) or the StateStore.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  int64_t shape[4] = {1, 1, 1, 1};

  Tensor() = default;
  Tensor(void* d, DType t, std::initializer_list<int64_t> dims) : data(d), dtype(t) {
    for (int64_t n : dims) shape[rank++] = n;
  }

  int64_t numel() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
  int64_t bytes() const { return numel() * size_of(dtype); }
  explicit operator bool() const { return data != nullptr; }

  float* f32() const {
    assert(dtype == DType::f32 || !data);
    return static_cast<float*>(data);
  }
  double* f64() const {
    assert(dtype == DType::f64 || !data);
    return static_cast<double*>(data);
  }
  int32_t* i32() const {
    assert(dtype == DType::i32 || !data);
    return static_cast<int32_t*>(data);
  }

  /// Rows [first, first + count) of a matrix-like tensor (leading dimension is sliced).
  Tensor rows(int64_t first, int64_t count) const {
    Tensor t = *this;
    const int64_t row = numel() / shape[0] * size_of(dtype);
    t.data = static_cast<char*>(data) + first * row;
    t.shape[0] = count;
    return t;
  }
};

}  // namespace megatrain
