// The program that a CUDA device derives from a schedule.
#include "kernels/cuda/cuda_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "kernels/schedule/index.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"
#include "tests/cuda/program_peers.h"

namespace agmm {
namespace {

// Rank 0 of `ranks` ranks on `nodes` nodes. `reachable`: rank 0's GPU can reach the memory of the
// other ranks of its node. Each rank has its own GPU, unless all ranks of a node share one.
absl::StatusOr<CudaProgram> Program(const char* spec, const char* algorithm, int ranks, int nodes,
                                    DType dtype, bool reachable = true,
                                    const Shape& shape = {64, 40, 64}, bool one_gpu = false) {
  const Problem problem =
      ParseProblem(spec, ParseMesh("x=" + std::to_string(ranks)).value(), shape, dtype).value();
  PlanOptions options;
  options.algorithm = algorithm;
  ProgramPeers peers(problem, UniformTopology(ranks, nodes).value(), options);
  for (size_t rank = 1; rank < peers.cuda.size(); ++rank) {
    if (!reachable) peers.cuda[rank].reachable = false;
    if (one_gpu) peers.cuda[rank].gpu = 0;
  }
  return LowerForCuda(peers.plan(), peers.cuda);
}

constexpr char kGather[] = "A[M_x, K] * B[K, N_x] -> C[M, N_x]";
constexpr char kAlongK[] = "A[M, K_x] * B[K, N_x] -> C[M, N_x]";

std::set<CudaCopy::Way> WaysOf(const CudaProgram& program) {
  std::set<CudaCopy::Way> ways;
  for (const CudaStep& step : program.steps) {
    if (step.copy() != nullptr) ways.insert(step.copy()->ways.begin(), step.copy()->ways.end());
  }
  return ways;
}

std::vector<CudaMultiply> MultipliesOf(const CudaProgram& program) {
  std::vector<CudaMultiply> multiplies;
  for (const CudaStep& step : program.steps) {
    if (const auto* multiply = std::get_if<CudaMultiply>(&step.op)) multiplies.push_back(*multiply);
  }
  return multiplies;
}

TEST(CudaProgram, CopiesWithPeerAccessAreDirect) {
  const CudaProgram program = Program(kGather, "ring", 2, 1, DType::kF32).value();
  EXPECT_THAT(WaysOf(program), testing::ElementsAre(CudaCopy::Way::kDirect));
  EXPECT_EQ(program.staged_bytes, 0);
}

TEST(CudaProgram, CopiesWithoutPeerAccessUsePinnedMemory) {
  const CudaProgram program = Program(kGather, "ring", 2, 1, DType::kF32, false).value();
  EXPECT_THAT(WaysOf(program), testing::ElementsAre(CudaCopy::Way::kThrough));
  // A shard of B, which is smaller than one of A: 64 rows of 20 f32.
  EXPECT_EQ(program.staged_bytes, 64 * 20 * 4);
}

TEST(CudaProgram, CopiesToOtherNodesAreSent) {
  const CudaProgram program = Program(kGather, "ring", 2, 2, DType::kF32).value();
  EXPECT_THAT(WaysOf(program), testing::ElementsAre(CudaCopy::Way::kSend));
  int messages = 0;
  for (const CudaStep& step : program.steps) messages += step.has_messages();
  EXPECT_GT(messages, 0);
}

TEST(CudaProgram, PathsAreThoseBetweenRanks) {
  const auto paths = [](const char* algorithm, int ranks, int nodes, bool reachable = true,
                        bool one_gpu = false) {
    return Program(kGather, algorithm, ranks, nodes, DType::kF32, reachable, {64, 40, 64}, one_gpu)
        .value()
        .paths;
  };
  using testing::ElementsAre;
  EXPECT_THAT(paths("ring", 1, 1), testing::IsEmpty());
  EXPECT_THAT(paths("ring", 2, 1), ElementsAre("peer access"));
  EXPECT_THAT(paths("peer", 2, 1), ElementsAre("peer access"));
  EXPECT_THAT(paths("ring", 2, 1, false), ElementsAre("through pinned memory"));
  EXPECT_THAT(paths("ring", 2, 1, true, true), ElementsAre("within a GPU"));
  EXPECT_THAT(paths("ring", 2, 2), ElementsAre("staged to the network"));
  EXPECT_THAT(paths("direct", 4, 2), ElementsAre("peer access", "staged to the network"));
  EXPECT_THAT(paths("direct", 4, 2, false),
              ElementsAre("staged to the network", "through pinned memory"));
}

TEST(CudaProgram, AReadOfMemoryThatCannotBeLoadedIsRefusedByBothGpus) {
  const absl::Status status = Program(kGather, "peer", 2, 1, DType::kF32, false).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("memory of rank 1 on GPU 1, to which GPU 0 has no peer access"));
}

TEST(CudaProgram, ItsLongestTimeGrowsWithItsWork) {
  EXPECT_GE(Program(kGather, "ring", 2, 1, DType::kF32).value().longest_ns, 64 * 20 * 4);
  constexpr int64_t kK = 1 << 20;
  EXPECT_GE(Program(kGather, "ring", 2, 1, DType::kF32, true, {64, 40, kK}).value().longest_ns,
            2 * 64 * 20 * kK / 1000);
}

TEST(CudaProgram, AProductIsComputedInPlaceInItsOwnType) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const CudaProgram program = Program(kGather, "ring", 2, 1, dtype).value();
    const std::vector<CudaMultiply> multiplies = MultipliesOf(program);
    ASSERT_FALSE(multiplies.empty());
    for (const CudaMultiply& multiply : multiplies) {
      EXPECT_EQ(multiply.sum, CudaMultiply::Sum::kOut);
      EXPECT_FALSE(multiply.load || multiply.convert || multiply.shape.add);
      EXPECT_EQ(multiply.shape.out, dtype);
      EXPECT_EQ(multiply.shape.k, 64);
    }
    EXPECT_THAT(program.chip_bytes, testing::Each(0));
  }
}

TEST(CudaProgram, AChainOfSumsStaysOnChipInF32AndIsConvertedOnce) {
  const CudaProgram program = Program(kAlongK, "ring", 2, 1, DType::kBF16).value();
  const std::vector<CudaMultiply> multiplies = MultipliesOf(program);
  ASSERT_GE(multiplies.size(), 2u);
  int converted = 0;
  for (size_t i = 0; i < multiplies.size(); ++i) {
    EXPECT_EQ(multiplies[i].sum, CudaMultiply::Sum::kChip);
    EXPECT_EQ(multiplies[i].shape.out, DType::kF32);
    EXPECT_EQ(multiplies[i].shape.add, i > 0);
    converted += multiplies[i].convert;
  }
  EXPECT_EQ(converted, 1);
  EXPECT_TRUE(multiplies.back().convert);
  // 64 rows of 20 f32, in whole lines.
  EXPECT_THAT(program.chip_bytes, testing::Contains(64 * 128));
}

TEST(CudaProgram, ALaneThatWaitsForAnotherLaneSkipsTheWaitForTheLastEpoch) {
  using testing::Each, testing::ElementsAre;
  const auto gather = Program(kGather, "ring", 4, 1, DType::kF32).value();
  // The second lane sends the rank's shard of B. The others forward shards, or send and forward
  // blocks of C.
  EXPECT_THAT(gather.relays, ElementsAre(false, false, true, true, true, true, true, true, true));
  EXPECT_THAT(gather.begins,
              ElementsAre(true, true, false, false, false, false, false, false, false));
  // The first lane multiplies, and the others copy C to the other ranks.
  const auto copied =
      Program("A[M_x, K] * B[K, N] -> C[M, N]", "direct", 4, 1, DType::kF32).value();
  EXPECT_THAT(copied.relays, Each(false));
  EXPECT_THAT(copied.begins, ElementsAre(true, false, false, false));
}

// Only slots order a relay lane, so a lane that waits for it alone must wait for the last epoch.
TEST(CudaProgram, ALaneThatWaitsForARelayLaneWaitsForTheLastEpoch) {
  const Problem problem =
      ParseProblem(kGather, ParseMesh("x=1").value(), {64, 40, 64}, DType::kF32).value();
  PlanOptions options;
  options.algorithm = "serial";
  Schedule schedule = Plan(problem, UniformTopology(1, 1).value(), options).value();
  const Block a = ShardBlock(problem, kA, 0);
  const Place own = ResidentPlace(problem, a, 0);
  std::vector<Place> spare;
  for (int i = 0; i < 3; ++i) spare.push_back({0, kWorkspace, i << 20, own.pitch_bytes, own.dtype});
  schedule.workspace_bytes = 3 << 20;
  std::vector<Step>& steps = schedule.ranks[0];
  ASSERT_EQ(LaneCount(steps), 1);
  steps.push_back({Transfer{a, spare[0], {spare[1]}}, 1, {}, {{0, 0}}});
  steps.push_back({Transfer{a, own, {spare[2]}}, 2, {{{0, 0}}}, {}});
  NoHeap heap;
  NoExecutor executor;
  Peers peers;
  peers.nodes = {0};
  peers.heaps = {&heap};
  peers.executors = {&executor};
  const auto program =
      LowerForCuda({problem, std::make_shared<const Schedule>(schedule), peers}, {{1, 0, true}});
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_THAT(program->relays, testing::ElementsAre(false, true, false));
  EXPECT_THAT(program->begins, testing::ElementsAre(true, false, true));
}

TEST(CudaProgram, AlignmentsAreThoseOfThePlaces) {
  int least = 128;
  // In the second one, A is multiplied by columns that begin within a row.
  for (const char* spec : {kAlongK, "A[M, K] * B[K_x, N] -> C[M, N]"}) {
    const CudaProgram program = Program(spec, "ring", 4, 1, DType::kBF16).value();
    for (const CudaMultiply& multiply : MultipliesOf(program)) {
      EXPECT_EQ(multiply.a.offset_bytes % multiply.shape.a_alignment, 0);
      EXPECT_EQ(multiply.b.offset_bytes % multiply.shape.b_alignment, 0);
      EXPECT_EQ(multiply.shape.c_alignment, 128);
      least = std::min(least, multiply.shape.a_alignment);
    }
  }
  EXPECT_EQ(least, 32);
}

}  // namespace
}  // namespace agmm
