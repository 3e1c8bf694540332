// The GPU's memory of each lane: its workspace and its sums. On the model, which is set up once per
// process, so each test runs in its own process.
#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/schedule/verify.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/cuda_kind.h"

namespace agmm::test {
namespace {

// Runs an epoch of the schedule and compares C.
void ExpectProduct(const Case& c, Cluster& cluster, const Schedule& schedule) {
  ASSERT_EQ(Verify(c.problem(), cluster.topology(), schedule), absl::OkStatus());
  PreparedPlan plan(cluster, c.problem(), schedule);
  const TestMatrix a = SmallIntegers(c.m, c.k, 1), b = SmallIntegers(c.k, c.n, 2);
  plan.Fill(a, b);
  for (const EpochReport& report : plan.RunAll(1)) ASSERT_EQ(report.status, absl::OkStatus());
  for (Rank rank = 0; rank < c.ranks; ++rank)
    EXPECT_EQ(plan.CountWrong(rank, MatrixProduct(a, b)), 0);
}

// The planners multiply in one lane. A schedule may do so in several, which the model would find to
// race if they shared a workspace.
TEST(LaneMemory, LanesThatMultiplyHaveAWorkspaceEach) {
  setenv("AGMM_MODEL", "gpus=2,order=lazy", /*overwrite=*/1);
  const Case c{"peer", DType::kF32, 2, 1, 1, 40, 12, 20, 1};
  Cluster cluster(CudaKinds()[0], c.topology());
  Schedule schedule = c.schedule(cluster.topology());
  for (std::vector<Step>& steps : schedule.ranks) {
    const int lanes = LaneCount(steps);
    int multiplies = 0;
    for (Step& step : steps) {
      if (std::holds_alternative<Multiply>(step.op) && multiplies++ == 1) step.lane = lanes;
    }
    ASSERT_GE(multiplies, 2);
  }
  ExpectProduct(c, cluster, schedule);
}

// The model's memory comes in pieces of 2 MiB, so these sums need several.
TEST(LaneMemory, SumsOnChipFit) {
  setenv("AGMM_MODEL", "gpus=2", /*overwrite=*/1);
  const Case c{"ring", DType::kBF16, 2, 1, 1,
               1056,   2048,         8, 1, "A[M, K_x] * B[K, N_x] -> C[M, N_x]"};
  Cluster cluster(CudaKinds()[0], c.topology());
  ExpectProduct(c, cluster, c.schedule(cluster.topology()));
}

}  // namespace
}  // namespace agmm::test
