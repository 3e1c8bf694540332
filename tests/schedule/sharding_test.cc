// Every sharding by every split, route and kind of place: planned, proved, closed, and with nothing
// to spare.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>

#include "kernels/schedule/text.h"
#include "kernels/schedule/verify.h"
#include "tests/schedule/interleave.h"
#include "tests/schedule/mutants.h"
#include "tests/schedule/problems.h"
#include "tests/schedule/shardings.h"

namespace agmm::test {
namespace {

class EverySharding : public testing::TestWithParam<ShardedCase> {};

// The number of plans.
int Prove(const Draw& draw, bool thorough) {
  int count = 0;
  for (const ShardedPlan& plan : PlansOf(draw, thorough)) {
    SCOPED_TRACE(plan.name);
    const absl::StatusOr<Schedule> schedule = Plan(plan.problem, plan.topology, plan.options);
    EXPECT_TRUE(schedule.ok()) << schedule.status();
    if (!schedule.ok()) return count;
    EXPECT_EQ(Verify(plan.problem, plan.topology, *schedule), absl::OkStatus())
        << Print(plan.problem, *schedule);
    EXPECT_EQ(Close(*schedule), *schedule);
    if (testing::Test::HasFailure()) return count;
    ++count;
  }
  return count;
}

TEST_P(EverySharding, IsProved) {
  int plans = 0;
  const int ranks = ParseMesh(GetParam().mesh)->size();
  for (int nodes = 1; nodes <= ranks; ++nodes) {
    const int devices = (ranks + nodes - 1) / nodes;
    if ((ranks + devices - 1) / devices != nodes) continue;  // a node would be empty
    for (const Shape& shape : {Shape{10, 7, 13}, Shape{2, 2, 2}, Shape{97, 61, 333}}) {
      plans += Prove({GetParam(), shape, DType::kBF16, nodes}, /*thorough=*/false);
      if (HasFailure()) return;
    }
  }
  plans += Prove({GetParam(), {33, 17, 40}, DType::kF32, std::min(2, ranks)}, /*thorough=*/true);
  std::printf("%d plans\n", plans);
  EXPECT_GT(plans, 0);
}

// Returns a few plans of a case, drawn by a seed, none with more than `most_steps` steps.
std::vector<ShardedPlan> Some(const ShardedCase& sharded, size_t most_steps) {
  constexpr size_t kMost = 8;
  std::mt19937_64 random(TestSeed());
  const int ranks = ParseMesh(sharded.mesh)->size();
  const int nodes = 1 + static_cast<int>(random() % std::min(ranks, 3));
  std::vector<ShardedPlan> plans = PlansOf({sharded, {11, 9, 7}, DType::kF32, nodes}, false);
  std::shuffle(plans.begin(), plans.end(), random);
  std::vector<ShardedPlan> some;
  for (const ShardedPlan& plan : plans) {
    if (some.size() == kMost) break;
    const Schedule schedule = Plan(plan.problem, plan.topology, plan.options).value();
    size_t steps = 0;
    for (const std::vector<Step>& rank : schedule.ranks) steps += rank.size();
    if (steps > 0 && steps <= most_steps) some.push_back(plan);
  }
  return some;
}

TEST_P(EverySharding, NeedsAllThatItHas) {
  int mutants = 0;
  for (const ShardedPlan& plan : Some(GetParam(), 250)) {
    SCOPED_TRACE(plan.name);
    const Schedule schedule = Plan(plan.problem, plan.topology, plan.options).value();
    for (const Mutant& mutant : WithOneLess(schedule)) {
      ++mutants;
      ASSERT_FALSE(Verify(plan.problem, plan.topology, mutant.schedule).ok())
          << mutant.name << "\n"
          << Print(plan.problem, schedule);
    }
  }
  std::printf("%d mutants\n", mutants);
}

// The interleavings that the explorer tries are exact.
TEST_P(EverySharding, RunsRight) {
  for (const ShardedPlan& plan : Some(GetParam(), 40)) {
    SCOPED_TRACE(plan.name);
    const Schedule schedule = Plan(plan.problem, plan.topology, plan.options).value();
    EXPECT_EQ(Interleaver(plan.problem, schedule).Explore(1), Outcome::kExact);
  }
}

// A way that is in no table: to every other rank of the cycle, and from those to their neighbours.
std::vector<Hop> EveryOther(const Spread& spread) {
  const std::vector<Rank> cycle = CycleOf(spread);
  std::vector<Hop> hops;
  for (int i = 1; i < static_cast<int>(cycle.size()); ++i) {
    const bool passed_on = i % 2 == 0;
    hops.push_back({passed_on ? cycle[i - 1] : spread.source, cycle[i], i});
  }
  return hops;
}

TEST_P(EverySharding, IsPlannedByARouteThatIsInNoTable) {
  const Algorithm algorithm = {"every_other", EveryOther};
  for (ShardedPlan& plan : Some(GetParam(), 250)) {
    if (FindAlgorithm(plan.options.algorithm)->arrivals != Arrivals::kPlaces) continue;
    SCOPED_TRACE(plan.name);
    const auto schedule = PlanWith(algorithm, plan.problem, plan.topology, plan.options);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    EXPECT_EQ(Verify(plan.problem, plan.topology, *schedule), absl::OkStatus());
  }
}

INSTANTIATE_TEST_SUITE_P(All, EverySharding, testing::ValuesIn(ShardedCases()));

}  // namespace
}  // namespace agmm::test
