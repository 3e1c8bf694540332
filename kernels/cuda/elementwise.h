// The bodies, for one element, of the kernels in elementwise.cu, for device and host code. A host
// that runs a body for each element gets the same bits as the kernel.
//
// Needs only the standard library, dtype_traits.h and fill_value.h.
#pragma once

#include <cstdint>

#include "kernels/base/dtype_traits.h"
#include "kernels/base/fill_value.h"

namespace agmm::elementwise {

// Elements in rows that are `pitch_bytes` apart. Null `data`: none.
struct Matrix {
  void* data = nullptr;
  int64_t pitch_bytes = 0;
  DType dtype = DType::kF32;
};

// Each struct is the only parameter of the kernel that its comment names first. agmm_convert:
// to[row][col] = from[row][col]. The dtypes are equal, or one is f32. The matrices are the same or
// do not overlap.
struct Convert {
  Matrix from, to;
  int64_t rows = 0, cols = 0;
};
// agmm_reduce: to[row][col] = from[0][row][col] + from[1][row][col] + ..., added in f32 in this
// order. `to` may be one of the `terms` matrices, which are at least one.
struct Reduce {
  static constexpr int kMostTerms = 33;
  Matrix from[kMostTerms];
  int terms = 0;
  Matrix to;
  int64_t rows = 0, cols = 0;
};
// agmm_fill: to[row][col] = the value of index first_index + row * index_stride + col.
struct Fill {
  Matrix to;
  int64_t rows = 0, cols = 0;
  FillSpec fill;
  float most = 0;  // LargestBelowOne of the dtype
  int64_t first_index = 0, index_stride = 0;
};

AGMM_HOST_DEVICE inline void* ElementOf(const Matrix& matrix, int64_t row, int64_t col) {
  return static_cast<char*>(matrix.data) + row * matrix.pitch_bytes + col * SizeOf(matrix.dtype);
}
AGMM_HOST_DEVICE inline float Load(const Matrix& matrix, int64_t row, int64_t col) {
  const void* const at = ElementOf(matrix, row, col);
  if (matrix.dtype == DType::kF32) return *static_cast<const float*>(at);
  const uint16_t bits = *static_cast<const uint16_t*>(at);
  return matrix.dtype == DType::kBF16 ? BF16ToF32(bits) : F16ToF32(bits);
}
AGMM_HOST_DEVICE inline void Store(float value, const Matrix& matrix, int64_t row, int64_t col) {
  void* const at = ElementOf(matrix, row, col);
  if (matrix.dtype == DType::kF32) {
    *static_cast<float*>(at) = value;
  } else {
    *static_cast<uint16_t*>(at) = matrix.dtype == DType::kBF16 ? F32ToBF16(value) : F32ToF16(value);
  }
}

AGMM_HOST_DEVICE inline void Element(const Convert& work, int64_t row, int64_t col) {
  if (work.from.dtype != work.to.dtype) return Store(Load(work.from, row, col), work.to, row, col);
  // Copies bits, because a signalling NaN must stay one.
  const void* const from = ElementOf(work.from, row, col);
  void* const to = ElementOf(work.to, row, col);
  if (work.to.dtype == DType::kF32) {
    *static_cast<uint32_t*>(to) = *static_cast<const uint32_t*>(from);
  } else {
    *static_cast<uint16_t*>(to) = *static_cast<const uint16_t*>(from);
  }
}

AGMM_HOST_DEVICE inline void Element(const Reduce& work, int64_t row, int64_t col) {
  float sum = Load(work.from[0], row, col);
  for (int term = 1; term < work.terms; ++term) sum += Load(work.from[term], row, col);
  Store(sum, work.to, row, col);
}

AGMM_HOST_DEVICE inline void Element(const Fill& work, int64_t row, int64_t col) {
  const int64_t index = work.first_index + row * work.index_stride + col;
  Store(FillValue(work.fill, work.most, index), work.to, row, col);
}

}  // namespace agmm::elementwise
