// Epochs in a row whose products kernels compute, submitted ahead of their ends. On the model,
// which is set up once per process, so each test runs in its own process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <future>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/deadline.h"
#include "kernels/base/failpoint.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/cuda_kind.h"
#include "tests/support/armed.h"
#include "tests/support/patience.h"

namespace agmm::test {
namespace {

using testing::StartsWith;

class KernelEpochs : public testing::TestWithParam<const char*> {
 protected:
  KernelEpochs() { setenv("AGMM_MODEL", GetParam(), /*overwrite=*/1); }

  // Queues epochs on all ranks before any step is submitted, and expects the product after them.
  static void RunAhead(const Case& c, const char* product) {
    constexpr int kEpochs = 5;
    Cluster cluster(CudaKinds()[0], c.topology());
    PreparedPlan plan(cluster, c.problem(), c.schedule(cluster.topology()));
    for (Rank rank = 0; rank < c.ranks; ++rank)
      EXPECT_THAT(plan.executor(rank)->device_products(), testing::Contains(StartsWith(product)));
    const TestMatrix a = SmallIntegers(c.m, c.k, 1), b = SmallIntegers(c.k, c.n, 2);
    plan.Fill(a, b);
    Reports reports(c.ranks * kEpochs);
    const auto held = [](Rank rank) { return absl::StrCat("executor.hold_rank_", rank); };
    for (Rank rank = 0; rank < c.ranks; ++rank) failpoint::Arm(held(rank));
    for (int i = 0; i < kEpochs; ++i) {
      for (Rank rank = 0; rank < c.ranks; ++rank)
        plan.Run(rank, 1 + i, 1, Deadline::After(kPatience), reports.At(i * c.ranks + rank));
    }
    for (Rank rank = 0; rank < c.ranks; ++rank) failpoint::Disarm(held(rank));
    // Wakes the threads.
    for (Rank rank = 0; rank < c.ranks; ++rank)
      plan.executor(rank)->Observe(false, [](const RankState&) {});
    for (const EpochReport& report : reports.Wait()) EXPECT_EQ(report.status, absl::OkStatus());
    for (Rank rank = 0; rank < c.ranks; ++rank)
      EXPECT_EQ(plan.CountWrong(rank, MatrixProduct(a, b)), 0);
  }

  static Case Of(const char* algorithm, int ranks, bool carried) {
    Case c = {algorithm, DType::kBF16, ranks, 1, 1, 40, 30, 24};
    c.carried = carried;
    return c;
  }

  const Armed few_rows_{"products.few_rows"};
};

TEST_P(KernelEpochs, WaitForCopiesOfTheirOwnEpoch) {
  RunAhead(Of("ring", 3, /*carried=*/false), "agmm_product_");
}

TEST_P(KernelEpochs, WaitForKernelsOfTheirOwnEpoch) {
  Case c = Of("bidirectional_ring", 4, /*carried=*/true);
  c.m = 4 * 130;  // two tiles of a chunk, so two CTAs send it
  RunAhead(c, "agmm_ring_");
}

// A kernel sends a chunk to two ranks, and copies take it to the third. If they were behind the
// kernel in the only channel, all kernels would wait.
TEST_P(KernelEpochs, WaitForKernelsAndCopies) {
  RunAhead(Of("direct", 4, /*carried=*/true), "agmm_ring_");
}

// B travels by copies. Kernel 1 sends A's chunk of rank 2 to rank 0, and only after a product with
// rank 0's shard of B. Rank 0 may submit its kernel as soon as it may submit the copy of this
// shard; if the kernel were first in the only channel, it would wait for itself.
TEST_P(KernelEpochs, BeginBehindTheCopiesOfTheirRank) {
  Case c = Of("bidirectional_ring", 4, /*carried=*/true);
  c.spec = "A[M_x, K] * B[K, N_x] -> C[M, N]";
  Cluster cluster(CudaKinds()[0], c.topology());
  PreparedPlan plan(cluster, c.problem(), c.schedule(cluster.topology()));
  EXPECT_THAT(plan.executor(0)->device_products(),
              testing::IsSupersetOf({testing::Matcher<std::string>(StartsWith("agmm_ring_")),
                                     testing::Matcher<std::string>(
                                         StartsWith("copied, not carried: kernels send"))}));
  const TestMatrix a = SmallIntegers(c.m, c.k, 1), b = SmallIntegers(c.k, c.n, 2);
  plan.Fill(a, b);
  Reports reports(c.ranks);
  {
    const Armed hold("executor.hold_rank_0");
    for (Rank rank = 0; rank < c.ranks; ++rank)
      plan.Run(rank, 1, 1, Deadline::After(kPatience), reports.At(rank));
    EXPECT_TRUE(Eventually([&] {
      std::promise<RankState> state;
      plan.executor(0)->Observe(false, [&](const RankState& seen) { state.set_value(seen); });
      const std::vector<LaneState> lanes = state.get_future().get().lanes;
      return lanes.size() > 1 && absl::c_all_of(lanes, [](const auto& lane) { return lane.ready; });
    })) << "another rank has not submitted its copies";
  }
  plan.executor(0)->Observe(false, [](const RankState&) {});  // wakes its thread
  for (const EpochReport& report : reports.Wait()) EXPECT_EQ(report.status, absl::OkStatus());
  for (Rank rank = 0; rank < c.ranks; ++rank)
    EXPECT_EQ(plan.CountWrong(rank, MatrixProduct(a, b)), 0);
}

INSTANTIATE_TEST_SUITE_P(All, KernelEpochs,
                         testing::Values("gpus=4,channels=1,order=lazy",
                                         "gpus=4,channels=32,order=random,seed=2"));

}  // namespace
}  // namespace agmm::test
