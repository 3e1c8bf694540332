// Guarantees of the CPU device beyond those of every device: large pages, packed operands, scratch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kernels/base/deadline.h"
#include "kernels/base/failpoint.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/plan_hash.h"
#include "kernels/schedule/verify.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/large_pages.h"
#include "tests/support/hidden_heap.h"

namespace agmm::test {
namespace {

TEST(CpuDevice, ResultsLieInLargePages) {
  if (!HasLargePages()) GTEST_SKIP() << "this machine has no large pages for files";
  const Case c{"serial", DType::kF32, 1, 1, 1, 2048, 1024, 16, 1};
  Cluster cluster(CpuKind(), c.topology(), Cluster::Options());
  PreparedPlan plan(cluster, c.problem(), c.schedule());
  plan.Fill(SmallIntegers(c.m, c.k, TestSeed()), SmallIntegers(c.k, c.n, TestSeed() + 1));
  EXPECT_EQ(LargePages(cluster.heap(0)->host().data()), 0);
  ASSERT_EQ(plan.RunAll(1)[0].status, absl::OkStatus());
  // C has 8 MiB; other tensors may share its first and last page.
  EXPECT_GE(LargePages(cluster.heap(0)->host().data()), 3);
}

TEST(CpuDevice, WarmEpochsPackAndAllocateNothing) {
  const Case c{"ring", DType::kBF16, 2, 1, 2, 300, 64, 100, 2};
  Cluster::Options options;
  options.threads = c.threads;
  Cluster cluster(CpuKind(), c.topology(), options);
  PreparedPlan plan(cluster, c.problem(), c.schedule());
  const TestMatrix a = SmallIntegers(c.m, c.k, TestSeed());
  plan.Fill(a, SmallIntegers(c.k, c.n, TestSeed() + 1));
  uint64_t epoch = 1;
  plan.RunAll(epoch++, 1);
  const DeviceCounters before = cluster.device(0)->counters();
  EXPECT_EQ(before.packs, 1);
  EXPECT_GT(before.packed_bytes, 0);
  EXPECT_GT(before.allocations, before.packs);
  for (int i = 0; i < 100; ++i) plan.RunAll(epoch++, 1);
  DeviceCounters after = cluster.device(0)->counters();
  EXPECT_EQ(after.packs, before.packs);
  EXPECT_EQ(after.packed_bytes, before.packed_bytes);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.epochs, before.epochs + 100);
  // Other contents under another version; the old copy is dropped.
  const TestMatrix b = SmallIntegers(c.k, c.n, TestSeed() + 2);
  plan.Fill(a, b);
  plan.RunAll(epoch++, 2);
  after = cluster.device(0)->counters();
  EXPECT_EQ(after.packs, before.packs + 1);
  EXPECT_EQ(after.allocations, before.allocations + 1);
  EXPECT_EQ(after.packed_bytes, before.packed_bytes);
  for (Rank rank = 0; rank < 2; ++rank) EXPECT_EQ(plan.CountWrong(rank, MatrixProduct(a, b)), 0);
  // Forgotten contents lose their packed copy, too.
  cluster.device(0)->ForgetContents(cluster.heap(0), 0, cluster.heap(0)->size_bytes());
  EXPECT_EQ(cluster.device(0)->counters().packed_bytes, 0);
  plan.RunAll(epoch++, 2);
  EXPECT_EQ(cluster.device(0)->counters().packs, after.packs + 1);
  EXPECT_EQ(cluster.device(0)->counters().packed_bytes, before.packed_bytes);
}

TEST(CpuDevice, AnOperandThatNoOperationUsesIsLeftAsItIs) {
  for (const char* algorithm : {"serial", "ring", "direct", "peer"}) {
    const int nodes = algorithm == std::string("peer") ? 1 : 2;
    const Case c{algorithm, DType::kF32, 4, nodes, 1, 40, 12, 20, 1};
    Problem problem = c.problem();
    const Schedule three = *Plan(problem, c.topology(), {algorithm, 1});
    problem.tensors.push_back({"D", "P", "Q", 30, 7, DType::kBF16, {{0}, {}}});
    const Operand unused = 3;
    const absl::StatusOr<Schedule> schedule = Plan(problem, c.topology(), {algorithm, 1});
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    EXPECT_EQ(schedule->ranks, three.ranks);
    EXPECT_NE(PlanHash(problem, *schedule), PlanHash(c.problem(), three));
    EXPECT_EQ(Verify(problem, c.topology(), *schedule), absl::OkStatus());

    Cluster cluster(CpuKind(), c.topology());
    PreparedPlan plan(cluster, problem, *schedule);
    const TestMatrix a = SmallIntegers(c.m, c.k, 1), b = SmallIntegers(c.k, c.n, 2),
                     d = SmallIntegers(30, 7, 3);
    plan.Fill(a, b);
    for (Rank rank = 0; rank < 4; ++rank) plan.Write(rank, unused, d);
    for (const EpochReport& report : plan.RunAll(1)) EXPECT_EQ(report.status, absl::OkStatus());
    for (Rank rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(plan.CountWrong(rank, MatrixProduct(a, b)), 0) << algorithm;
      EXPECT_EQ(plan.CountWrong(rank, d, unused), 0) << algorithm;
    }
  }
}

TEST(CpuDevice, DescribesItself) {
  const auto device = CpuKind().create(0, 2);
  EXPECT_EQ(device->info().kind, "cpu");
  EXPECT_THAT(device->info().description, testing::HasSubstr("2 threads"));
  EXPECT_EQ(device->info().threads, 2);
}

TEST(CpuDevice, RefusesPeersWithoutHostMemory) {
  const Case c{"ring", DType::kF32, 2, 1, 1, 40, 12, 20, 1};
  Cluster cluster(CpuKind(), c.topology());
  HiddenHeap hidden(cluster.heap(1)->host());
  const absl::Status refused = PrepareRank0(cluster, c.problem(), c.schedule(), &hidden);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              testing::HasSubstr("the memory of rank 1 is not the host's"));
}

#ifdef AGMM_FAILPOINTS
TEST(CpuDevice, APlanThatGetsNoScratchIsRefusedAndTheNextOneIsNot) {
  const Case c{"ring", DType::kBF16, 2, 1, 1, 40, 12, 20, 1},
      larger{"ring", DType::kBF16, 2, 1, 1, 400, 120, 200, 1};
  Cluster cluster(CpuKind(), c.topology());
  EXPECT_EQ(PrepareRank0(cluster, c.problem(), c.schedule()), absl::OkStatus());
  failpoint::Arm("scratch.none");
  const absl::Status refused = PrepareRank0(cluster, larger.problem(), larger.schedule());
  failpoint::Disarm("scratch.none");
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("of scratch"));
  PreparedPlan plan(cluster, c.problem(), c.schedule());
  const TestMatrix a = SmallIntegers(ShapeOf(c.problem()).m, ShapeOf(c.problem()).k, 1),
                   b = SmallIntegers(ShapeOf(c.problem()).k, ShapeOf(c.problem()).n, 2);
  plan.Fill(a, b);
  Reports reports(2);
  for (Rank rank = 0; rank < 2; ++rank)
    plan.Run(rank, 1, 1, Deadline::After(absl::Seconds(60)), reports.At(rank));
  for (const EpochReport& report : reports.Wait()) EXPECT_EQ(report.status, absl::OkStatus());
  EXPECT_EQ(plan.CountWrong(0, MatrixProduct(a, b)), 0);
}
#endif

}  // namespace
}  // namespace agmm::test
