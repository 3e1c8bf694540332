#include "tests/support/matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>

#include "client/files/npy.h"

namespace agmm {
namespace {

// Dot products of doubles, and of their absolute values.
struct Sums {
  double value = 0, absolute = 0;
};

Sums Dot(const TestMatrix& a, const TestMatrix& b, int64_t row, int64_t col) {
  Sums sums;
  for (int64_t i = 0; i < a.cols; ++i) {
    const double product = static_cast<double>(a.at(row, i)) * b.at(i, col);
    sums.value += product;
    sums.absolute += std::abs(product);
  }
  return sums;
}

template <typename Distribution>
TestMatrix Drawn(int64_t rows, int64_t cols, uint64_t seed, Distribution distribution) {
  std::mt19937_64 random(seed);
  TestMatrix matrix{rows, cols, std::vector<float>(rows * cols)};
  for (float& value : matrix.values) value = static_cast<float>(distribution(random));
  return matrix;
}

}  // namespace

TestMatrix SmallIntegers(int64_t rows, int64_t cols, uint64_t seed) {
  return Drawn(rows, cols, seed, std::uniform_int_distribution<int>(-4, 4));
}

TestMatrix Uniform(int64_t rows, int64_t cols, uint64_t seed) {
  return Drawn(rows, cols, seed, std::uniform_real_distribution<float>(-1, 1));
}

TestMatrix Normal(int64_t rows, int64_t cols, uint64_t seed) {
  return Drawn(rows, cols, seed, std::normal_distribution<float>());
}

void WriteNpy(const std::string& path, const TestMatrix& matrix, DType dtype) {
  const auto writer = NpyWriter::Create(path, matrix.rows, matrix.cols, dtype);
  ASSERT_TRUE(writer.ok()) << writer.status();
  std::vector<char> bytes(matrix.values.size() * SizeOf(dtype));
  ConvertFromF32(dtype, matrix.values.data(), bytes.data(), matrix.values.size());
  ASSERT_TRUE((*writer)->Append(matrix.rows * matrix.cols, bytes.data()).ok());
  ASSERT_TRUE((*writer)->Commit().ok());
}

TestMatrix ReadNpy(const std::string& path) {
  const auto reader = OpenNpy(path);
  EXPECT_TRUE(reader.ok()) << reader.status();
  if (!reader.ok()) return {};
  const MatrixReader& file = **reader;
  std::vector<char> bytes(file.rows() * file.cols() * SizeOf(file.dtype()));
  EXPECT_TRUE(file.ReadElements(0, file.rows() * file.cols(), bytes.data()).ok());
  TestMatrix matrix{file.rows(), file.cols(), std::vector<float>(file.rows() * file.cols())};
  ConvertToF32(file.dtype(), bytes.data(), matrix.values.data(), matrix.values.size());
  return matrix;
}

TestMatrix Rounded(TestMatrix matrix, DType dtype) {
  std::vector<char> bytes(matrix.values.size() * SizeOf(dtype));
  ConvertFromF32(dtype, matrix.values.data(), bytes.data(), matrix.values.size());
  ConvertToF32(dtype, bytes.data(), matrix.values.data(), matrix.values.size());
  return matrix;
}

TestMatrix MatrixProduct(const TestMatrix& a, const TestMatrix& b) {
  TestMatrix c{a.rows, b.cols, std::vector<float>(a.rows * b.cols)};
  std::vector<double> sums(b.cols);
  for (int64_t row = 0; row < c.rows; ++row) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int64_t k = 0; k < a.cols; ++k) {
      const double factor = a.at(row, k);
      for (int64_t col = 0; col < b.cols; ++col) sums[col] += factor * b.at(k, col);
    }
    for (int64_t col = 0; col < b.cols; ++col)
      c.values[row * c.cols + col] = static_cast<float>(sums[col]);
  }
  return c;
}

::testing::AssertionResult SameBits(const TestMatrix& got, const TestMatrix& want) {
  if (got.rows != want.rows || got.cols != want.cols) {
    return ::testing::AssertionFailure()
           << got.rows << " x " << got.cols << ", not " << want.rows << " x " << want.cols;
  }
  for (size_t i = 0; i < got.values.size(); ++i) {
    // Compares bits, so NaN equals itself, and 0 differs from -0.
    if (std::memcmp(&got.values[i], &want.values[i], sizeof(float)) == 0) continue;
    return ::testing::AssertionFailure() << "[" << i / got.cols << ", " << i % got.cols << "] is "
                                         << got.values[i] << ", not " << want.values[i];
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult IsProductOf(const TestMatrix& got, const TestMatrix& a,
                                       const TestMatrix& b) {
  if (got.rows != a.rows || got.cols != b.cols)
    return ::testing::AssertionFailure() << "the shape is " << got.rows << " x " << got.cols;
  for (int64_t row = 0; row < got.rows; ++row) {
    for (int64_t col = 0; col < got.cols; ++col) {
      const Sums sums = Dot(a, b, row, col);
      const double ulp = std::nextafter(std::abs(static_cast<float>(sums.value)),
                                        std::numeric_limits<float>::infinity()) -
                         std::abs(static_cast<float>(sums.value));
      const double bound = a.cols * std::ldexp(1.0, -23) * sums.absolute + ulp;
      if (std::abs(got.at(row, col) - sums.value) <= bound) continue;
      return ::testing::AssertionFailure()
             << "[" << row << ", " << col << "] is " << got.at(row, col) << ", not " << sums.value
             << " within " << bound;
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace agmm
