// Every sharding on meshes of 1 to 16 ranks, on every number of nodes, with some of its possible
// plans, drawn by a seed. AGMM_DRAWS=N draws N times as many.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/schedule/verify.h"
#include "tests/schedule/mutants.h"
#include "tests/schedule/shardings.h"
#include "tests/support/seed.h"

namespace agmm::test {
namespace {

constexpr int kMostRanks = 16;

// "x=1,y=1", "x=1,y=2", ...: all sizes of the axes of `mesh` with at most kMostRanks ranks.
std::vector<std::string> MeshesLike(const std::string& mesh) {
  std::vector<std::pair<std::string, int>> meshes = {{"", 1}};  // with their ranks
  const std::vector<Axis> axes = ParseMesh(mesh)->axes;
  for (const Axis& axis : axes) {
    std::vector<std::pair<std::string, int>> longer;
    for (const auto& [text, ranks] : meshes) {
      for (int size = 1; ranks * size <= kMostRanks; ++size) {
        longer.emplace_back(absl::StrCat(text, text.empty() ? "" : ",", axis.name, "=", size),
                            ranks * size);
      }
    }
    meshes = longer;
  }
  std::vector<std::string> texts;
  for (const auto& [text, ranks] : meshes) texts.push_back(text);
  return texts;
}

int DrawsTimes() {
  const char* given = std::getenv("AGMM_DRAWS");
  return given == nullptr ? 1 : std::atoi(given);
}

class MeshSizes : public testing::TestWithParam<ShardedCase> {};

TEST_P(MeshSizes, AreProvedAndHaveNoUnneededPart) {
  std::mt19937_64 random(TestSeed());
  const auto one_of = [&](const auto& list) { return list[random() % list.size()]; };
  // Shapes of fewer rows than ranks, of ragged shards, and of several chunks a shard.
  const std::vector<int64_t> sizes = {1, 2, 5, 11, 16, 37, 61, 97, 130, 333};
  const std::vector<DType> dtypes = {DType::kF32, DType::kBF16};
  int plans = 0;
  for (const std::string& mesh : MeshesLike(GetParam().mesh)) {
    const int ranks = ParseMesh(mesh)->size();
    // On one rank no sum is open, so there is nothing that could convert elements.
    if (ranks == 1 && absl::StrContains(GetParam().spec, ':')) continue;
    for (int nodes = 1; nodes <= ranks; ++nodes) {
      const int devices = (ranks + nodes - 1) / nodes;
      if ((ranks + devices - 1) / devices != nodes) continue;  // a node would be empty
      for (int i = 0; i < DrawsTimes(); ++i) {
        const Draw draw = {{GetParam().spec, mesh},
                           {one_of(sizes), one_of(sizes), one_of(sizes)},
                           one_of(dtypes),
                           nodes};
        const std::optional<ShardedPlan> plan = DrawPlan(draw, random);
        if (!plan) continue;
        SCOPED_TRACE(plan->name);
        const absl::StatusOr<Schedule> schedule =
            Plan(plan->problem, plan->topology, plan->options);
        ASSERT_TRUE(schedule.ok()) << schedule.status();
        ASSERT_EQ(Verify(plan->problem, plan->topology, *schedule), absl::OkStatus());
        ASSERT_EQ(Close(*schedule), *schedule);
        ++plans;
        const Mutant mutant = WithOneLess(*schedule, random);
        ASSERT_FALSE(Verify(plan->problem, plan->topology, mutant.schedule).ok()) << mutant.name;
      }
    }
  }
  std::printf("%d plans\n", plans);
  EXPECT_GT(plans, 0);
}

INSTANTIATE_TEST_SUITE_P(All, MeshSizes, testing::ValuesIn(ShardedCases()));

}  // namespace
}  // namespace agmm::test
