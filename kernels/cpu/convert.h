// Row-wise copies, conversions and sums of matrices of any pitch, before and after the GEMM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/dtype.h"

namespace agmm {

// A matrix in memory: rows `pitch_bytes` apart.
struct ConstMatrix {
  const std::byte* data = nullptr;
  int64_t pitch_bytes = 0;
  DType dtype = DType::kF32;
};
struct Matrix {
  std::byte* data = nullptr;
  int64_t pitch_bytes = 0;
  DType dtype = DType::kF32;
  operator ConstMatrix() const { return {data, pitch_bytes, dtype}; }
};

// to[i][j] = from[i][j]. The dtypes are equal, or one is f32. The matrices do not overlap.
void CopyRows(ConstMatrix from, Matrix to, int64_t rows, int64_t cols);

// to[i][j] = from[0][i][j] + from[1][i][j] + ..., added in f32 in this order. `to` may be one of
// `from`, which are at least one, but overlaps no other.
void SumRows(std::span<const ConstMatrix> from, Matrix to, int64_t rows, int64_t cols);

}  // namespace agmm
