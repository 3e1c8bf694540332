// Every sharding by every split, route and kind of place: planned, proved, closed, and without a
// redundant part.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <set>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/algorithm.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/text.h"
#include "kernels/schedule/verify.h"
#include "tests/schedule/interleave.h"
#include "tests/schedule/mutants.h"
#include "tests/schedule/problems.h"
#include "tests/schedule/shardings.h"

namespace agmm::test {
namespace {

class EverySharding : public testing::TestWithParam<ShardedCase> {};

// Checks that the bytes between nodes are the fewest of any plan of the split.
void ExpectFewestBytes(const ShardedPlan& plan, const Schedule& schedule) {
  int64_t bytes = 0;
  for (const Traffic& traffic : TrafficOf(plan.topology, schedule)) bytes += traffic.other_nodes;
  const int64_t least =
      LeastBetweenNodes(plan.problem, plan.topology, plan.recipe.split, plan.recipe.partials);
  const std::string why = ResolveOptions(plan.problem, plan.topology, plan.options)->why;
  if (absl::StrContains(why, "serial may gather more than other algorithms")) {
    EXPECT_GE(bytes, least);
  } else {
    EXPECT_EQ(bytes, least) << why;
  }
}

// Checks that the gather alone has the fewest bytes between nodes, and the waits and signals of its
// plan.
void ExpectGatherAlone(const ShardedPlan& plan) {
  PlanOptions options = GatherAlone();
  options.split = plan.options.split;
  const Schedule gather = Plan(plan.problem, plan.topology, options).value();
  options.transfers_only = false;
  const Schedule whole = Plan(plan.problem, plan.topology, options).value();
  int64_t bytes = 0;
  for (const Traffic& traffic : TrafficOf(plan.topology, gather)) bytes += traffic.other_nodes;
  EXPECT_EQ(bytes, LeastBetweenNodes(plan.problem, plan.topology, plan.recipe.split));
  ASSERT_EQ(gather.workspace_bytes, whole.workspace_bytes);
  for (Rank rank = 0; rank < plan.problem.mesh.size(); ++rank) {
    ASSERT_EQ(gather.ranks[rank].size(), whole.ranks[rank].size());
    for (size_t i = 0; i < whole.ranks[rank].size(); ++i) {
      Step expected = whole.ranks[rank][i];
      if (std::holds_alternative<Multiply>(expected.op)) expected.op = Join();
      EXPECT_EQ(gather.ranks[rank][i], expected);
    }
  }
}

// Checks that every arrival at a rank is multiplied there, sent on or added to a sum, unless an
// operand is multiplied as one block.
void ExpectAllArrivalsUsed(const ShardedPlan& plan, const Schedule& schedule) {
  if (FindAlgorithm(plan.options.algorithm)->arrivals == Arrivals::kContiguous) return;
  const auto uses = [&](Rank rank, const Block& block, const Place& at) {
    const auto uses = [&](const Step& step) {
      if (const auto* multiply = std::get_if<Multiply>(&step.op)) {
        const Block& read = block.operand == kA ? multiply->a : multiply->b;
        return !Intersect(read, block).empty();
      }
      bool used = false;
      if (std::holds_alternative<Transfer>(step.op) || std::holds_alternative<Reduce>(step.op)) {
        ForEachPlace(step.op, [&](const Block&, const Place& place, Use use) {
          used |= use == Use::kRead && place == at;
        });
      }
      return used;
    };
    return std::any_of(schedule.ranks[rank].begin(), schedule.ranks[rank].end(), uses);
  };
  for (const std::vector<Step>& steps : schedule.ranks) {
    for (const Step& step : steps) {
      const auto* transfer = std::get_if<Transfer>(&step.op);
      if (transfer == nullptr || plan.problem.Writes(transfer->block.operand)) continue;
      for (const Place& to : transfer->to)
        EXPECT_TRUE(uses(to.rank, transfer->block, to))
            << PlacedName(plan.problem, transfer->block, to);
    }
  }
}

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
    EXPECT_EQ(CostOf(plan.problem, plan.topology, plan.recipe).steps, CountWork(*schedule));
    ExpectAllArrivalsUsed(plan, *schedule);
    if (FindAlgorithm(plan.options.algorithm)->one_a_node) ExpectFewestBytes(plan, *schedule);
    if (plan.options.algorithm == "serial" && HasProduct(plan.problem)) ExpectGatherAlone(plan);
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
    if ((ranks + devices - 1) / devices != nodes) continue;               // a node would be empty
    constexpr Shape kShapes[] = {{10, 7, 13}, {2, 2, 2}, {97, 61, 333}};  // they take turns
    plans += Prove({GetParam(), kShapes[nodes % 3], DType::kBF16, nodes}, /*thorough=*/false);
    if (HasFailure()) return;
  }
  plans += Prove({GetParam(), {33, 17, 40}, DType::kF32, std::min(2, ranks)}, /*thorough=*/true);
  std::printf("%d plans\n", plans);
  EXPECT_GT(plans, 0);
}

// Calls `use` with the problems of a sharding, on one node and on several.
void ForEachProblem(const ShardedCase& sharded,
                    absl::FunctionRef<void(const Problem&, const Topology&)> use) {
  const Mesh mesh = ParseMesh(sharded.mesh).value();
  for (int nodes = 1; nodes <= mesh.size(); ++nodes) {
    if (mesh.size() % nodes != 0) continue;
    for (const Shape& shape : {Shape{10, 7, 13}, Shape{4096, 512, 1024}, Shape{512, 4096, 64}}) {
      use(ParseProblem(sharded.spec, mesh, shape, DType::kBF16).value(),
          UniformTopology(mesh.size(), nodes).value());
    }
  }
}

// All options are left open.
TEST_P(EverySharding, IsPlannedByDefault) {
  ForEachProblem(GetParam(), [](const Problem& problem, const Topology& topology) {
    const absl::StatusOr<ResolvedOptions> resolved = ResolveOptions(problem, topology, {});
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    const PlanOptions options = OptionsOf(problem, resolved->recipe);
    const Schedule schedule = Plan(problem, topology, {}).value();
    SCOPED_TRACE(absl::StrFormat("%d nodes, %s: %s\n%s", topology.node_of_rank.back() + 1,
                                 ToString(options), resolved->why, Print(problem, schedule)));
    EXPECT_EQ(Plan(problem, topology, options).value(), schedule);
    EXPECT_EQ(PlanWith(problem, topology, resolved->recipe).value(), schedule);
    EXPECT_EQ(Verify(problem, topology, schedule), absl::OkStatus());
  });
}

int64_t Multiplies(const Schedule& schedule) {
  int64_t count = 0;
  for (const std::vector<Step>& steps : schedule.ranks) {
    for (const Step& step : steps) count += std::holds_alternative<Multiply>(step.op);
  }
  return count;
}

// Twice as many, because pieces of C need not end where those of an input do.
TEST_P(EverySharding, HasMultipliesInProportionToItsPiecesWhereCTravels) {
  const Draw draw = {GetParam(), {288, 288, 288}, DType::kF32, 2};
  for (const ShardedPlan& plan : PlansOf(draw, /*thorough=*/false)) {
    const PlanOptions& options = plan.options;
    if (options.chunks == 1) continue;
    if (!HasProduct(plan.problem) || !WorkOf(plan.problem, plan.recipe.split).c_travels) continue;
    SCOPED_TRACE(plan.name);
    PlanOptions whole = options;
    whole.chunks = 1;
    EXPECT_LE(Multiplies(Plan(plan.problem, plan.topology, options).value()),
              2 * options.chunks * Multiplies(Plan(plan.problem, plan.topology, whole).value()));
  }
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

TEST_P(EverySharding, NeedsEveryWait) {
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

// All interleavings that the explorer tries are exact.
TEST_P(EverySharding, RunsRight) {
  if (absl::StrContains(GetParam().spec, ':')) GTEST_SKIP() << "the explorer's elements are f32";
  for (const ShardedPlan& plan : Some(GetParam(), 40)) {
    if (plan.options.partials != DType::kF32) continue;  // the explorer's elements are f32
    SCOPED_TRACE(plan.name);
    const Schedule schedule = Plan(plan.problem, plan.topology, plan.options).value();
    EXPECT_EQ(Interleaver(plan.problem, schedule).Explore(1), Outcome::kExact);
  }
}

// A route that is not in the table: to every other rank of the cycle, and from those to their
// neighbours.
std::vector<Hop> EveryOther(const Spread& spread) {
  const std::vector<Rank> cycle = CycleOf(spread);
  std::vector<Hop> hops;
  for (int i = 1; i < static_cast<int>(cycle.size()); ++i) {
    const bool passed_on = i % 2 == 0;
    hops.push_back({passed_on ? cycle[i - 1] : spread.source, cycle[i], i});
  }
  return hops;
}

TEST_P(EverySharding, IsPlannedByARouteOutsideTheTable) {
  const Algorithm algorithm = {"every_other", EveryOther};
  for (ShardedPlan& plan : Some(GetParam(), 250)) {
    if (FindAlgorithm(plan.options.algorithm)->arrivals != Arrivals::kPlaces) continue;
    SCOPED_TRACE(plan.name);
    plan.recipe.algorithm = &algorithm;
    const auto schedule = PlanWith(plan.problem, plan.topology, plan.recipe);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    EXPECT_EQ(Verify(plan.problem, plan.topology, *schedule), absl::OkStatus());
  }
}

INSTANTIATE_TEST_SUITE_P(All, EverySharding, testing::ValuesIn(ShardedCases()));

}  // namespace
}  // namespace agmm::test
