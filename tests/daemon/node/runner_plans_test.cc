// The plans that a node keeps: their order of preparation, and their memory.
#include <string>
#include <utility>

#include "daemon/node/runner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/memory.h"
#include "tests/daemon/node/runner_harness.h"
#include "tests/support/patience.h"

namespace agmm {
namespace {

TEST(Runner, ANodePlansWithTheIslandsThatItIsGiven) {
  RunnerWorld world(1, 2);
  v1::PreparePlan command = world.PrepareOf(1, world.ProblemOf(8, 8, 8), "hierarchical_peer");
  world.Prepare(command);
  command.set_plan_id(2);
  command.add_islands(0);
  command.add_islands(1);
  world.node(0).runner->Prepare(command);
  const auto report = world.node(0).Next();
  ASSERT_TRUE(report.has_value());
  EXPECT_THAT(
      report->plan_prepared().error().message(),
      testing::AllOf(testing::HasSubstr("node 0 planned "),
                     testing::HasSubstr("but the sequencer planned " + command.plan_hash())));
  command.set_plan_id(3);
  command.mutable_islands()->RemoveLast();
  world.node(0).runner->Prepare(command);
  const auto too_few = world.node(0).Next();
  ASSERT_TRUE(too_few.has_value());
  EXPECT_EQ(too_few->plan_prepared().error().code(),
            static_cast<int>(absl::StatusCode::kInvalidArgument));
  world.EndGeneration();
}

TEST(Runner, ASmallPlanDoesNotWaitForALargeOneAndBothAreAccounted) {
  RunnerWorld world(2, 1);
  Runner& runner = *world.node(0).runner;
  v1::PreparePlan large = world.PrepareOf(1, world.ProblemOf(64, 8, 8), "ring", 16);
  large.set_large(true);
  failpoint::Arm("runner.hold_large_plan");
  for (int node : {0, 1}) world.node(node).runner->Prepare(large);
  world.Prepare(world.PrepareOf(2, world.ProblemOf(8, 8, 8)));
  failpoint::Disarm("runner.hold_large_plan");
  for (int node : {0, 1}) {
    const auto report = world.node(node).Next();
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(report->plan_prepared().plan_id(), 1u);
    EXPECT_EQ(report->plan_prepared().error().code(), 0);
    EXPECT_GT(report->plan_prepared().plan_bytes(), 16 * 400);
  }
  const int64_t both = runner.plan_bytes();
  v1::ReleasePlan release;
  release.set_plan_id(1);
  runner.Release(release);
  EXPECT_TRUE(Eventually([&] { return runner.plan_bytes() < both; }));
  EXPECT_GT(runner.plan_bytes(), 0);
  world.EndGeneration();
  EXPECT_EQ(runner.plan_bytes(), 0);
}

// Small plans must not wait until a large one has been freed.
TEST(Runner, ALargePlanIsFreedOnTheThreadOfLargeOnes) {
  RunnerWorld world(1, 2);
  Runner& runner = *world.node(0).runner;
  v1::PreparePlan large = world.PrepareOf(1, world.ProblemOf(64, 8, 8), "ring", 16);
  large.set_large(true);
  world.Prepare(large);
  // Once this one is prepared, the task that prepared the first no longer holds it.
  large.set_plan_id(2);
  world.Prepare(large);
  const int64_t both = runner.plan_bytes();
  failpoint::Arm("runner.hold_large_plan");
  large.set_plan_id(3);
  runner.Prepare(large);
  v1::ReleasePlan release;
  release.set_plan_id(1);
  runner.Release(release);
  world.Prepare(world.PrepareOf(4, world.ProblemOf(8, 8, 8)));
  EXPECT_GT(runner.plan_bytes(), both);
  failpoint::Disarm("runner.hold_large_plan");
  world.EndGeneration();
  EXPECT_EQ(runner.plan_bytes(), 0);
}

// Accurate to an eighth, plus half a MiB for memory outside plans: matmuls, which plans share, and
// the workers' scratch.
TEST(Runner, PlansUseTheAccountedMemory) {
  if (AllocatedBytes() == 0) GTEST_SKIP() << "a sanitizer has a malloc of its own";
  for (const auto& [algorithm, chunks] :
       {std::pair("peer", 64), {"direct", 64}, {"ring", 64}, {"split_ring", 32}, {"serial", 64}}) {
    RunnerWorld world(1, 8);
    const Problem problem = world.ProblemOf(64 * 64, 8 * 64, 16);
    // The first one allocates what later ones share.
    world.Prepare(world.PrepareOf(1, problem, algorithm, chunks));
    const auto before = static_cast<double>(AllocatedBytes());
    const auto counted = static_cast<double>(world.node(0).runner->plan_bytes());
    for (int plan = 2; plan <= 4; ++plan)
      world.Prepare(world.PrepareOf(plan, problem, algorithm, chunks));
    const double accounted = static_cast<double>(world.node(0).runner->plan_bytes()) - counted;
    const double allocated = static_cast<double>(AllocatedBytes()) - before;
    EXPECT_NEAR(allocated, accounted, accounted / 8 + (1 << 19)) << algorithm;
    EXPECT_GT(accounted, std::string(algorithm) == "serial" ? 1 << 10 : 4 << 20) << algorithm;
    world.EndGeneration();
  }
}

}  // namespace
}  // namespace agmm
