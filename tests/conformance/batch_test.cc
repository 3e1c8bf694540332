// Batch invariance: a row of C has the same bits in any batch, at any place in it, in every repeat,
// for every algorithm, number of chunks and mesh, as long as no rank's product is cut along K.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <utility>

#include "tests/conformance/cases.h"

namespace agmm::test {
namespace {

// The largest batch; the others are its last rows, so that a row changes its place.
constexpr int64_t kMaxBatch = 128;

struct Layout {
  const char* algorithm;
  int chunks, ranks, nodes, threads;
  const char* mesh;
  const char* spec;
  const char* split;
};
constexpr Layout kLayouts[] = {
    {"serial", 1, 1, 1, 1, "x=1", kDefaultSpec, ""},
    {"ring", 3, 4, 2, 2, "x=4", kDefaultSpec, "N=x"},
    {"bidirectional_ring", 2, 4, 4, 1, "x=4", kDefaultSpec, "N=x"},
    {"split_ring", 2, 3, 3, 1, "x=3", kDefaultSpec, "N=x"},
    {"direct", 70, 2, 2, 2, "x=2", kDefaultSpec, "N=x"},
    {"peer", 3, 3, 1, 1, "x=3", kDefaultSpec, "N=x"},
    {"hierarchical", 2, 4, 2, 1, "x=4", kDefaultSpec, "N=x"},
    {"hierarchical_peer", 1, 4, 2, 2, "x=4", kDefaultSpec, "N=x"},
    // B travels, and the rows of C are cut instead.
    {"direct", 2, 3, 3, 1, "x=3", "A[M_x, K] * B[K, N_x] -> C[M_x, N]", "M=x"},
    {"direct", 2, 4, 2, 1, "dp=2,tp=2", "A[M_dptp, K] * B[K, N_tp] -> C[M_dp, N_tp]", ""},
    // Only C travels.
    {"ring", 2, 3, 3, 2, "x=3", "A[M, K] * B[K, N_x] -> C[M, N]", "N=x"},
};

Case CaseOf(const Layout& layout, DType dtype, int64_t m, int64_t n, int64_t k) {
  return {layout.algorithm, dtype,       layout.ranks, layout.nodes, layout.chunks, m, n, k,
          layout.threads,   layout.spec, layout.mesh,  layout.split};
}

// The last `rows` rows.
TestMatrix Tail(const TestMatrix& matrix, int64_t rows) {
  return {rows, matrix.cols,
          std::vector<float>(matrix.values.end() - rows * matrix.cols, matrix.values.end())};
}

// Two matrices whose product is zero: the second half of K subtracts what the first half adds. C
// consists of rounding errors, so that another order along K changes its leading digits, even if C
// has 16 bits.
TestMatrix Cancelling(TestMatrix matrix, bool is_a) {
  const int64_t k = is_a ? matrix.cols : matrix.rows, half = k / 2;
  const int64_t k_stride = is_a ? 1 : matrix.cols, stride = is_a ? matrix.cols : 1;
  for (int64_t line = 0; line < (is_a ? matrix.rows : matrix.cols); ++line) {
    float* const values = matrix.values.data() + line * stride;
    for (int64_t i = 0; i < half; ++i)
      values[(half + i) * k_stride] = (is_a ? -1 : 1) * values[i * k_stride];
    if (is_a && k > 2 * half) values[2 * half] = 0;
  }
  return matrix;
}

class BatchInvariance : public testing::TestWithParam<DType> {};

// C of two runs of one plan, the second in memory that the first one used.
std::vector<TestMatrix> ResultsOfTwoRuns(const Case& c, const TestMatrix& a, const TestMatrix& b) {
  Cluster::Options options;
  options.threads = c.threads;
  options.heap_bytes = 8 << 20;
  Cluster cluster(CpuKind(), c.topology(), options);
  PreparedPlan plan(cluster, c.problem(), c.schedule(cluster.topology()));
  plan.Fill(a, b);
  std::vector<TestMatrix> results;
  for (uint64_t epoch : {1, 2}) {
    for (const EpochReport& report : plan.RunAll(epoch))
      EXPECT_TRUE(report.status.ok()) << report.status;
    TestMatrix& found =
        results.emplace_back(TestMatrix{a.rows, b.cols, std::vector<float>(a.rows * b.cols)});
    for (Rank rank = 0; rank < c.ranks; ++rank) plan.ReadResult(rank, &found);
  }
  return results;
}

TEST_P(BatchInvariance, ARowHasTheSameBitsInAnyBatchOnAnyMeshWithKWhole) {
  if (!CpuKind().rows_sum_alike) GTEST_SKIP() << "not promised on this processor";
  const DType dtype = GetParam();
  for (auto [n, k] : {std::pair<int64_t, int64_t>{61, 333}, {7, 1000}, {192, 512}}) {
    TestMatrix a = Cancelling(Rounded(Uniform(kMaxBatch, k, TestSeed()), dtype), /*is_a=*/true);
    const TestMatrix b = Cancelling(Rounded(Uniform(k, n, TestSeed() + 1), dtype), /*is_a=*/false);
    // Scales the rounding errors into the range of f16.
    for (float& value : a.values) value *= 1024;
    TestMatrix expected;
    for (int64_t m : {kMaxBatch, int64_t{1}, int64_t{7}, int64_t{16}, int64_t{33}}) {
      for (const Layout& layout : kLayouts) {
        const Case c = CaseOf(layout, dtype, m, n, k);
        SCOPED_TRACE(c.name());
        const std::vector<TestMatrix> runs = ResultsOfTwoRuns(c, Tail(a, m), b);
        ASSERT_FALSE(HasFailure());
        for (const TestMatrix& found : runs) {
          if (expected.rows == 0) expected = found;
          ASSERT_TRUE(SameBits(found, Tail(expected, m))) << "run " << &found - runs.data() + 1;
        }
      }
    }
  }
}

// The rank that sums a row depends on the batch, the order of the terms does not.
TEST_P(BatchInvariance, ARowOfASumHasTheSameBitsInAnyBatch) {
  if (!CpuKind().rows_sum_alike) GTEST_SKIP() << "not promised on this processor";
  const DType dtype = GetParam();
  constexpr char kByRows[] = "A[M, K_x] * B[K_x, N] -> C[M_x, N]",
                 kWhole[] = "A[M, K_x] * B[K_x, N] -> C[M, N]",
                 kByCols[] = "A[M, K_x] * B[K_x, N] -> C[M, N_x]";
  // Layouts of one number add up in the same order.
  const std::pair<int, Layout> layouts[] = {
      {0, {"direct", 1, 4, 4, 1, "x=4", kByRows, "K=x"}},
      {0, {"direct", 3, 4, 2, 2, "x=4", kWhole, "K=x"}},
      {0, {"serial", 1, 4, 4, 1, "x=4", kByRows, "K=x"}},
      {0, {"peer", 2, 4, 1, 1, "x=4", kByRows, "K=x"}},
      {0, {"peer", 1, 4, 1, 2, "x=4", kByCols, "K=x"}},
      {1, {"ring", 1, 4, 4, 1, "x=4", kByCols, "K=x"}},
      {2, {"hierarchical", 1, 4, 2, 1, "x=4", kByCols, "K=x"}},
      {3, {"ring", 1, 3, 3, 1, "x=3", kWhole, "K=x"}},
  };
  for (auto [n, k] : {std::pair<int64_t, int64_t>{61, 333}, {192, 512}}) {
    TestMatrix a = Cancelling(Rounded(Uniform(kMaxBatch, k, TestSeed()), dtype), /*is_a=*/true);
    const TestMatrix b = Cancelling(Rounded(Uniform(k, n, TestSeed() + 1), dtype), /*is_a=*/false);
    for (float& value : a.values) value *= 1024;
    std::map<int, TestMatrix> expected;
    for (int64_t m : {kMaxBatch, int64_t{1}, int64_t{7}, int64_t{33}}) {
      for (const auto& [order, layout] : layouts) {
        const Case c = CaseOf(layout, dtype, m, n, k);
        SCOPED_TRACE(c.name());
        const std::vector<TestMatrix> runs = ResultsOfTwoRuns(c, Tail(a, m), b);
        ASSERT_FALSE(HasFailure());
        for (const TestMatrix& found : runs) {
          const TestMatrix& first = expected.try_emplace(order, found).first->second;
          ASSERT_TRUE(SameBits(found, Tail(first, m))) << "run " << &found - runs.data() + 1;
        }
      }
    }
    EXPECT_FALSE(expected.at(0).values == expected.at(1).values)
        << "the order does not matter for these inputs, so this test tests nothing";
  }
}

INSTANTIATE_TEST_SUITE_P(All, BatchInvariance,
                         testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(Name(info.param)); });

}  // namespace
}  // namespace agmm::test
