// A node keeps its part of a schedule: its own steps, and the steps that send to it.
#include "kernels/schedule/part.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

constexpr int kRanks = 12, kNodes = 3;

Schedule Planned(const char* algorithm, int ranks, std::vector<int>* nodes) {
  for (int rank = 0; rank < ranks; ++rank) nodes->push_back(rank * kNodes / ranks);
  const Mesh mesh = *ParseMesh(absl::StrCat("x=", ranks));
  const Problem problem =
      *ParseProblem("A[M_x, K] * B[K, N_x] -> C[M, N_x]", mesh, {4096, 4096, 64}, DType::kF32);
  PlanOptions options;
  options.algorithm = algorithm;
  absl::StatusOr<Schedule> schedule = Plan(problem, Topology{*nodes}, options);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return *std::move(schedule);
}

std::vector<bool> RanksOf(int node, const std::vector<int>& nodes) {
  std::vector<bool> mine;
  for (int of_rank : nodes) mine.push_back(of_rank == node);
  return mine;
}

TEST(Part, HasTheStepsOfItsRanksAndThoseThatSignalThem) {
  for (const char* algorithm : {"ring", "direct", "serial"}) {
    for (int node = 0; node < kNodes; ++node) {
      SCOPED_TRACE(absl::StrCat(algorithm, ", node ", node));
      std::vector<int> nodes;
      const Schedule whole = Planned(algorithm, kRanks, &nodes);
      const std::vector<bool> mine = RanksOf(node, nodes);
      const SchedulePart part = PartOf(whole, mine);
      EXPECT_EQ(part.schedule.workspace_bytes, whole.workspace_bytes);
      int dropped = 0;
      for (Rank rank = 0; rank < kRanks; ++rank) {
        for (int name = 0; name < static_cast<int>(whole.ranks[rank].size()); ++name) {
          const Step& step = whole.ranks[rank][name];
          const bool arrives = std::any_of(step.signals.begin(), step.signals.end(),
                                           [&](const Slot& slot) { return mine[slot.rank]; });
          const Step* const found = FindStep(part.schedule, &part.names, rank, name);
          ASSERT_EQ(found != nullptr, mine[rank] || arrives) << rank << " " << name;
          if (found == nullptr) ++dropped;
          if (found != nullptr) {
            EXPECT_EQ(*found, step);
          }
        }
        const int end = static_cast<int>(whole.ranks[rank].size());
        for (int name : {-1, end}) {
          EXPECT_EQ(FindStep(part.schedule, &part.names, rank, name), nullptr);
        }
      }
      EXPECT_GT(dropped, 0);
    }
  }
}

TEST(Part, OfAllRanksHasAllSteps) {
  std::vector<int> nodes;
  const Schedule whole = Planned("ring", kRanks, &nodes);
  EXPECT_EQ(FindStep(whole, nullptr, 1, 2), &whole.ranks[1][2]);
  EXPECT_EQ(FindStep(whole, nullptr, 1, 1 << 20), nullptr);
}

// Uses as many hops as a job may have.
TEST(Part, OfTheLargestPlanTakesAFractionOfItsMemory) {
  for (const char* algorithm : {"ring", "direct", "serial"}) {
    SCOPED_TRACE(algorithm);
    std::vector<int> nodes;
    const Schedule whole = Planned(algorithm, 256, &nodes);
    const int64_t whole_bytes = SizeBytes(whole);
    const SchedulePart part = PartOf(whole, RanksOf(0, nodes));
    EXPECT_LT(SizeBytes(part.schedule), whole_bytes * 2 / 3);
    RecordProperty(absl::StrCat(algorithm, "_bytes"),
                   absl::StrCat(SizeBytes(part.schedule), " of ", whole_bytes));
  }
}

}  // namespace
}  // namespace agmm
