// The default algorithm: as few bytes between nodes as any other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/text.h"
#include "tests/schedule/shardings.h"
#include "tests/support/seed.h"

namespace agmm::test {
namespace {

// A plan with default options.
struct Chosen {
  Problem problem;
  Topology topology;
  ResolvedOptions resolved;
  Schedule schedule;
};

int64_t BytesBetweenNodes(const Topology& topology, const Schedule& schedule) {
  int64_t bytes = 0;
  for (const Traffic& traffic : TrafficOf(topology, schedule)) bytes += traffic.other_nodes;
  return bytes;
}

// A copy of a block from one rank to another.
struct Copy {
  Block block;
  Rank from, to;
  bool terms;  // of a sum
};
std::vector<Copy> CopiesOf(const Chosen& chosen) {
  std::set<std::pair<Rank, int64_t>> added;  // places in the workspace that a reduction reads
  for (Rank rank = 0; rank < static_cast<Rank>(chosen.schedule.ranks.size()); ++rank) {
    for (const Step& step : chosen.schedule.ranks[rank]) {
      if (!std::holds_alternative<Reduce>(step.op)) continue;
      ForEachPlace(step.op, [&](const Block&, const Place& place, Use use) {
        if (use == Use::kRead && place.buffer == kWorkspace)
          added.emplace(place.rank, place.offset_bytes);
      });
    }
  }
  std::vector<Copy> copies;
  for (const std::vector<Step>& steps : chosen.schedule.ranks) {
    for (const Step& step : steps) {
      const auto* transfer = std::get_if<Transfer>(&step.op);
      if (transfer == nullptr) continue;
      for (const Place& to : transfer->to)
        if (to.rank != transfer->from.rank)
          copies.push_back(
              {transfer->block, transfer->from.rank, to.rank,
               to.buffer == kWorkspace && added.count({to.rank, to.offset_bytes}) > 0});
    }
  }
  return copies;
}

// Returns true if ranks of one sum each finish all of it.
bool SumsEverywhere(const Chosen& chosen, const Schedule& schedule) {
  const std::vector<Copy> copies =
      CopiesOf({chosen.problem, chosen.topology, chosen.resolved, schedule});
  bool both_ways = false;
  for (const Copy& copy : copies) {
    if (!copy.terms) continue;
    for (const Copy& other : copies)
      both_ways |= other.terms && other.from == copy.to && other.to == copy.from &&
                   !Intersect(other.block, copy.block).empty();
  }
  return both_ways;
}

// Every sharding on nodes of every kind: full, alone, in turn, uneven, in islands.
std::vector<Topology> LayoutsOf(int ranks, std::mt19937_64& random) {
  std::vector<Topology> layouts(6);
  for (Rank rank = 0; rank < ranks; ++rank) {
    layouts[0].node_of_rank.push_back(0);
    layouts[1].node_of_rank.push_back(rank);
    layouts[2].node_of_rank.push_back(rank < (ranks + 1) / 2 ? 0 : 1);
    layouts[3].node_of_rank.push_back(rank % 2);
    layouts[4].node_of_rank.push_back(static_cast<int>(random() % 3));
    layouts[5].node_of_rank.push_back(static_cast<int>(random() % 2));
    layouts[5].island_of_rank.push_back(static_cast<int>(random() % 2));
  }
  layouts.push_back(layouts[0]);
  layouts.back().island_of_rank = layouts[3].node_of_rank;
  return layouts;
}

void ForEachDefault(const std::function<void(const Chosen&)>& check) {
  std::mt19937_64 random(TestSeed());
  for (const ShardedCase& one : ShardedCases()) {
    const Mesh mesh = ParseMesh(one.mesh).value();
    for (const Topology& topology : LayoutsOf(mesh.size(), random)) {
      for (const Shape& shape :
           {Shape{10, 7, 13}, Shape{1024, 512, 1024}, Shape{512, 2048, 64}, Shape{16, 4096, 512}}) {
        const Problem problem = ParseProblem(one.spec, mesh, shape, DType::kBF16).value();
        const ResolvedOptions resolved = ResolveOptions(problem, topology, {}).value();
        const Schedule schedule = PlanWith(problem, topology, resolved.recipe).value();
        SCOPED_TRACE(absl::StrFormat("AGMM_SEED=%d %s, nodes %s, %s: %s", TestSeed(),
                                     ToString(problem), absl::StrJoin(topology.node_of_rank, ","),
                                     ToString(OptionsOf(problem, resolved.recipe)), resolved.why));
        check({problem, topology, resolved, schedule});
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(DefaultAlgorithm, CrossesNodesWithNoMoreBytesThanAnyAlgorithm) {
  ForEachDefault([](const Chosen& chosen) {
    // A rank that sums everything itself may receive up to 32 KiB more, to save a step.
    const int64_t more =
        SumsEverywhere(chosen, chosen.schedule) ? (32 << 10) * chosen.problem.mesh.size() : 0;
    const int64_t bytes = BytesBetweenNodes(chosen.topology, chosen.schedule) - more;
    for (const Algorithm& algorithm : Algorithms()) {
      const std::string split = SplitText(chosen.problem, chosen.resolved.recipe.split);
      const auto other = Plan(chosen.problem, chosen.topology, {algorithm.name, 1, 1, split});
      // Terms in two steps are f32. In one step, they travel as they are.
      if (!other.ok() ||
          (SumsEverywhere(chosen, *other) && !SumsEverywhere(chosen, chosen.schedule)))
        continue;
      EXPECT_LE(bytes, BytesBetweenNodes(chosen.topology, *other)) << algorithm.name;
    }
  });
}

}  // namespace
}  // namespace agmm::test
