// Properties of every plan.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/verify.h"
#include "tests/schedule/problems.h"

namespace agmm::test {
namespace {

constexpr const char* kAlgorithms[] = {"serial", "ring", "direct", "peer"};
// Gathers A, even if another split moves fewer bytes.
constexpr char kGatherA[] = "N=x";
constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// Plans, proves, and closes once more.
void Check(int ranks, const Topology& topology, Shape shape, DType dtype, PlanOptions options,
           const std::string& spec = kDefaultSpec) {
  if (spec == kDefaultSpec) options.split = kGatherA;
  SCOPED_TRACE(absl::StrFormat("%s %s, %d chunks, %d ranks, M=%d N=%d K=%d %s", spec,
                               options.algorithm, options.chunks, ranks, shape.m, shape.n, shape.k,
                               Name(dtype)));
  const Problem problem = MakeProblem(ranks, shape, dtype, spec);
  const absl::StatusOr<Schedule> plan = Plan(problem, topology, options);
  if (options.algorithm == std::string("peer") &&
      topology.node_of_rank.front() != topology.node_of_rank.back() &&
      problem.tensors[kA].sharding.rows != problem.tensors[kC].sharding.rows) {
    ASSERT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument) << plan.status();
    return;
  }
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(Verify(problem, topology, *plan), absl::OkStatus());
  ASSERT_EQ(Close(*plan), *plan);
  ASSERT_EQ(*Plan(problem, topology, options), *plan);
}

TEST(EveryPlan, IsProvedOnEverySplitOfRanksOverNodes) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (int nodes = 1; nodes <= ranks; ++nodes) {
      const int devices = (ranks + nodes - 1) / nodes;
      if ((ranks + devices - 1) / devices != nodes) continue;  // a node would be empty
      const Topology topology = UniformTopology(ranks, nodes, devices).value();
      for (const char* algorithm : kAlgorithms) {
        for (int chunks : {1, 3}) {
          Check(ranks, topology, {97, 61, 333}, DType::kBF16, {algorithm, chunks});
        }
      }
      if (HasFatalFailure()) return;
    }
  }
}

TEST(EveryPlan, IsProvedForRaggedShapes) {
  for (int ranks : {1, 2, 3, 5, 8, 16}) {
    for (int64_t m : {1, 2, 97, 1000}) {
      for (int64_t n : {1, 3, 61}) {
        for (DType dtype : kDTypes) {
          for (const char* algorithm : kAlgorithms) {
            for (int chunks : {0, 1, 2, 3, 8}) {
              Check(ranks, MakeTopology(ranks, 1), {m, n, 333}, dtype, {algorithm, chunks});
            }
          }
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(EveryPlan, IsProvedForRandomProblems) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(absl::StrFormat("AGMM_SEED=%d", seed));
  std::mt19937_64 random(seed);
  auto draw = [&](int64_t most) { return 1 + static_cast<int64_t>(random() % most); };
  const std::string specs[] = {kDefaultSpec, "A[M_x, K] * B[K, N] -> C[M, N]",
                               "A[M_x, K] * B[K, N] -> C[M_x, N]",
                               "A[M, K] * B[K, N_x] -> C[M, N_x]"};
  for (int i = 0; i < 300; ++i) {
    const int ranks = static_cast<int>(draw(16));
    const int devices = static_cast<int>(draw(ranks));
    const Topology topology =
        UniformTopology(ranks, (ranks + devices - 1) / devices, devices).value();
    const Shape shape = {draw(300), draw(300), draw(300)};
    const PlanOptions options = {kAlgorithms[random() % std::size(kAlgorithms)],
                                 static_cast<int>(draw(8))};
    Check(ranks, topology, shape, kDTypes[random() % 3], options,
          random() % 2 ? kDefaultSpec : specs[random() % 4]);
    if (HasFatalFailure()) return;
  }
}

TEST(EveryPlan, OfAWideMeshIsProved) {
  for (const char* algorithm : kAlgorithms) {
    Check(32, MakeTopology(32, algorithm == std::string("peer") ? 1 : 4), {8192, 4096, 1024},
          DType::kBF16, {algorithm, 8});
  }
}

// Ranks 0 to 2 are on one node and 3 to 5 on another: dp=2,tp=3.
constexpr char kWithinNodes[] = "A[M_tp, K] * B[K, N_tp] -> C[M, N_tp]";
constexpr char kBetweenNodes[] = "A[M_dp, K] * B[K, N_tp] -> C[M, N_tp]";

absl::StatusOr<Problem> TwoAxes(const std::string& spec, Shape shape) {
  return ParseProblem(spec, ParseMesh("dp=2,tp=3").value(), shape, DType::kF32);
}

TEST(Peer, IsPlannedWhereEachGroupIsWithinANode) {
  const Topology topology = MakeTopology(6, 2);
  for (int64_t m : {1, 2, 97}) {
    for (int64_t n : {1, 61}) {
      for (int chunks : {1, 2}) {
        const Problem problem = TwoAxes(kWithinNodes, {m, n, 40}).value();
        const absl::StatusOr<Schedule> plan = Plan(problem, topology, {"peer", chunks, 0, "N=tp"});
        ASSERT_TRUE(plan.ok()) << plan.status();
        EXPECT_EQ(Verify(problem, topology, *plan), absl::OkStatus());
        EXPECT_EQ(plan->workspace_bytes, 0);
        for (const std::vector<Step>& steps : plan->ranks) {
          for (const Step& step : steps) {
            EXPECT_FALSE(std::holds_alternative<Transfer>(step.op)) << "nothing is copied";
          }
        }
      }
    }
  }
}

TEST(Peer, IsRefusedInOneLineWhereAGroupIsOnTwoNodes) {
  const Problem problem = TwoAxes(kBetweenNodes, {97, 61, 40}).value();
  for (const char* algorithm : {"peer", "auto"}) {
    const auto resolved = ResolveOptions(problem, MakeTopology(6, 2), {algorithm, 0, 0, "N=tp"});
    if (algorithm == std::string("auto")) {
      ASSERT_TRUE(resolved.ok());
      EXPECT_NE(resolved->recipe.algorithm->name, "peer");
      continue;
    }
    EXPECT_EQ(resolved.status(),
              absl::InvalidArgumentError(
                  "algorithm peer reads from the memory of one node, and ranks 0 and "
                  "3, which exchange blocks, are on nodes 0 and 1; use ring or direct"));
  }
}

TEST(Peer, KeepsTheRequestedPieces) {
  const Problem problem = TwoAxes(kWithinNodes, {960, 384, 4096}).value();
  const auto resolved = ResolveOptions(problem, MakeTopology(6, 2), {"peer", 3, 0, "N=tp"});
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(OptionsOf(problem, resolved->recipe), (PlanOptions{"peer", 3, 1, "N=tp"}));
  EXPECT_EQ(resolved->why, "");
}

TEST(Serial, ReportsThatItIgnoresTheRequestedChunks) {
  const Problem problem = MakeProblem(3, {96, 64, 48});
  const auto resolve = [&](const PlanOptions& asked) {
    return ResolveOptions(problem, MakeTopology(3, 3), asked).value();
  };
  const ResolvedOptions four = resolve({"serial", 4, 0, "N=x"});
  EXPECT_EQ(OptionsOf(problem, four.recipe), (PlanOptions{"serial", 1, 1, "N=x"}));
  EXPECT_EQ(four.why, "serial takes shards whole, not in the 4 chunks that were asked for");
  EXPECT_EQ(resolve({"serial", 1, 0, "N=x"}).why, "");
}

TEST(Serial, GathersEachShardToANodeOnceAndMultipliesOnce) {
  const Problem problem = MakeProblem(64, {8, 64, 8192}, DType::kBF16);
  const Topology topology = MakeTopology(64, 8);
  const Schedule schedule = Plan(problem, topology, {"serial", 0, 0, "N=x"}).value();
  EXPECT_EQ(Verify(problem, topology, schedule), absl::OkStatus());
  int64_t bytes = 0;
  for (const Traffic& traffic : TrafficOf(topology, schedule)) bytes += traffic.other_nodes;
  EXPECT_EQ(bytes, 896 << 10) << "8 rows of 16 KiB to 7 other nodes";
  for (const std::vector<Step>& steps : schedule.ranks) {
    EXPECT_EQ(
        absl::c_count_if(
            steps, [](const Step& step) { return std::holds_alternative<Multiply>(step.op); }),
        1);
  }
}

// The errors of Verify for a peer plan without its joins.
TEST(Peer, WithoutEntryOrExitAnOwnersShardIsReadOutsideOfItsEpoch) {
  const Problem problem = MakeProblem(3, {9, 6, 4});
  const Topology topology = MakeTopology(3, 1);
  const Schedule plan = Plan(problem, topology, {"peer", 1, 0, "N=x"}).value();
  for (Rank rank = 0; rank < 3; ++rank) {
    Schedule without = plan;
    without.ranks[rank].pop_back();
    EXPECT_THAT(std::string(Verify(problem, topology, without).message()),
                testing::HasSubstr("may end its epoch meanwhile"));
    without = plan;
    for (std::vector<Step>& steps : without.ranks) {
      for (Step& step : steps) {
        if (std::holds_alternative<Multiply>(step.op)) step.waits.clear();
      }
    }
    EXPECT_THAT(std::string(Verify(problem, topology, without).message()),
                testing::HasSubstr("may not have launched yet"));
  }
}

}  // namespace
}  // namespace agmm::test
