// Products whose ranks compute parts of a sum: the split, the bytes, the order of summation, and
// the routes backwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/split.h"
#include "kernels/schedule/text.h"
#include "kernels/schedule/verify.h"
#include "tests/schedule/problems.h"
#include "tests/schedule/sent_bytes.h"

namespace agmm::test {
namespace {

constexpr char kReduceScatter[] = "A[M, K_x] * B[K_x, N] -> C[M, N_x]";
constexpr char kAllReduce[] = "A[M, K_x] * B[K_x, N] -> C[M, N]";

PlanOptions Summed(const std::string& algorithm, int chunks = 1) {
  PlanOptions options;
  options.algorithm = algorithm;
  options.split = "K=x";
  options.chunks = chunks;
  return options;
}

TEST(Sums, AReduceScatterSendsTheTermsOfAllOtherBlocks) {
  for (const int ranks : {2, 3, 4, 8}) {
    const Problem problem = MakeProblem(ranks, {16, 24 * ranks, 64}, DType::kBF16, kReduceScatter);
    const int64_t terms = 16 * 24 * ranks * SizeOf(DType::kF32);
    for (const char* algorithm : kBalancedRoutes) {
      for (const int chunks : {1, 2}) {
        SCOPED_TRACE(absl::StrCat(algorithm, " ", ranks, " chunks ", chunks));
        const Topology topology = MakeTopology(ranks, ranks);
        const Schedule schedule = Proved(problem, topology, Summed(algorithm, chunks));
        EXPECT_THAT(SentBytes(topology, schedule), testing::Each(terms * (ranks - 1) / ranks));
      }
    }
  }
}

TEST(Sums, AnAllReduceSendsAReduceScatterAndAnAllGather) {
  for (const int ranks : {2, 3, 4, 8}) {
    const Problem problem = MakeProblem(ranks, {128, 160 * ranks, 64}, DType::kBF16, kAllReduce);
    const int64_t elements = 128 * 160 * ranks * (ranks - 1) / ranks;
    for (const char* algorithm : kBalancedRoutes) {
      SCOPED_TRACE(absl::StrCat(algorithm, " ", ranks));
      const Topology topology = MakeTopology(ranks, ranks);
      const Schedule schedule = Proved(problem, topology, Summed(algorithm));
      const int64_t bytes = elements * (SizeOf(DType::kF32) + SizeOf(DType::kBF16));
      int64_t all = 0;
      for (const int64_t sent : SentBytes(topology, schedule)) all += sent;
      EXPECT_EQ(all, ranks * bytes);
    }
  }
}

// Half of the bytes, rounded once for each hop.
TEST(Sums, TermsMayTravelRounded) {
  for (const char* spec : {kReduceScatter, kAllReduce}) {
    const Problem problem = MakeProblem(4, {64, 384, 64}, DType::kF32, spec);
    const Topology topology = MakeTopology(4, 4);
    for (const char* algorithm : kBalancedRoutes) {
      SCOPED_TRACE(absl::StrCat(spec, " ", algorithm));
      PlanOptions options = Summed(algorithm);
      const std::vector<int64_t> wide = SentBytes(topology, Proved(problem, topology, options));
      options.partials = DType::kBF16;
      const Schedule schedule = Proved(problem, topology, options);
      const int64_t terms = 64 * 384 * 3 / 4 * SizeOf(DType::kF32);
      std::vector<int64_t> expected;
      for (const int64_t bytes : wide) expected.push_back(bytes - terms / 2);
      EXPECT_EQ(SentBytes(topology, schedule), expected);
      for (const std::vector<Step>& steps : schedule.ranks) {
        for (const Step& step : steps) {
          const auto* transfer = std::get_if<Transfer>(&step.op);
          if (transfer == nullptr || transfer->to[0].buffer != kWorkspace) continue;
          EXPECT_EQ(transfer->from.dtype, DType::kBF16) << "terms leave rounded";
        }
      }
    }
  }
  // If no terms travel, there is nothing to round.
  const Problem gathered = MakeProblem(4, {16, 96, 64}, DType::kBF16);
  PlanOptions options;
  options.partials = DType::kBF16;
  const ResolvedOptions resolved = ResolveOptions(gathered, MakeTopology(4, 4), options).value();
  EXPECT_EQ(resolved.recipe.partials, DType::kF32);
  EXPECT_THAT(resolved.why,
              testing::HasSubstr("partials are f32, because no terms of a sum travel"));
}

// On a ring, a rank adds its terms to one sum at a time: it has room for the sum that arrives and
// for the next one, and for its own terms of both.
TEST(Sums, ABoundedWorkspaceHasRoomForTermsInTurn) {
  struct {
    const char* spec;
    const char* split;
    int all, bounded;  // shards of terms
  } const kForms[] = {
      {kReduceScatter, "K=x", 7 + 8, 2 + 2},
      // The terms of a collective are in its source, and the first of its sums in a place of its
      // own.
      {"A[M, N]{U_x} -> B[M, N_x]", "", 7 + 1, 2 + 1},
  };
  const Topology topology = MakeTopology(8, 8);
  for (const auto& form : kForms) {
    const Problem problem = MakeProblem(8, {16, 8 * 32, 64}, DType::kF32, form.spec);
    const int64_t shard = 16 * 32 * SizeOf(DType::kF32);
    PlanOptions options = Summed("ring");
    options.split = form.split;
    EXPECT_LE(Proved(problem, topology, options).workspace_bytes, form.all * shard) << form.spec;
    options.workspace_shards = 2;
    EXPECT_LE(Proved(problem, topology, options).workspace_bytes, form.bounded * shard)
        << form.spec;
  }
}

// A rank that adds several batches narrows the sum from one place into another.
TEST(Sums, ABoundedWorkspaceWorksWithRoundedTerms) {
  for (const char* spec : {kReduceScatter, kAllReduce, "A[M, N]{U_x} -> B[M_x, N]"}) {
    const Problem problem = MakeProblem(6, {12, 24, 24}, DType::kF32, spec);
    for (const char* algorithm : {"hierarchical", "ring", "torus", "direct"}) {
      SCOPED_TRACE(absl::StrCat(spec, " ", algorithm));
      PlanOptions options = Summed(algorithm);
      if (!HasProduct(problem)) options.split.clear();
      options.workspace_shards = 2;
      options.partials = DType::kBF16;
      Proved(problem, MakeTopology(6, 2), options);
    }
  }
}

// Between nodes, each block has one sum for each other node.
TEST(Sums, HierarchicalCrossesToANodeOnceForEachBlock) {
  const Problem problem = MakeProblem(8, {16, 64, 64}, DType::kF32, kReduceScatter);
  const Topology topology = MakeTopology(8, 2);
  const Schedule schedule = Proved(problem, topology, Summed("hierarchical"));
  int64_t between = 0;
  for (const Traffic& traffic : TrafficOf(topology, schedule)) between += traffic.other_nodes;
  EXPECT_EQ(between, 16 * 64 * SizeOf(DType::kF32));
  ASSERT_TRUE(ParseSplit(problem, "K=x").ok());
  EXPECT_EQ(between, LeastBetweenNodes(problem, topology, *ParseSplit(problem, "K=x")));
}

// The second half of a tensor-parallel layer. Gathered, it would move 113.75 MiB.
TEST(Sums, TheDefaultSplitOfARowParallelLayerSums) {
  const Problem problem = MakeProblem(8, {64, 4096, 14336}, DType::kBF16, kAllReduce);
  const Topology topology = MakeTopology(8, 8);
  const ResolvedOptions resolved = ResolveOptions(problem, topology, {}).value();
  EXPECT_EQ(SplitText(problem, resolved.recipe.split), "K=x");
  int64_t all = 0;
  for (const int64_t sent : SentBytes(topology, Proved(problem, topology, {}))) all += sent;
  EXPECT_EQ(all, 21 * 512 * 1024) << "10.5 MiB";
}

// The ranks in the order in which their terms are added up, by the first column of the chunk.
std::map<int64_t, std::vector<Rank>> OrdersOfDirect(const Schedule& schedule) {
  std::map<std::pair<Rank, int64_t>, Rank> origin;  // by rank and byte of its workspace
  for (Rank rank = 0; rank < static_cast<int>(schedule.ranks.size()); ++rank) {
    for (const Step& step : schedule.ranks[rank]) {
      if (const auto* multiply = std::get_if<Multiply>(&step.op))
        origin[{rank, multiply->acc->offset_bytes}] = rank;
      if (const auto* transfer = std::get_if<Transfer>(&step.op))
        origin[{transfer->to[0].rank, transfer->to[0].offset_bytes}] = rank;
    }
  }
  std::map<int64_t, std::vector<Rank>> orders;
  for (Rank rank = 0; rank < static_cast<int>(schedule.ranks.size()); ++rank) {
    for (const Step& step : schedule.ranks[rank]) {
      const auto* reduce = std::get_if<Reduce>(&step.op);
      if (reduce == nullptr) continue;
      std::vector<Rank>& order = orders[reduce->c.cols.begin];
      if (order.empty()) order.push_back(origin.at({rank, reduce->acc->offset_bytes}));
      for (const Place& from : reduce->from)
        order.push_back(origin.at({from.rank, from.offset_bytes}));
    }
  }
  return orders;
}

TEST(Sums, DirectAddsInTheOrderOfTheRanksWhicheverRankSums) {
  const Problem problem = MakeProblem(3, {8, 12, 16}, DType::kF32, kReduceScatter);
  const Schedule schedule = Proved(problem, MakeTopology(3, 3), Summed("direct"));
  const std::vector<Rank> in_order = {0, 1, 2};
  EXPECT_THAT(OrdersOfDirect(schedule),
              testing::ElementsAre(testing::Pair(0, in_order), testing::Pair(4, in_order),
                                   testing::Pair(8, in_order)));
}

// A rank that a shard of K does not reach has no terms.
TEST(Sums, MoreRanksThanTermsSumWhatThereIs) {
  for (const char* spec : {kReduceScatter, kAllReduce, "A[M, K_x] * B[K_x, N] -> C[M_x, N]"}) {
    for (const int64_t k : {1, 2, 3}) {
      SCOPED_TRACE(absl::StrCat(spec, " K=", k));
      const Problem problem = MakeProblem(4, {5, 7, k}, DType::kF32, spec);
      for (const char* algorithm : kBalancedRoutes)
        Proved(problem, MakeTopology(4, 2), Summed(algorithm));
    }
  }
}

// The planner would save bytes, but a row would have other bits in another batch.
TEST(Sums, AreNotChosenWhereBothInputsHaveKWhole) {
  const Problem problem = MakeProblem(4, {512, 512, 8192}, DType::kBF16);
  const Split sums = ParseSplit(problem, "K=x").value();
  const Split chosen = ResolveOptions(problem, MakeTopology(4, 1), {}).value().recipe.split;
  EXPECT_TRUE(IsBetter(CostOf(problem, sums), CostOf(problem, chosen)));
  EXPECT_TRUE(chosen.k.empty()) << SplitText(problem, chosen);
}

// Two groups of ranks have the same terms. Each group is on two nodes, although each rank shares
// its node with a rank of the other group.
TEST(Sums, PeerIsRefusedIfTheRanksOfASumAreOnTwoNodes) {
  const Problem problem =
      ParseProblem(kAllReduce, ParseMesh("x=2,y=2").value(), {8, 8, 8}, DType::kF32).value();
  const absl::Status status = Plan(problem, Topology{{0, 1, 1, 0}}, Summed("peer")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

}  // namespace
}  // namespace agmm::test
