// Matrices of tests: drawn, multiplied in double precision, compared, and kept as .npy files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/base/dtype.h"

namespace agmm {

struct TestMatrix {
  int64_t rows = 0, cols = 0;
  std::vector<float> values;  // row-major

  float at(int64_t row, int64_t col) const { return values[row * cols + col]; }
};

// The same seed gives the same matrix. Integers from -4 to 4 make sums of products exact in f32 in
// any order.
TestMatrix SmallIntegers(int64_t rows, int64_t cols, uint64_t seed);
// In [-1, 1).
TestMatrix Uniform(int64_t rows, int64_t cols, uint64_t seed);
TestMatrix Normal(int64_t rows, int64_t cols, uint64_t seed);

// Returns `matrix` rounded to `dtype`.
TestMatrix Rounded(TestMatrix matrix, DType dtype);
// a * b in double precision, rounded to f32.
TestMatrix MatrixProduct(const TestMatrix& a, const TestMatrix& b);

// Same shape, same bits.
::testing::AssertionResult SameBits(const TestMatrix& got, const TestMatrix& want);
// |got - a b| <= K 2^-23 |a||b| + 1 ulp of f32 everywhere.
::testing::AssertionResult IsProductOf(const TestMatrix& got, const TestMatrix& a,
                                       const TestMatrix& b);

// As .npy of `dtype` (f32 or f16).
void WriteNpy(const std::string& path, const TestMatrix& matrix, DType dtype = DType::kF32);
// Widened to f32; fails the test if it cannot be read.
TestMatrix ReadNpy(const std::string& path);

}  // namespace agmm
