// Nodes on which not all ranks load and store each other's memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/schedule/plan.h"
#include "kernels/schedule/plan_hash.h"
#include "kernels/schedule/topology.h"
#include "tests/schedule/verify_fixture.h"

namespace agmm::test {
namespace {

using ::testing::HasSubstr;

const Shape kShape{64, 48, 80};

PlanOptions By(const std::string& name) {
  PlanOptions options;
  options.algorithm = name;
  return options;
}

Problem OnMesh(const std::string& mesh, const std::string& spec) {
  return ParseProblem(spec, ParseMesh(mesh).value(), kShape, DType::kF32).value();
}

TEST(Islands, RanksLoadWithinTheirIslandAndNode) {
  const Topology topology{{0, 0, 1, 1}, {0, 1, 0, 0}};
  EXPECT_TRUE(topology.CanLoad(1, 1));
  EXPECT_FALSE(topology.CanLoad(0, 1));
  EXPECT_TRUE(topology.CanLoad(2, 3));
  EXPECT_FALSE(topology.CanLoad(0, 2)) << "islands are numbered within a node";
  EXPECT_TRUE(topology.SameNode(0, 1));
  const Topology nodes{{0, 0, 1}};
  EXPECT_TRUE(nodes.CanLoad(0, 1));
  EXPECT_FALSE(nodes.CanLoad(1, 2));
}

TEST(Islands, PeerAcrossTwoIsRefusedByTheNamesOfTheRanks) {
  const Problem problem = MakeProblem(4, kShape);
  const Topology topology{{0, 0, 0, 0}, {0, 0, 1, 1}};
  const absl::Status refused = Plan(problem, topology, By("peer")).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_EQ(refused.message(),
            "algorithm peer reads from memory that every rank can load, and ranks 0 and 2, "
            "which exchange blocks, are in islands 0 and 1 of node 0; use ring or direct");
}

// Gathers along x, and rank r is (x, y) = (r / 2, r % 2).
TEST(Islands, AGatherWithinOneIslandReadsInPlace) {
  const Problem problem = OnMesh("x=2,y=2", "A[M_x, K] * B[K, N_xy] -> C[M, N_xy]");
  const Topology columns{{0, 0, 0, 0}, {0, 1, 0, 1}}, rows{{0, 0, 0, 0}, {0, 0, 1, 1}};
  PlanOptions peer = By("peer");
  peer.split = "N=xy";
  EXPECT_EQ(Verify(problem, columns, Plan(problem, columns, peer).value()), absl::OkStatus());
  EXPECT_TRUE(absl::IsInvalidArgument(Plan(problem, rows, peer).status()));
}

TEST(Islands, AReplicaInTheOwnIslandIsRead) {
  const Problem problem = OnMesh("x=2,y=2", "A[M_x, K] * B[K, N_xy] -> C[M, N_xy]");
  for (const Topology& topology :
       {Topology{{0, 0, 0, 0}, {0, 1, 0, 1}}, Topology{{0, 0, 0, 0}, {1, 0, 0, 1}}}) {
    PlanOptions peer = By("peer");
    peer.split = "N=xy";
    const auto schedule = Plan(problem, topology, peer);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    EXPECT_EQ(Verify(problem, topology, *schedule), absl::OkStatus());
  }
}

TEST(Islands, EveryAlgorithmIsRightInThem) {
  for (const char* spec :
       {"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "A[M_xy, K] * B[K, N_x] -> C[M_y, N_x]",
        "A[M, K_x] * B[K_x, N_y] -> C[M_x, N_y]", "A[M, K_xy] * B[K_xy, N] -> C[M, N]",
        "A[M_x, K] * B[K, N_y] -> C[M, N]"}) {
    const Problem problem = OnMesh("x=2,y=3", spec);
    for (const Topology& topology : {Topology{{0, 0, 0, 0, 0, 0}, {0, 0, 0, 1, 1, 1}},
                                     Topology{{0, 0, 0, 0, 0, 0}, {0, 1, 2, 3, 4, 5}},
                                     Topology{{0, 0, 0, 1, 1, 1}, {0, 1, 1, 0, 0, 1}}}) {
      for (const char* algorithm : {"auto", "ring", "direct", "serial"}) {
        const auto schedule = Plan(problem, topology, By(algorithm));
        ASSERT_TRUE(schedule.ok()) << spec << " " << algorithm << ": " << schedule.status();
        EXPECT_EQ(Verify(problem, topology, *schedule), absl::OkStatus()) << spec << algorithm;
      }
    }
  }
}

TEST(Islands, ALoadAcrossTwoFailsItsProof) {
  Hand hand = Hand::Load();
  EXPECT_EQ(hand.Check(), absl::OkStatus());
  hand.topology.island_of_rank = {0, 0};
  EXPECT_EQ(hand.Check(), absl::OkStatus());
  hand.topology.island_of_rank = {0, 1};
  const absl::Status refused = hand.Check();
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("reads rank 1's A, which is on another island of its node; transfer it"));
  // A transfer is a copy, which needs no common island.
  hand = Hand::Push();
  hand.topology.island_of_rank = {0, 1};
  EXPECT_EQ(hand.Check(), absl::OkStatus());
}

TEST(Islands, WithOneIslandPerNodeThePlanIsUnchanged) {
  const Problem problem = MakeProblem(4, kShape);
  for (const char* algorithm : {"ring", "direct", "serial"}) {
    const Topology nodes{{0, 0, 1, 1}}, islands{{0, 0, 1, 1}, {3, 3, 3, 3}};
    EXPECT_EQ(PlanHash(problem, Plan(problem, nodes, By(algorithm)).value()),
              PlanHash(problem, Plan(problem, islands, By(algorithm)).value()));
  }
}

TEST(Islands, AListThatLeavesRanksOutIsRefused) {
  const Problem problem = MakeProblem(4, kShape);
  const absl::Status refused = Plan(problem, {{0, 0, 0, 0}, {0, 0, 1}}, By("ring")).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("3 islands for 4 ranks"));
}

}  // namespace
}  // namespace agmm::test
