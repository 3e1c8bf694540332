// Tuned plans: for which problems they are found, and when they are taken.
#include "kernels/predict/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/predict/choose_tuned.h"
#include "kernels/schedule/spec.h"
#include "tests/predict/platforms.h"

namespace agmm::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TuningKey KeyOf(int64_t m, int64_t n, int64_t k) {
  TuningKey key;
  key.spec = kDefaultSpec;
  key.dtypes = {DType::kBF16, DType::kBF16, DType::kBF16};
  key.mesh = "x=4";
  key.ranks_per_node = {2, 2};
  key.m = m;
  key.n = n;
  key.k = k;
  key.hardware = "cpu: 2 threads";
  key.between_bytes_per_ns = 1;
  return key;
}

TunedPlan PlanOf(const TuningKey& key, const PlanOptions& options = {"direct", 4, 1, "N=x"}) {
  return {key, options, 212, 290, "2026-11-27"};
}

TEST(TuningTable, FindsTheSameShape) {
  const TuningTable table({PlanOf(KeyOf(100, 100, 100)), PlanOf(KeyOf(128, 128, 128))});
  const TuningTable::Match match = table.Find(KeyOf(128, 128, 128));
  EXPECT_EQ(match.plan, &table.plans()[1]);
  EXPECT_TRUE(match.exact);
}

TEST(TuningTable, FindsTheFirstOfEqualPlans) {
  const TuningTable table({PlanOf(KeyOf(128, 128, 128)), PlanOf(KeyOf(128, 128, 128))});
  EXPECT_EQ(table.Find(KeyOf(128, 128, 128)).plan, &table.plans()[0]);
}

TEST(TuningTable, FindsTheNearestShapeByLogarithms) {
  // 100 differs from 128 by a factor of 1.28 in each of three dimensions, 200 by 1.56 in one.
  const TunedPlan far = PlanOf(KeyOf(100, 100, 100)), near = PlanOf(KeyOf(128, 200, 128));
  for (const TuningTable& table : {TuningTable({far, near}), TuningTable({near, far})}) {
    const TuningTable::Match match = table.Find(KeyOf(128, 128, 128));
    ASSERT_NE(match.plan, nullptr);
    EXPECT_EQ(*match.plan, near);
    EXPECT_FALSE(match.exact);
  }
}

TEST(TuningTable, NearIsAFactorOfTwoInEachDimension) {
  const TuningTable table({PlanOf(KeyOf(128, 128, 128))});
  EXPECT_NE(table.Find(KeyOf(256, 64, 256)).plan, nullptr);
  EXPECT_EQ(table.Find(KeyOf(257, 128, 128)).plan, nullptr);
  EXPECT_EQ(table.Find(KeyOf(128, 63, 128)).plan, nullptr);
  EXPECT_EQ(table.Find(KeyOf(128, 128, 257)).plan, nullptr);
  EXPECT_EQ(table.Find(KeyOf(128, 128, 0)).plan, nullptr);
}

TEST(TuningTable, WhateverElseDiffersIsNotFound) {
  const TuningTable table({PlanOf(KeyOf(128, 128, 128))});
  const std::vector<std::function<void(TuningKey&)>> changes = {
      [](TuningKey& key) { key.spec = "A[M, K_x] * B[K, N_x] -> C[M, N_x]"; },
      [](TuningKey& key) { key.dtypes[2] = DType::kF32; },
      [](TuningKey& key) {
        key.dtypes = {DType::kF16, DType::kF16, DType::kF16};
      },
      [](TuningKey& key) { key.mesh = "x=2,y=2"; },
      [](TuningKey& key) {
        key.ranks_per_node = {1, 3};
      },
      [](TuningKey& key) { key.ranks_per_node = {4}; },
      [](TuningKey& key) { key.ranks_per_node = {}; },
      [](TuningKey& key) { key.hardware = "cpu: 4 threads"; },
      [](TuningKey& key) { key.between_bytes_per_ns = 0.79; },
      [](TuningKey& key) { key.between_bytes_per_ns = 1.26; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    for (const int64_t n : {128, 150}) {
      TuningKey key = KeyOf(128, n, 128);
      EXPECT_NE(table.Find(key).plan, nullptr);
      changes[i](key);
      EXPECT_EQ(table.Find(key).plan, nullptr) << "change " << i;
    }
  }
}

TEST(TuningTable, RatesThatWereNotMeasuredAreLikeAnyOther) {
  TuningKey unknown = KeyOf(128, 128, 128);
  unknown.between_bytes_per_ns = 0;
  const TuningTable measured({PlanOf(KeyOf(128, 128, 128))}), not_measured({PlanOf(unknown)});
  EXPECT_NE(measured.Find(unknown).plan, nullptr);
  EXPECT_NE(not_measured.Find(KeyOf(128, 128, 128)).plan, nullptr);
  TuningKey similar = KeyOf(128, 128, 128);
  similar.between_bytes_per_ns = 0.81;
  EXPECT_NE(measured.Find(similar).plan, nullptr);
}

TEST(TuningKey, HasTheNodesOfNeighbours) {
  EXPECT_THAT(RanksPerNode({{3, 3, 1}}), ElementsAre(2, 1));
  EXPECT_THAT(RanksPerNode({{0, 1, 0}}), ElementsAre());
}

TEST(TuningKey, HasTheSlowestMeasuredLinkOfItsNodes) {
  Machine machine = PlatformOf(4, Wiring::kSwitch, Duplex(2, 0)).machine;
  machine.between.pairs = {{0, 1, 1.5, 0}, {2, 0, 0.5, 0}};
  EXPECT_EQ(MeasuredBetween({{0, 1}}, machine), 0) << "a preset";
  machine.version = 1;
  EXPECT_EQ(MeasuredBetween({{0, 1}}, machine), 1.5);
  EXPECT_EQ(MeasuredBetween({{0, 1, 2}}, machine), 0.5);
  EXPECT_EQ(MeasuredBetween({{1, 2}}, machine), 2);
  EXPECT_EQ(MeasuredBetween({{1, 1}}, machine), 0) << "one node";
}

TEST(TuningKey, HasASpecWithoutDtypes) {
  const Problem problem = ParseProblem("A[M_x, K] * B[K, N_x] -> C[M, N_x]:f32",
                                       ParseMesh("x=2").value(), {8, 16, 32}, DType::kBF16)
                              .value();
  const TuningKey key = TuningKeyOf(problem, {{0, 0}}, {}, "h");
  EXPECT_EQ(key.spec, kDefaultSpec);
  EXPECT_THAT(key.dtypes, ElementsAre(DType::kBF16, DType::kBF16, DType::kF32));
  EXPECT_EQ(key.mesh, "x=2");
  EXPECT_THAT(key.ranks_per_node, ElementsAre(2));
  EXPECT_THAT((std::vector{key.m, key.n, key.k}), ElementsAre(8, 16, 32));
  EXPECT_EQ(key.hardware, "h");
}

class ChoosingTuned : public testing::Test {
 protected:
  ChoosingTuned() {
    SetShape({256, 256, 256});
    platform_ = PlatformOf(4, Wiring::kSwitch, Duplex(1, 1000), 2);
    platform_.machine.version = 7;
  }
  void SetShape(const agmm::Shape& shape, const char* spec = kDefaultSpec) {
    problem_ = ParseProblem(spec, ParseMesh("x=4").value(), shape, DType::kBF16).value();
  }
  // Returns the plan for the problem as it is.
  TunedPlan Tuned(const PlanOptions& options) const {
    return PlanOf(TuningKeyOf(problem_, platform_.topology, platform_.machine, "h"), options);
  }
  std::optional<Choice> Of(const TunedPlan& plan, const PlanOptions& asked = {}) const {
    const TuningTable table({plan});
    const TuningKey key = TuningKeyOf(problem_, platform_.topology, platform_.machine, "h");
    return ChooseTuned(problem_, platform_, asked, table.Find(key), limits_);
  }

  Problem problem_;
  Platform platform_;
  ChooseLimits limits_;
};

TEST_F(ChoosingTuned, TakesTheOptionsOfTheSameShape) {
  const PlanOptions options = {"ring", 3, 1, "N=x"};
  const std::optional<Choice> choice = Of(Tuned(options));
  ASSERT_TRUE(choice.has_value());
  EXPECT_EQ(OptionsOf(problem_, choice->recipe), options);
  EXPECT_GT(choice->time_ns, 0);
  EXPECT_THAT(choice->why,
              StartsWith("tuned: ring in 3 chunks, split N=x took 212 us on 2026-11-27 (serial 290 "
                         "us); predicted "));
  EXPECT_THAT(choice->why, HasSubstr("; machine test 7"));
}

TEST_F(ChoosingTuned, NamesTheNearestShape) {
  const TunedPlan plan = Tuned({"ring", 2, 1, "N=x"});
  SetShape({300, 256, 256});
  const std::optional<Choice> choice = Of(plan);
  ASSERT_TRUE(choice.has_value());
  EXPECT_THAT(choice->why,
              StartsWith("tuned for M=256 N=256 K=256, the nearest shape: ring in 2 chunks"));
}

TEST_F(ChoosingTuned, LeavesOutWhatWasNotMeasured) {
  TunedPlan plan = Tuned({"ring", 2, 1, "N=x"});
  plan.serial_us = 0;
  EXPECT_THAT(Of(plan)->why, testing::Not(HasSubstr("serial")));
}

TEST_F(ChoosingTuned, ATableWithoutThePlanLeavesTheChoiceToPrediction) {
  TunedPlan plan = Tuned({"ring", 2, 1, "N=x"});
  plan.key.hardware = "other";
  EXPECT_FALSE(Of(plan).has_value());
}

TEST_F(ChoosingTuned, KeepsEachRequest) {
  const TunedPlan plan = Tuned({"ring", 2, 1, "N=x"});
  const std::vector<std::pair<PlanOptions, bool>> cases = {
      {{"ring"}, false},
      {{"auto", 2}, true},
      {{"auto", 4}, false},
      {{"auto", 1}, false},
      {{"auto", 0, 1}, true},
      {{"auto", 0, 2}, false},
      {{"auto", 0, 0, "N=x"}, true},
      {{"auto", 0, 0, "none"}, false},
      {{"auto", 0, 0, "", 2}, false},
      {{"auto", 0, 0, "", 0, true}, false},
      {{"auto", 0, 0, "", 0, false, true}, false},
      {{"auto", 0, 0, "", 0, false, false, DType::kBF16}, false},
  };
  for (const auto& [asked, taken] : cases)
    EXPECT_EQ(Of(plan, asked).has_value(), taken) << ToString(asked);
}

TEST_F(ChoosingTuned, ThePlanMayHaveWhatWasNotAskedFor) {
  EXPECT_TRUE(Of(Tuned({"ring", 2, 1, "N=x", 2})).has_value());
  EXPECT_TRUE(Of(Tuned({"ring", 2, 1, "N=x", 0, true})).has_value());
  EXPECT_TRUE(Of(Tuned({"ring", 2, 1, "N=x", 2}), {"auto", 0, 0, "", 2}).has_value());
  EXPECT_TRUE(Of(Tuned({"ring", 2, 1, "N=x", 0, true}), {"auto", 0, 0, "", 0, true}).has_value());
}

// It would change C.
TEST_F(ChoosingTuned, PartialSumsHaveTheDtypeThatWasAskedFor) {
  SetShape({256, 256, 256}, "A[M, K_x] * B[K_x, N] -> C[M, N_x]");
  const TunedPlan narrow = Tuned({"ring", 1, 1, "K=x", 0, false, false, DType::kBF16});
  EXPECT_FALSE(Of(narrow).has_value());
  EXPECT_TRUE(Of(narrow, {"auto", 0, 0, "", 0, false, false, DType::kBF16}).has_value());
  EXPECT_FALSE(Of(Tuned({"ring", 1, 1, "K=x"}), {"auto", 0, 0, "", 0, false, false, DType::kBF16})
                   .has_value());
}

// With both inputs whole along K, C has the same bits on any mesh unless a split of K is asked for.
TEST_F(ChoosingTuned, ASumInAnotherOrderIsTakenOnlyIfItIsAskedFor) {
  SetShape({256, 256, 256}, "A[M, K] * B[K, N] -> C[M, N_x]");
  const TunedPlan plan = Tuned({"ring", 1, 1, "K=x"});
  EXPECT_FALSE(Of(plan).has_value());
  EXPECT_TRUE(Of(plan, {"auto", 0, 0, "K=x"}).has_value());
}

TEST_F(ChoosingTuned, PiecesAlongKAreTakenOnlyIfTheyAreAskedForWhereKIsWhole) {
  const TunedPlan plan = Tuned({"ring", 1, 2, "N=x"});
  EXPECT_FALSE(Of(plan).has_value());
  EXPECT_TRUE(Of(plan, {"auto", 0, 2}).has_value());
  // Here the shards cut K.
  SetShape({256, 256, 256}, "A[M, K_x] * B[K, N_x] -> C[M, N_x]");
  EXPECT_TRUE(Of(Tuned({"ring", 1, 2, "N=x"})).has_value());
}

TEST_F(ChoosingTuned, APlanBeyondTheLimitsLeavesTheChoiceToPrediction) {
  const TunedPlan plan = Tuned({"ring", 4, 1, "N=x"});
  ASSERT_TRUE(Of(plan).has_value());
  limits_.workspace_bytes = 1000;
  EXPECT_FALSE(Of(plan).has_value());
  limits_ = {};
  limits_.steps = 20;
  EXPECT_FALSE(Of(plan).has_value());
}

TEST_F(ChoosingTuned, APlanThatCannotBeMadeHereLeavesTheChoiceToPrediction) {
  EXPECT_FALSE(Of(Tuned({"peer", 1, 1, "N=x"})).has_value()) << "not between nodes";
  EXPECT_FALSE(Of(Tuned({"serial", 4, 1, "N=x"})).has_value()) << "serial has no chunks";
  EXPECT_FALSE(Of(Tuned({"ring", 1, 1, "M=q"})).has_value()) << "no such axis";
}

// Pieces of a near shape may be more than its shards have rows.
TEST_F(ChoosingTuned, MorePiecesThanRowsAreEitherPlannedOrLeftToPrediction) {
  for (const int k_chunks : {1, 16}) {
    SetShape({8, 8, 16});
    const TunedPlan plan = Tuned({"direct", 2, k_chunks, "N=x"});
    SetShape({4, 4, 8});
    const std::optional<Choice> choice = Of(plan);
    if (!choice.has_value()) continue;
    EXPECT_TRUE(PlanWith(problem_, platform_.topology, choice->recipe).ok());
  }
}

TEST_F(ChoosingTuned, ACollectiveHasATunedPlan) {
  SetShape({256, 256, 0}, kDefaultCollective);
  const TunedPlan plan = Tuned({"ring", 2, 1, "none"});
  const std::optional<Choice> choice = Of(plan);
  ASSERT_TRUE(choice.has_value());
  EXPECT_THAT(choice->why, StartsWith("tuned: ring in 2 chunks took"));
  SetShape({256, 200, 0}, kDefaultCollective);
  EXPECT_THAT(Of(plan)->why, StartsWith("tuned for M=256 N=256, the nearest shape: "));
}

}  // namespace
}  // namespace agmm::test
