// C of random inputs: close to the product in f64, and bit-identical for all cuts and routes of its
// rows.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

#include "kernels/schedule/index.h"
#include "tests/conformance/cases.h"

namespace agmm::test {
namespace {

// The distance between neighbours of `dtype` around `value`.
double Ulp(double value, DType dtype) {
  const int mantissa = dtype == DType::kF32 ? 23 : dtype == DType::kBF16 ? 7 : 10;
  const int least = dtype == DType::kF16 ? -14 : -126;
  const int exponent = value == 0 ? least : std::max(std::ilogb(value), least);
  return std::ldexp(1.0, exponent - mantissa);
}

class Random : public testing::TestWithParam<std::tuple<DeviceKind, DType>> {};

TEST_P(Random, CIsNearTheProductAndTheSameForEveryAlgorithm) {
  const auto& [kind, dtype] = GetParam();
  // The second shape has rows of whole 128 bytes, which the GEMM reads and writes in place.
  for (auto [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{197, 61, 333}, {257, 256, 512}}) {
    const TestMatrix a = Rounded(Uniform(m, k, TestSeed()), dtype),
                     b = Rounded(Uniform(k, n, TestSeed() + 1), dtype);
    TestMatrix magnitude_a = a, magnitude_b = b;
    for (float& value : magnitude_a.values) value = std::abs(value);
    for (float& value : magnitude_b.values) value = std::abs(value);
    const TestMatrix exact = MatrixProduct(a, b),
                     magnitude = MatrixProduct(magnitude_a, magnitude_b);
    std::vector<float> first;
    for (const char* algorithm : {"serial", "ring", "direct", "peer"}) {
      for (int chunks : {1, 3, 70}) {
        if (algorithm == std::string("serial") && chunks != 1) continue;
        const Case c{algorithm, dtype, 4, algorithm == std::string("peer") ? 1 : 2, chunks, m,
                     n,         k,     2};
        SCOPED_TRACE(c.name());
        Cluster::Options options;
        options.threads = c.threads;
        Cluster cluster(kind, c.topology(), options);
        PreparedPlan plan(cluster, c.problem(), c.schedule(cluster.topology()));
        for (Rank rank = 0; rank < 4; ++rank) {
          plan.Write(rank, kA, a);
          plan.Write(rank, kB, b);
          plan.Poison(rank, kC);
        }
        for (const EpochReport& report : plan.RunAll(1))
          ASSERT_TRUE(report.status.ok()) << report.status;
        TestMatrix found{m, n, std::vector<float>(m * n)};
        for (Rank rank = 0; rank < 4; ++rank) plan.ReadResult(rank, &found);
        int64_t off = 0;
        for (int64_t i = 0; i < m * n; ++i) {
          const double bound =
              k * std::ldexp(magnitude.values[i], -23) + Ulp(exact.values[i], dtype);
          off += !(std::abs(double{found.values[i]} - exact.values[i]) <= bound);
        }
        EXPECT_EQ(off, 0);
        if (first.empty()) first = found.values;
        EXPECT_TRUE(found.values == first || !kind.rows_sum_alike)
            << "another order along K than serial's";
      }
    }
  }
}

// Terms in f32 keep the bound of a product on one rank. Each time that terms leave a rank rounded,
// they lose at most half an ulp of their dtype, and at most three hops are behind a sum of four
// ranks.
TEST_P(Random, ASumBetweenRanksIsNearTheProduct) {
  const auto& [kind, dtype] = GetParam();
  const int64_t m = 197, n = 61, k = 333;
  const TestMatrix a = Rounded(Uniform(m, k, TestSeed()), dtype),
                   b = Rounded(Uniform(k, n, TestSeed() + 1), dtype);
  TestMatrix magnitude_a = a, magnitude_b = b;
  for (float& value : magnitude_a.values) value = std::abs(value);
  for (float& value : magnitude_b.values) value = std::abs(value);
  const TestMatrix exact = MatrixProduct(a, b), magnitude = MatrixProduct(magnitude_a, magnitude_b);
  for (const char* algorithm :
       {"serial", "ring", "split_ring", "direct", "hierarchical", "torus"}) {
    for (const auto& [result, partials] : {std::pair("C[M_x, N]", DType::kF32),
                                           {"C[M, N]", DType::kF32},
                                           {"C[M_x, N]", DType::kBF16},
                                           {"C[M, N]", DType::kF16}}) {
      Case c{algorithm, dtype, 4, 2, 3, m, n, k, 2};
      c.spec = std::string("A[M, K_x] * B[K_x, N] -> ") + result;
      c.mesh = "x=4";
      c.split = "K=x";
      c.partials = partials;
      SCOPED_TRACE(testing::Message() << c.name() << " terms " << Name(partials));
      const double rounded = partials == DType::kF32    ? 0
                             : partials == DType::kBF16 ? std::exp2(-8)
                                                        : std::exp2(-11);
      Cluster::Options options;
      options.threads = c.threads;
      Cluster cluster(kind, c.topology(), options);
      PreparedPlan plan(cluster, c.problem(), c.schedule(cluster.topology()));
      plan.Fill(a, b);
      for (const EpochReport& report : plan.RunAll(1))
        ASSERT_TRUE(report.status.ok()) << report.status;
      TestMatrix found{m, n, std::vector<float>(m * n)};
      for (Rank rank = 0; rank < 4; ++rank) plan.ReadResult(rank, &found);
      int64_t off = 0;
      for (int64_t i = 0; i < m * n; ++i) {
        const double bound = k * std::ldexp(magnitude.values[i], -23) +
                             3 * rounded * magnitude.values[i] * (1 + 3 * rounded) +
                             Ulp(exact.values[i], dtype);
        off += !(std::abs(double{found.values[i]} - exact.values[i]) <= bound);
      }
      EXPECT_EQ(off, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Random,
                         testing::Combine(testing::ValuesIn(DeviceKinds()),
                                          testing::Values(DType::kF32, DType::kBF16, DType::kF16)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" +
                                  std::string(Name(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace agmm::test
