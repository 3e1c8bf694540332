// The choice of options: within the bounds of daemons, and with a reason for each option that is
// not kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/schedule/plan.h"
#include "kernels/schedule/schedule.h"
#include "tests/schedule/problems.h"

namespace agmm::test {
namespace {

using ::testing::HasSubstr;

const Shape kLarge{131072, 8192, 8192};

Problem On64By8(const std::string& spec) {
  return ParseProblem(spec, ParseMesh("x=64,y=8").value(), kLarge, DType::kBF16).value();
}

int64_t StepsOf(const Problem& problem, const Topology& topology, const ResolvedOptions& resolved) {
  return CostOf(problem, topology, resolved.recipe).steps;
}

// Returns the resolved options of `asked`, as text.
PlanOptions Resolved(const Problem& problem, const Topology& topology, const PlanOptions& asked) {
  return OptionsOf(problem, ResolveOptions(problem, topology, asked)->recipe);
}

TEST(Choice, OfPiecesStaysWithinWhatDaemonsPlan) {
  const Problem problem = On64By8("A[M_x, K_y] * B[K, N_x] -> C[M, N_x]");
  const Topology topology = MakeTopology(512, 64);
  const ResolvedOptions resolved = ResolveOptions(problem, topology, {}).value();
  EXPECT_EQ(OptionsOf(problem, resolved.recipe), (PlanOptions{"hierarchical", 1, 1, "M=x,N=y"}));
  EXPECT_THAT(resolved.why,
              HasSubstr("pieces of a shard: 1, not 8, because daemons plan at most 131072 steps"));
  EXPECT_LE(StepsOf(problem, topology, resolved), kMaxPlanSteps);
}

TEST(Choice, KeepsTheRequestedPieces) {
  const Problem problem = On64By8("A[M_x, K_y] * B[K, N_x] -> C[M, N_x]");
  const Topology topology = MakeTopology(512, 64);
  const ResolvedOptions resolved = ResolveOptions(problem, topology, {"auto", 0, 8}).value();
  EXPECT_EQ(OptionsOf(problem, resolved.recipe), (PlanOptions{"hierarchical", 1, 8, "M=x,N=y"}));
  EXPECT_GT(StepsOf(problem, topology, resolved), kMaxPlanSteps);
}

TEST(Choice, TakesOnePieceIfEvenOneHasTooManySteps) {
  const Problem problem = ParseProblem("A[M_x, K_y] * B[K, N_x] -> C[M, N_x]",
                                       ParseMesh("x=128,y=8").value(), kLarge, DType::kBF16)
                              .value();
  const Topology topology = MakeTopology(1024, 128);
  const ResolvedOptions resolved = ResolveOptions(problem, topology, {"ring"}).value();
  EXPECT_EQ(resolved.recipe.chunks, 1);
  EXPECT_THAT(resolved.why, HasSubstr("pieces of a shard: 1, not 8, because daemons plan at most"));
  EXPECT_GT(StepsOf(problem, topology, resolved), kMaxPlanSteps);
}

TEST(Choice, OfPiecesCountsThoseRequestedAlongK) {
  const Problem problem = MakeProblem(8, {16384, 8192, 8192}, DType::kBF16);
  const auto resolve = [&](int k_chunks) {
    return Resolved(problem, MakeTopology(8, 8), {"auto", 0, k_chunks, "N=x"});
  };
  EXPECT_EQ(resolve(0), (PlanOptions{"direct", 8, 1, "N=x"}));
  EXPECT_EQ(resolve(4), (PlanOptions{"direct", 2, 4, "N=x"}));
}

TEST(Choice, IsNotMadeByAnOptionThatCannotBeKept) {
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
    EXPECT_EQ(resolved.recipe.algorithm->name, "peer");
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

TEST(Choice, OfSerialNamesTheRowsOfAShard) {
  const Problem problem =
      MakeProblem(8, {512, 8192, 8192}, DType::kBF16, "A[M_x, K] * B[K, N] -> C[M, N]");
  PlanOptions asked;
  asked.split = "N=x";
  const ResolvedOptions resolved = ResolveOptions(problem, MakeTopology(8, 1), asked).value();
  EXPECT_THAT(resolved.why, HasSubstr("auto takes serial: with 64 rows per shard, reading B again "
                                      "for each piece costs more than the gather"));
}

TEST(Choice, OfAnAlgorithmStaysWithinWhatDaemonsPlan) {
  const Problem problem = On64By8("A[M, K_x] * B[K, N_x] -> C[M, N_x]");
  const Topology topology = MakeTopology(512, 64);
  const ResolvedOptions resolved = ResolveOptions(problem, topology, {}).value();
  EXPECT_EQ(resolved.recipe.algorithm->name, "serial");
  EXPECT_EQ(
      resolved.why,
      "auto takes serial: hierarchical would have more than the 131072 steps that daemons plan");
  EXPECT_LE(StepsOf(problem, topology, resolved), kMaxPlanSteps);
  EXPECT_EQ(Resolved(problem, topology, {"ring"}).algorithm, "ring");
}

std::string SplitFor(const std::string& spec, Shape shape) {
  const Problem problem = MakeProblem(8, shape, DType::kBF16, spec);
  return Resolved(problem, MakeTopology(8, 4), {}).split;
}

TEST(Choice, OfASplitCountsFlopsAsWellAsBytes) {
  const char* const replicated_c = "A[M_x, K] * B[K, N] -> C[M, N]";
  EXPECT_EQ(SplitFor(replicated_c, {8192, 8192, 4096}), "M=x")
      << "all of A at every rank is half of the bytes, and eight times the flops";
  EXPECT_EQ(SplitFor(replicated_c, {8192, 8192, 64}), "none") << "so few flops that bytes decide";
}

TEST(Choice, OfASplitAvoidsUnneededMoves) {
  EXPECT_EQ(SplitFor("A[M, K] * B[K, N] -> C[M, N]", {8192, 8192, 8192}), "none");
}

TEST(Choice, ReportsThatKIsNotCutAsRequested) {
  const Problem only_c_travels =
      MakeProblem(4, {4096, 4096, 4096}, DType::kF32, "A[M_x, K] * B[K, N] -> C[M, N]");
  for (const char* algorithm : {"auto", "peer", "ring"}) {
    const ResolvedOptions resolved =
        ResolveOptions(only_c_travels, MakeTopology(4, 1), {algorithm, 0, 4}).value();
    EXPECT_EQ(resolved.recipe.k_chunks, 1);
    EXPECT_THAT(resolved.why, HasSubstr("K is not cut into the 4 pieces that were asked for"));
  }
}

TEST(Choice, OfPeerKeepsTheRequestedPiecesAlongK) {
  const Problem problem = MakeProblem(4, {4096, 4096, 4096});
  const Topology topology = MakeTopology(4, 1);
  const PlanOptions asked = {"auto", 0, 4, "N=x"};
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
