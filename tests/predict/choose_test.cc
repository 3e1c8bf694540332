// The choice of options by prediction: choices that an expert would make, requests that are kept,
// and limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/predict/choose.h"
#include "kernels/predict/simulate.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/verify.h"
#include "tests/schedule/shardings.h"

namespace agmm::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

void SetGemm(double small, double large, DeviceRates* device) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    device->gemm.push_back({dtype, 1e6, small});
    device->gemm.push_back({dtype, 1e9, large});
  }
}

// Hosts with devices of one core, on links of 4 Gbit/s.
Machine Hosts() {
  Machine machine;
  machine.name = "hosts";
  machine.within = {Wiring::kSwitch, {8, 16, 2000}};
  machine.staged = machine.within;
  machine.between = {Wiring::kSwitch, {0.5, 1, 50000}};
  DeviceRates& device = machine.device;
  SetGemm(100, 800, &device);
  device.memory = 10;
  device.multiply_ns = 5000;
  device.step_ns = 1000;
  device.signal_ns = 3000;
  device.message_ns = 5000;
  device.send_ns_per_byte = device.receive_ns_per_byte = 0.4;
  device.copy_ns_per_byte = 0.1;
  return machine;
}

struct Asked {
  std::string spec, mesh;
  agmm::Shape shape;
  int nodes = 1;
  PlanOptions options = {};
};

class Choosing : public testing::Test {
 protected:
  // Chooses on Hosts(), unless `machine` is set.
  Choice Of(const Asked& asked) {
    problem_ =
        ParseProblem(asked.spec, ParseMesh(asked.mesh).value(), asked.shape, DType::kBF16).value();
    platform_ = {machine_, UniformTopology(problem_.mesh.size(), asked.nodes).value(), {}};
    absl::StatusOr<Choice> choice = Choose(problem_, platform_, asked.options, limits_);
    EXPECT_TRUE(choice.ok()) << choice.status();
    if (!choice.ok()) return {};
    schedule_ = PlanWith(problem_, platform_.topology, choice->recipe).value();
    SCOPED_TRACE(choice->why);
    return *std::move(choice);
  }
  absl::Status Refused(const Asked& asked) {
    problem_ =
        ParseProblem(asked.spec, ParseMesh(asked.mesh).value(), asked.shape, DType::kBF16).value();
    platform_ = {machine_, UniformTopology(problem_.mesh.size(), asked.nodes).value(), {}};
    return Choose(problem_, platform_, asked.options, limits_).status();
  }
  int64_t SentBetweenNodes() const {
    int64_t bytes = 0;
    for (const Traffic& traffic : TrafficOf(platform_.topology, schedule_))
      bytes += traffic.other_nodes;
    return bytes;
  }
  int64_t MostSentByARank() const {
    int64_t bytes = 0;
    for (const Traffic& traffic : TrafficOf(platform_.topology, schedule_))
      bytes = std::max(bytes, traffic.other_nodes);
    return bytes;
  }
  int64_t Least(const Choice& choice) const {
    return LeastBetweenNodes(problem_, platform_.topology, choice.recipe.split);
  }
  // The numbers of pieces, along M and along N, in which rank 0 sends its part of the result to
  // another node.
  std::pair<size_t, size_t> CutsOfTheResult() const {
    std::set<std::pair<int64_t, int64_t>> rows, columns;
    for (const Step& step : schedule_.ranks[0]) {
      const auto* const transfer = std::get_if<Transfer>(&step.op);
      if (transfer == nullptr || !problem_.Writes(transfer->block.operand)) continue;
      rows.emplace(transfer->block.rows.begin, transfer->block.rows.end);
      columns.emplace(transfer->block.cols.begin, transfer->block.cols.end);
    }
    return {rows.size(), columns.size()};
  }
  int64_t StepCount() const {
    int64_t steps = 0;
    for (const std::vector<Step>& of_rank : schedule_.ranks)
      steps += static_cast<int64_t>(of_rank.size());
    return steps;
  }
  int64_t MultiplyCount() const {
    int64_t count = 0;
    for (const std::vector<Step>& of_rank : schedule_.ranks)
      for (const Step& step : of_rank) count += std::holds_alternative<Multiply>(step.op);
    return count;
  }

  Machine machine_ = Hosts();
  ChooseLimits limits_;
  Problem problem_;
  Platform platform_;
  Schedule schedule_;
};

// ---- Choices of the former rules that an expert would not make ----

TEST_F(Choosing, CrossesNodesWithTheFewestBytesWhenTheResultIsResharded) {
  const Choice choice =
      Of({"A[M_x, K] * B[K, N_y] -> C[M, N_yx]", "x=2,y=8", {8192, 8192, 4096}, 2});
  EXPECT_LE(SentBetweenNodes(), Least(choice)) << "direct moved eight times as much";
}

TEST_F(Choosing, LetsAllRanksOfANodeSendToTheOther) {
  Of({"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=16", {8192, 8192, 4096}, 2});
  EXPECT_LE(MostSentByARank(), int64_t{12} << 20) << "a ring sent 180 MiB through one rank";
}

// Pieces along both dimensions would need a multiply and a message for each pair of them.
TEST_F(Choosing, SendsTheResultInPiecesAlongOneDimension) {
  machine_.between.rates = {0.25, 0.5, 50000};
  std::set<bool> cut_rows;
  for (const agmm::Shape& shape : {agmm::Shape{4096, 2048, 4096}, agmm::Shape{2048, 4096, 4096}}) {
    const Choice choice = Of({"A[M_x, K] * B[K, N_x] -> C[M, N]", "x=2", shape, 2});
    ASSERT_GT(choice.recipe.chunks, 1) << choice.why;
    const auto [rows, columns] = CutsOfTheResult();
    EXPECT_EQ(std::min(rows, columns), 1u) << choice.why;
    EXPECT_EQ(std::max(rows, columns), choice.recipe.chunks) << choice.why;
    cut_rows.insert(rows > 1);
  }
  EXPECT_EQ(cut_rows.size(), 2u) << "rows if A is larger and arrives in them, and columns if B is";
}

TEST_F(Choosing, MakesFewMultipliesWhenTwoInputsMove) {
  Of({"A[M_x, K] * B[K_x, N] -> C[M, N_x]", "x=8", {8192, 8192, 8192}, 2});
  EXPECT_LT(MultiplyCount(), 8 * 8 * 64) << "32,768 of 128 x 128 x 1024 took longest to start";
}

TEST_F(Choosing, AddsNoPiecesAlongKToTheRequestedChunks) {
  PlanOptions options;
  options.chunks = 2;
  const Choice choice = Of(
      {"A[M_x, K_y] * B[K_y, N_x] -> C[M_x, N_y]", "x=4,y=4", {16384, 16384, 16384}, 4, options});
  EXPECT_EQ(choice.recipe.chunks, 2);
  EXPECT_EQ(choice.recipe.k_chunks, 1);
}

TEST_F(Choosing, NeverAnswersARequestForPiecesWithSerial) {
  PlanOptions options;
  options.chunks = 8;
  const Choice choice =
      Of({"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=16", {65536, 8192, 8192}, 4, options});
  EXPECT_NE(choice.recipe.algorithm->name, "serial");
  EXPECT_EQ(choice.recipe.chunks, 8);
}

TEST_F(Choosing, OfFewRowsCrossesNodesOnce) {
  const Choice choice = Of({"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=32", {8, 28672, 8192}, 4});
  EXPECT_LE(SentBetweenNodes(), Least(choice));
}

TEST_F(Choosing, CountsTheTransfersOfTheResultAfterTheLastMultiply) {
  // At 2 Gbit/s: gathering A and exchanging C costs more than cutting N, with pieces that leave as
  // they are made.
  machine_.between.rates = {0.25, 0.5, 50000};
  const Choice choice = Of({"A[M_x, K] * B[K, N_x] -> C[M, N]", "x=2", {4096, 2048, 4096}, 2});
  EXPECT_GT(choice.recipe.chunks, 1) << "C leaves in pieces";
  for (const PlanCandidate& other : choice.candidates) {
    if (!other.refused.empty()) continue;
    EXPECT_GE(static_cast<double>(other.time_ns) * 1.011, static_cast<double>(choice.time_ns));
  }
}

TEST_F(Choosing, KeepsABoundedWorkspaceByAnotherSplit) {
  PlanOptions options;
  options.workspace_shards = 2;
  const Choice choice =
      Of({"A[M_x, K] * B[K, N_y] -> C[M, N_y]", "x=4,y=2", {4096, 4096, 4096}, 2, options});
  EXPECT_EQ(choice.recipe.workspace_shards, 2);
  EXPECT_THAT(choice.why, Not(HasSubstr("the workspace")));
}

TEST_F(Choosing, KeepsCarriedSends) {
  PlanOptions options;
  options.carried = true;
  const Choice choice =
      Of({"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=4", {4096, 4096, 4096}, 1, options});
  EXPECT_TRUE(choice.recipe.carried);
}

TEST_F(Choosing, SaysWhyNoPlanKeepsARequest) {
  PlanOptions options;
  options.workspace_shards = 2;
  const Choice choice =
      Of({"A[M_x, K] * B[K, N_x] -> C[M, N]", "x=4", {4096, 4096, 4096}, 2, options});
  EXPECT_EQ(choice.recipe.workspace_shards, 0);
  EXPECT_THAT(choice.why, HasSubstr("the workspace holds all arrivals"));
}

TEST_F(Choosing, OfManyRanksStaysWithinTheStepsJoinsIncluded) {
  const Choice choice =
      Of({"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=256", {65536, 28672, 8192}, 32});
  EXPECT_LE(StepCount(), kMaxPlanSteps);
  EXPECT_LE(choice.compared_steps, ComparedStepsFor(256) + kMaxPlanSteps);
  EXPECT_GT(choice.time_ns, 0);
}

TEST_F(Choosing, RefusesAMeshThatIsTooLargeAtOnce) {
  const absl::Status status =
      Refused({"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=1024", {131072, 28672, 8192}, 128});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("at most 131072 can be planned; gather"));
}

TEST_F(Choosing, CutsMoreThanSixAxes) {
  const Choice choice = Of({"A[M_abcd, K] * B[K, N_efgh] -> C[M_abcd, N_efgh]",
                            "a=2,b=2,c=2,d=2,e=2,f=2,g=2,h=2",
                            {8192, 8192, 4096},
                            32});
  EXPECT_THAT(SplitText(problem_, choice.recipe.split), "M=abcd,N=efgh");
  EXPECT_EQ(SentBetweenNodes(), 0);
}

// ---- Requests and limits ----

TEST_F(Choosing, OfEverythingRequestedIsTheRequest) {
  PlanOptions options = {"ring", 2, 1, "N=x"};
  const Choice choice =
      Of({"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=4", {4096, 4096, 4096}, 2, options});
  EXPECT_EQ(OptionsOf(problem_, choice.recipe), options);
  EXPECT_EQ(choice.why, "");
  EXPECT_EQ(choice.candidates.size(), 1u);
  EXPECT_EQ(choice.time_ns, Simulate(problem_, platform_, schedule_)->time_ns);
}

TEST_F(Choosing, TakesTheFastestCandidate) {
  const Choice choice = Of({"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=8", {4096, 4096, 4096}, 2});
  ASSERT_GT(choice.candidates.size(), 4u);
  for (const PlanCandidate& other : choice.candidates)
    EXPECT_GE(static_cast<double>(other.time_ns) * 1.011, static_cast<double>(choice.time_ns));
  EXPECT_GT(choice.serial_ns, choice.time_ns);
}

// On two ranks five algorithms have the same estimate, and took ten of twelve places.
TEST_F(Choosing, ComparesSplitsAndPiecesBeforeAlgorithmsWithTheSameEstimate) {
  machine_.between.rates = {0.25, 0.5, 50000};
  machine_.device.gemm.clear();
  SetGemm(60, 110, &machine_.device);
  const Choice choice = Of({"A[M, K_x] * B[K, N_x] -> C[M, N_x]", "x=2", {4096, 512, 1024}, 2});
  using Cut = std::tuple<std::string, int, int>;
  const auto cut_of = [&](const Recipe& recipe) {
    return Cut(SplitText(problem_, recipe.split), recipe.chunks, recipe.k_chunks);
  };
  std::set<Cut> cuts;
  std::set<std::string> of_the_best;
  for (const PlanCandidate& one : choice.candidates) {
    cuts.insert(cut_of(one.recipe));
    if (cut_of(one.recipe) == cut_of(choice.recipe)) of_the_best.insert(one.recipe.algorithm->name);
  }
  EXPECT_GE(cuts.size(), 5u) << choice.why;
  EXPECT_GE(of_the_best.size(), 4u) << choice.why;
}

TEST_F(Choosing, LeavesOutPlansWhoseWorkspaceDoesNotFit) {
  const Asked asked = {"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=8", {4096, 4096, 4096}, 2};
  const Choice free = Of(asked);
  const int64_t most = schedule_.workspace_bytes;
  ASSERT_GT(most, 0);
  limits_.workspace_bytes = most - 1;
  EXPECT_EQ(Refused(asked).code(), absl::StatusCode::kResourceExhausted)
      << "it needs the least already, and gathers in a workspace that cannot be bounded";
  EXPECT_THAT(std::string(Refused(asked).message()), HasSubstr("of workspace, and"));
}

TEST_F(Choosing, BoundsTheWorkspaceIfThatMakesAPlanFit) {
  PlanOptions ring;
  ring.algorithm = "ring";
  const Asked asked = {"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=8", {4096, 4096, 4096}, 2, ring};
  const Choice free = Of(asked);
  EXPECT_GT(schedule_.workspace_bytes, 20 << 20);
  limits_.workspace_bytes = 16 << 20;
  const Choice bound = Of(asked);
  EXPECT_EQ(bound.recipe.workspace_shards, 2);
  EXPECT_LE(schedule_.workspace_bytes, 16 << 20);
  EXPECT_GE(bound.time_ns, free.time_ns);
  EXPECT_THAT(bound.why,
              HasSubstr("with a workspace of 2 shards, because one for all does not fit"));
}

TEST_F(Choosing, LeavesOutCandidatesBeyondItsSteps) {
  limits_.compared_steps = 800;
  const Choice choice = Of({"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=8", {4096, 4096, 4096}, 2});
  int64_t steps = 0;
  for (const PlanCandidate& one : choice.candidates)
    steps += CostOf(problem_, platform_.topology, one.recipe).steps;
  EXPECT_GT(steps, 0);
  EXPECT_LE(steps, choice.compared_steps);
  EXPECT_LE(choice.compared_steps, 1000) << "half for estimates, three quarters for simulations";
  EXPECT_THAT(choice.why, testing::ContainsRegex("compared [0-9]+ candidates .*within 800 "
                                                 "steps$"));
  EXPECT_GT(choice.serial_ns, 0) << "it is the second one that is compared";
  limits_.compared_steps = 0;
  EXPECT_THAT(Of({"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=8", {4096, 4096, 4096}, 2}).why,
              Not(HasSubstr("compared")));
}

TEST_F(Choosing, ComparesTheBestEstimateWithSerialIfNothingIsWithinItsSteps) {
  limits_.compared_steps = 1;
  PlanOptions options;
  options.chunks = 8;
  const Choice choice =
      Of({"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=8", {4096, 4096, 4096}, 2, options});
  EXPECT_EQ(choice.candidates.size(), 2u) << "and the serial one";
  EXPECT_EQ(choice.recipe.chunks, 8);
  EXPECT_GT(choice.time_ns, 0);
  EXPECT_THAT(choice.why, HasSubstr("candidates of some splits and algorithms within 1 step"));
}

TEST_F(Choosing, WithoutAPlanCountsTheCandidatesBeyondItsSteps) {
  const Asked asked = {"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=8", {4096, 4096, 4096}, 2};
  limits_.workspace_bytes = 1;
  EXPECT_THAT(std::string(Refused(asked).message()), Not(HasSubstr("not tried")));
  limits_.compared_steps = 100;
  EXPECT_THAT(std::string(Refused(asked).message()),
              testing::ContainsRegex("and 1 B are free; [0-9]+ candidates beyond the steps of a "
                                     "choice were not tried; ask for fewer pieces"));
}

TEST_F(Choosing, TakesTheBestSoFarWhenItsTimeIsUp) {
  limits_.out_of_time = [] { return true; };
  const Choice choice = Of({"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=8", {4096, 4096, 4096}, 2});
  EXPECT_EQ(choice.candidates.size(), 1u);
  EXPECT_GT(choice.time_ns, 0);
}

TEST_F(Choosing, KeepsRequestsEvenWhenItsTimeIsUp) {
  limits_.out_of_time = [] { return true; };
  PlanOptions options;
  options.chunks = 8;
  const Choice choice =
      Of({"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=8", {4096, 4096, 4096}, 2, options});
  EXPECT_EQ(choice.recipe.chunks, 8);
  EXPECT_THAT(choice.why, HasSubstr("time was up after 1 candidate"));
}

TEST_F(Choosing, RefusesATorusWithoutPlaces) {
  machine_.within.wiring = Wiring::kTorus;
  const absl::Status status =
      Refused({"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=4", {64, 64, 64}, 4});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("0 of 4 ranks have a place on it"));
}

TEST_F(Choosing, IsReproducible) {
  const Asked asked = {"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=8", {4096, 4096, 4096}, 2};
  const Choice first = Of(asked), second = Of(asked);
  EXPECT_EQ(first.recipe, second.recipe);
  EXPECT_EQ(first.why, second.why);
}

TEST_F(Choosing, NamesFiguresAndTheMachine) {
  machine_.version = 7;
  const Choice choice = Of({"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=8", {4096, 4096, 4096}, 2});
  EXPECT_THAT(choice.why, testing::MatchesRegex(
                              "auto takes [a-z_]+.*: predicted [0-9.]+ ms; next .* ms; serial "
                              "[0-9.]+ ms; (hidden|exposed) since n_shard .*; machine hosts 7"));
}

TEST_F(Choosing, DoesNotCallTheTransfersOfSerialHidden) {
  int serial = 0;
  for (const int64_t rows : {1, 2, 4, 8, 16, 64, 256}) {
    const Choice choice = Of({"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=4", {rows, 2048, 2048}, 1});
    const bool overlaps = choice.recipe.algorithm->name != "serial";
    EXPECT_EQ(choice.why.find(" since n_shard 512 ") != std::string::npos, overlaps) << choice.why;
    serial += !overlaps;
  }
  EXPECT_GT(serial, 0);
}

TEST_F(Choosing, SaysWhichOptionsOnlySerialIgnores) {
  PlanOptions options;
  options.chunks = 4;
  const Asked asked = {"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=4", {512, 384, 256}, 1, options};
  const Choice choice = Of(asked);
  EXPECT_GT(choice.time_ns, choice.serial_ns) << "auto takes a slower plan, as it was asked to";
  EXPECT_THAT(choice.why,
              testing::MatchesRegex(".*; serial [0-9.]+ [mu]s, which ignores chunks; .*"));
  EXPECT_THAT(Of({asked.spec, asked.mesh, asked.shape, 1}).why, Not(HasSubstr("ignores")));
}

TEST_F(Choosing, OfASplitCountsFlopsAsWellAsBytes) {
  const char* const replicated_c = "A[M_x, K] * B[K, N] -> C[M, N]";
  Choice choice = Of({replicated_c, "x=8", {8192, 8192, 4096}, 4});
  EXPECT_EQ(SplitText(problem_, choice.recipe.split), "M=x")
      << "all of A at every rank is half of the bytes, and eight times the flops";
  choice = Of({replicated_c, "x=8", {8192, 8192, 64}, 4});
  EXPECT_EQ(SplitText(problem_, choice.recipe.split), "none") << "so few flops that bytes decide";
}

TEST_F(Choosing, ReportsThatNothingHasToMove) {
  const Choice choice = Of({"A[M_x, K] * B[K, N] -> C[M_x, N]", "x=4", {1024, 1024, 1024}, 2});
  EXPECT_THAT(choice.why, HasSubstr("nothing has to move with any algorithm; predicted"));
  EXPECT_EQ(schedule_.algorithm, "local");
}

TEST_F(Choosing, ReactsToTheLinks) {
  const Asked asked = {"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=4", {4096, 4096, 4096}, 2};
  machine_.between.rates = {0.05, 0.1, 50000};
  const Choice slow = Of(asked);
  EXPECT_THAT(slow.recipe.algorithm->name, HasSubstr("hierarchical"))
      << "with two devices on a node, each byte crosses a slow link once";
}

TEST_F(Choosing, OfIslandsLoadsNothingFromTheOther) {
  problem_ = ParseProblem("A[M_x, K] * B[K, N_x] -> C[M, N_x]", ParseMesh("x=4").value(),
                          {4096, 4096, 4096}, DType::kBF16)
                 .value();
  platform_ = {machine_, {{0, 0, 0, 0}, {0, 0, 1, 1}}, {}};
  const Choice choice = Choose(problem_, platform_, {}).value();
  EXPECT_NE(choice.recipe.algorithm->name, "peer") << choice.why;
}

TEST_F(Choosing, MakesAPlanThatVerifiesForEverySharding) {
  std::set<std::string> taken;
  for (const ShardedCase& one : ShardedCases()) {
    for (const int nodes : {1, 2}) {
      const Mesh mesh = ParseMesh(one.mesh).value();
      for (const agmm::Shape& shape : {agmm::Shape{10, 7, 13}, agmm::Shape{1024, 512, 1024}}) {
        problem_ = ParseProblem(one.spec, mesh, shape, DType::kBF16).value();
        platform_ = {machine_, {}, {}};
        for (Rank rank = 0; rank < mesh.size(); ++rank)
          platform_.topology.node_of_rank.push_back(rank * nodes / mesh.size());
        const absl::StatusOr<Choice> choice = Choose(problem_, platform_, {});
        ASSERT_TRUE(choice.ok()) << ToString(problem_) << ": " << choice.status();
        const Schedule schedule = PlanWith(problem_, platform_.topology, choice->recipe).value();
        EXPECT_EQ(Verify(problem_, platform_.topology, schedule), absl::OkStatus())
            << ToString(problem_) << ": " << choice->why;
        EXPECT_THAT(choice->why, HasSubstr("predicted "));
        taken.insert(choice->recipe.algorithm->name);
      }
    }
  }
  EXPECT_GE(taken.size(), 4u) << "the best algorithm depends on the problem";
}

}  // namespace
}  // namespace agmm::test
