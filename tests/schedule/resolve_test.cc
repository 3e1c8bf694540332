// The recipe of a request: defaults, and a reason for each option that is not kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/schedule/plan.h"
#include "kernels/schedule/schedule.h"
#include "tests/schedule/problems.h"

namespace agmm::test {
namespace {

using ::testing::HasSubstr;

int64_t StepsOf(const Problem& problem, const Topology& topology, const ResolvedOptions& resolved) {
  return CostOf(problem, topology, resolved.recipe).steps;
}

// Returns the resolved options of `asked`, as text.
PlanOptions Resolved(const Problem& problem, const Topology& topology, const PlanOptions& asked) {
  return OptionsOf(problem, ResolveOptions(problem, topology, asked)->recipe);
}

TEST(Defaults, AreNotMadeByAnOptionThatCannotBeKept) {
  for (const auto& [spec, reason] :
       {std::pair("A[M, K]{U_x} * B[K, N] -> C[M, N]",
                  "the workspace holds all arrivals, because the sum of an input is closed first"),
        {"A[M_x, K] -> B[M, K]",
         "the workspace is not bounded, because chunks arrive directly in the result's shards"}}) {
    SCOPED_TRACE(spec);
    PlanOptions options;
    options.workspace_shards = 2;
    const Problem problem = MakeProblem(4, {64, 64, 64}, DType::kBF16, spec);
    const ResolvedOptions resolved = ResolveOptions(problem, MakeTopology(4, 1), options).value();
    EXPECT_EQ(resolved.recipe.algorithm->name, "hierarchical_peer");
    EXPECT_THAT(resolved.why, HasSubstr(reason));
  }
}

// Along M and N at once, each piece of one would be multiplied by each piece of the other.
TEST(Pieces, CutOneDimensionWhereCTravels) {
  const Problem problem = MakeProblem(256, {262144, 28672, 8192}, DType::kBF16);
  const Topology topology = MakeTopology(256, 32);
  const auto steps = [&](int chunks) {
    return StepsOf(problem, topology, *ResolveOptions(problem, topology, {"ring", chunks}));
  };
  EXPECT_LE(steps(8), 8 * steps(1));
}

std::string SplitFor(const std::string& spec, Shape shape) {
  const Problem problem = MakeProblem(8, shape, DType::kBF16, spec);
  return Resolved(problem, MakeTopology(8, 4), {}).split;
}

TEST(Defaults, OfASplitAvoidUnneededMoves) {
  EXPECT_EQ(SplitFor("A[M, K] * B[K, N] -> C[M, N]", {8192, 8192, 8192}), "none");
}

TEST(Requests, ReportThatKIsNotCutAsRequested) {
  const Problem only_c_travels =
      MakeProblem(4, {4096, 4096, 4096}, DType::kF32, "A[M_x, K] * B[K, N] -> C[M, N]");
  for (const char* algorithm : {"auto", "peer", "ring"}) {
    const ResolvedOptions resolved =
        ResolveOptions(only_c_travels, MakeTopology(4, 1), {algorithm, 0, 4}).value();
    EXPECT_EQ(resolved.recipe.k_chunks, 1);
    EXPECT_THAT(resolved.why, HasSubstr("K is not cut into the 4 pieces that were asked for"));
  }
}

TEST(Requests, ForPeerKeepTheRequestedPiecesAlongK) {
  const Problem problem = MakeProblem(4, {4096, 4096, 4096});
  const Topology topology = MakeTopology(4, 1);
  const PlanOptions asked = {"peer", 0, 4, "N=x"};
  const ResolvedOptions resolved = ResolveOptions(problem, topology, asked).value();
  EXPECT_EQ(OptionsOf(problem, resolved.recipe), (PlanOptions{"peer", 1, 4, "N=x"}));
  const Schedule schedule = Plan(problem, topology, asked).value();
  for (const std::vector<Step>& steps : schedule.ranks) {
    int multiplies = 0;
    for (const Step& step : steps) multiplies += std::holds_alternative<Multiply>(step.op);
    EXPECT_EQ(multiplies, 4 * 4) << "four shards in four pieces";
  }
  EXPECT_EQ(StepsOf(problem, topology, resolved), 4 * 4 * 4) << "nothing is copied";
}

}  // namespace
}  // namespace agmm::test
