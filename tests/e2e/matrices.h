// Matrices of tests: made, written, read, multiplied in double precision.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/base/dtype.h"

namespace agmm {

struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<float> values;  // row-major

  float at(int64_t row, int64_t col) const { return values[row * cols + col]; }
};

// From -4 to 4: sums of products are exact in f32 in any order.
Matrix SmallIntegers(int64_t rows, int64_t cols, uint64_t seed);
Matrix Normal(int64_t rows, int64_t cols, uint64_t seed);

// $AGMM_SEED, else a new one.
uint64_t TestSeed();

// As .npy of `dtype` (f32 or f16).
void WriteNpy(const std::string& path, const Matrix& matrix, DType dtype = DType::kF32);
// Widened to f32; fails the test if it cannot be read.
Matrix ReadNpy(const std::string& path);

// What `matrix` is after a trip through `dtype`.
Matrix Rounded(Matrix matrix, DType dtype);
// a * b in double precision, rounded to f32.
Matrix Product(const Matrix& a, const Matrix& b);

// Same shape, same bits.
::testing::AssertionResult SameBits(const Matrix& got, const Matrix& want);
// |got - a b| <= K 2^-23 |a||b| + 1 ulp of f32 everywhere.
::testing::AssertionResult IsProductOf(const Matrix& got, const Matrix& a, const Matrix& b);

}  // namespace agmm
