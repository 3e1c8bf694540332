// Hashes of many plans, in tests/golden/plan_hashes.txt. A change to the planner that is not meant
// to change plans leaves all of them equal.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "kernels/base/hash.h"
#include "kernels/schedule/algorithm.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/plan_hash.h"
#include "tests/golden/golden.h"
#include "tests/schedule/problems.h"
#include "tests/schedule/shardings.h"

namespace agmm::test {
namespace {

// Lines with the hash and the description of each plan.
class Lines {
 public:
  // Adds nothing if the options are refused, as for `peer` on several nodes.
  void Add(const Problem& problem, const Topology& topology, const PlanOptions& options) {
    const absl::StatusOr<ResolvedOptions> resolved = ResolveOptions(problem, topology, options);
    if (!resolved.ok()) return;
    const absl::StatusOr<Schedule> schedule = Plan(problem, topology, options);
    ASSERT_TRUE(schedule.ok()) << schedule.status() << " " << ToString(options);
    // A plan of transfers only has joins in place of its multiplies.
    if (!options.transfers_only) {
      EXPECT_EQ(CostOf(problem, topology, resolved->recipe).steps, CountWork(*schedule))
          << ToString(problem) << " " << ToString(options);
    }
    std::string nodes = absl::StrJoin(topology.node_of_rank, "");
    if (topology.rank_count() > 10)
      nodes = absl::StrFormat("%d of %d", topology.node_of_rank.back() + 1, topology.rank_count());
    if (!topology.island_of_rank.empty())
      absl::StrAppend(&nodes, " islands ", absl::StrJoin(topology.island_of_rank, ""));
    absl::StrAppendFormat(&text_, "%s %s, nodes %s, %s\n", HashHex(PlanHash(problem, *schedule)),
                          ToString(problem), nodes, ToString(options));
    ++count_;
  }

  const std::string& text() const { return text_; }
  int count() const { return count_; }

 private:
  std::string text_;
  int count_ = 0;
};

// Products whose inputs are gathered, products with a sum between ranks, and the others: open sums
// and collectives. The list has them in this order.
enum class Kind { kGathered, kSummed, kOther };
Kind KindOf(const ShardedPlan& plan) {
  const Problem& problem = plan.problem;
  if (!HasProduct(problem) || !problem.tensors[kC].sharding.open.empty()) return Kind::kOther;
  return WorkOf(problem, plan.recipe.split).summed ? Kind::kSummed : Kind::kGathered;
}

// Two plans by each algorithm for each sharding of a kind. Sizes, dtypes and numbers of nodes take
// turns. `rounded`: the ones whose terms travel rounded.
void AddShardings(Lines* lines, Kind kind, bool rounded = false) {
  const std::vector<Shape> shapes = {{10, 7, 13}, {33, 17, 40}, {97, 61, 333}, {2, 3, 2}};
  size_t turn = 0;
  for (const ShardedCase& sharded : ShardedCases()) {
    const int ranks = ParseMesh(sharded.mesh)->size();
    const Draw draw = {sharded, shapes[turn % shapes.size()],
                       turn % 2 == 0 ? DType::kBF16 : DType::kF32,
                       1 + static_cast<int>(turn % ranks)};
    ++turn;
    const std::vector<ShardedPlan> plans = PlansOf(draw, /*thorough=*/true);
    for (const Algorithm& algorithm : Algorithms()) {
      std::vector<const ShardedPlan*> by;
      for (const ShardedPlan& plan : plans) {
        if (plan.options.algorithm == algorithm.name && KindOf(plan) == kind &&
            (plan.options.partials != DType::kF32) == rounded)
          by.push_back(&plan);
      }
      if (by.empty()) continue;
      // The last one has the most options that are not the default.
      lines->Add(by.back()->problem, by.back()->topology, by.back()->options);
      const ShardedPlan* middle = by[by.size() / 3];
      if (middle != by.back()) lines->Add(middle->problem, middle->topology, middle->options);
    }
  }
}

// Every algorithm on 1 to 64 ranks, also with pieces.
void AddSizes(Lines* lines) {
  for (const auto& [ranks, nodes] : {std::pair{1, 1}, {2, 2}, {5, 5}, {8, 2}, {16, 4}, {64, 8}}) {
    const Problem problem = MakeProblem(ranks, {64 * ranks, 8 * ranks, 96}, DType::kF16);
    for (const Algorithm& algorithm : Algorithms()) {
      for (int chunks : {1, 2}) {
        if (chunks > 1 && ranks > 16) continue;
        PlanOptions options;
        options.algorithm = algorithm.name;
        options.chunks = chunks;
        lines->Add(problem, MakeTopology(ranks, nodes), options);
      }
    }
  }
}

// Ranks of a part of a world: different numbers on the nodes, and GPUs that do not reach each
// other.
void AddUneven(Lines* lines) {
  for (const Topology& topology : {Topology{{0, 0, 0, 1, 2, 2}}, Topology{{0, 1, 1, 1, 1, 2}},
                                   Topology{{0, 0, 0, 0, 1, 1}, {0, 0, 1, 1, 0, 1}}}) {
    for (const char* spec :
         {"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "A[M_x, K] * B[K_x, N] -> C[M_x, N]"}) {
      const Problem problem = MakeProblem(6, {50, 31, 64}, DType::kBF16, spec);
      for (const Algorithm& algorithm : Algorithms()) {
        PlanOptions options;
        options.algorithm = algorithm.name;
        lines->Add(problem, topology, options);
      }
      lines->Add(problem, topology, {});
      lines->Add(problem, topology, GatherAlone());
    }
  }
}

// Results of another dtype than the inputs.
void AddDTypes(Lines* lines) {
  for (const auto& [dtype, result] : {std::pair{DType::kBF16, "f32"}, {DType::kF32, "bf16"}}) {
    for (const char* spec : {kDefaultSpec, "A[M, K_x] * B[K_x, N] -> C[M_x, N]"}) {
      const Problem problem = MakeProblem(4, {50, 31, 64}, dtype, absl::StrCat(spec, ":", result));
      for (const char* algorithm : {"serial", "ring", "direct"}) {
        PlanOptions options;
        options.algorithm = algorithm;
        lines->Add(problem, MakeTopology(4, 2), options);
      }
    }
  }
}

TEST(PlanHashes, AreThoseOfTheList) {
  Lines lines;
  AddShardings(&lines, Kind::kGathered);
  AddSizes(&lines);
  AddUneven(&lines);
  AddDTypes(&lines);
  AddShardings(&lines, Kind::kSummed);
  AddShardings(&lines, Kind::kOther);
  AddShardings(&lines, Kind::kSummed, /*rounded=*/true);
  AddShardings(&lines, Kind::kOther, /*rounded=*/true);
  EXPECT_GE(lines.count(), 400);
  ExpectGolden("plan_hashes.txt", lines.text());
}

}  // namespace
}  // namespace agmm::test
