// Runs a plan on small whole numbers and compares every bit of C.
#pragma once

#include <gtest/gtest.h>

#include "kernels/schedule/index.h"
#include "tests/conformance/harness.h"

namespace agmm::test {

// Runs epochs 1 to `epochs`, each with its own inputs and a poisoned C.
inline void ExpectExact(PreparedPlan& plan, Cluster& cluster, uint64_t epochs) {
  const Problem& problem = plan.problem();
  for (uint64_t epoch = 1; epoch <= epochs; ++epoch) {
    SCOPED_TRACE(testing::Message() << "epoch " << epoch);
    const TestMatrix a =
        SmallIntegers(ShapeOf(problem).m, ShapeOf(problem).k, TestSeed() + 2 * epoch);
    const TestMatrix b =
        SmallIntegers(ShapeOf(problem).k, ShapeOf(problem).n, TestSeed() + 2 * epoch + 1);
    plan.Fill(a, b);
    const std::vector<EpochReport> reports = plan.RunAll(epoch, epoch, absl::Seconds(30));
    ASSERT_EQ(cluster.network().first_misfit(), absl::OkStatus());
    for (const EpochReport& report : reports) ASSERT_TRUE(report.status.ok()) << report.status;
    const TestMatrix c = MatrixProduct(a, b);
    for (Rank rank = 0; rank < plan.rank_count(); ++rank)
      EXPECT_EQ(plan.CountWrong(rank, c), 0) << "rank " << rank;
  }
  EXPECT_TRUE(cluster.GuardsAreWhole());
}

}  // namespace agmm::test
