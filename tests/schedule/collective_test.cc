// Jobs without a product, sums that stay open, and the book's table: which collective a sharding
// is, and the bytes that each rank sends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/text.h"
#include "kernels/schedule/verify.h"
#include "tests/schedule/problems.h"
#include "tests/schedule/sent_bytes.h"

namespace agmm::test {
namespace {

using testing::Each;
using testing::HasSubstr;

PlanOptions Asking(const std::string& algorithm, const std::string& split = "") {
  PlanOptions options;
  options.algorithm = algorithm;
  options.split = split;
  options.chunks = 1;
  return options;
}

int64_t SentBetweenNodes(const Topology& topology, const Schedule& schedule) {
  int64_t bytes = 0;
  for (const Traffic& traffic : TrafficOf(topology, schedule)) bytes += traffic.other_nodes;
  return bytes;
}

// V is the size of the whole matrix in bytes, P the number of ranks.
TEST(Collectives, SendTheBytesOfTheClosedForms) {
  struct {
    const char* spec;
    int64_t (*bytes)(int64_t v, int64_t p);
  } const kForms[] = {
      {"A[M_x, K] -> B[M, K]", [](int64_t v, int64_t p) { return v * (p - 1) / p; }},
      {"A[M, K_x] -> B[M, K]", [](int64_t v, int64_t p) { return v * (p - 1) / p; }},
      {"A[M, K]{U_x} -> B[M_x, K]", [](int64_t v, int64_t p) { return v * (p - 1) / p; }},
      {"A[M, K]{U_x} -> B[M, K_x]", [](int64_t v, int64_t p) { return v * (p - 1) / p; }},
      {"A[M, K]{U_x} -> B[M, K]", [](int64_t v, int64_t p) { return 2 * v * (p - 1) / p; }},
      {"A[M, K] -> B[M_x, K]", [](int64_t, int64_t) { return int64_t{0}; }},
  };
  for (const auto& form : kForms) {
    for (const int ranks : {2, 3, 4, 8}) {
      // Large enough that no rank sums everything itself.
      const int64_t m = 24 * ranks, k = 64 * ranks;
      const Problem problem = MakeProblem(ranks, {m, k, 0}, DType::kF32, form.spec);
      const Topology topology = MakeTopology(ranks, ranks);
      for (const char* algorithm : kBalancedRoutes) {
        SCOPED_TRACE(absl::StrCat(form.spec, " ", ranks, " ", algorithm));
        const std::vector<int64_t> sent =
            SentBytes(topology, Proved(problem, topology, Asking(algorithm)));
        EXPECT_THAT(sent, Each(form.bytes(m * k * SizeOf(DType::kF32), ranks)));
      }
    }
  }
}

// On a ring, a chunk passes through the ranks between its source and its needer.
TEST(Collectives, AnAllToAllSendsTheBytesOfItsRoute) {
  struct {
    const char* algorithm;
    int64_t (*bytes)(int64_t v, int64_t p);
  } const kRoutes[] = {
      {"direct", [](int64_t v, int64_t p) { return v * (p - 1) / p / p; }},
      {"serial", [](int64_t v, int64_t p) { return v * (p - 1) / p / p; }},
      {"ring", [](int64_t v, int64_t p) { return v * (p - 1) / p / 2; }},
      // Each half one way.
      {"split_ring", [](int64_t v, int64_t p) { return v * (p - 1) / p / 2; }},
      // The shorter way: together a quarter, if P is even.
      {"bidirectional_ring",
       [](int64_t v, int64_t p) { return v / 4 - (p % 2 == 0 ? 0 : v / p / p / 4); }},
      {"torus", [](int64_t v, int64_t p) { return v * (p - 1) / p / 2; }},
  };
  for (const auto& route : kRoutes) {
    for (const int ranks : {2, 3, 4, 5, 8}) {
      SCOPED_TRACE(absl::StrCat(route.algorithm, " ", ranks));
      const int64_t m = 24 * ranks, k = 16 * ranks;
      const Problem problem = MakeProblem(ranks, {m, k, 0}, DType::kF32, "A[M_x, K] -> B[M, K_x]");
      const Topology topology = MakeTopology(ranks, ranks);
      const std::vector<int64_t> sent =
          SentBytes(topology, Proved(problem, topology, Asking(route.algorithm)));
      EXPECT_THAT(sent, Each(route.bytes(m * k * SizeOf(DType::kF32), ranks)));
    }
  }
}

// The chunks of a node for one rank leave in one send.
TEST(Collectives, AHierarchicalAllToAllSendsToEachNodeOnce) {
  const Problem problem = MakeProblem(12, {36, 24, 0}, DType::kF32, "A[M_x, K] -> B[M, K_x]");
  const Topology topology = MakeTopology(12, 3);
  const Schedule schedule = Proved(problem, topology, Asking("hierarchical"));
  for (Rank rank = 0; rank < 12; ++rank) {
    std::vector<int> sends(3, 0);
    for (const Step& step : schedule.ranks[rank]) {
      const auto* transfer = std::get_if<Transfer>(&step.op);
      if (transfer == nullptr || topology.SameNode(rank, transfer->to[0].rank)) continue;
      ++sends[topology.node_of_rank[transfer->to[0].rank]];
      EXPECT_EQ(transfer->block.rows.size(), 12);
      EXPECT_EQ(transfer->block.cols.size(), 2);
    }
    for (int node = 0; node < 3; ++node)
      EXPECT_EQ(sends[node], node == topology.node_of_rank[rank] ? 0 : 1);
  }
}

TEST(Collectives, HierarchicalSendsTheMinimumBetweenNodes) {
  const int64_t v = 64 * 32 * SizeOf(DType::kF32);
  struct {
    const char* spec;
    int64_t between;  // two nodes of four ranks
  } const kForms[] = {
      {"A[M_x, K] -> B[M, K]", v},       // each half crosses once
      {"A[M, K]{U_x} -> B[M_x, K]", v},  // the sum of each half crosses once
      {"A[M, K]{U_x} -> B[M, K]", 2 * v},
      {"A[M_x, K] -> B[M, K_x]", v / 2},  // every rank needs half of its columns from there
  };
  const Topology topology = MakeTopology(8, 2);
  for (const auto& form : kForms) {
    SCOPED_TRACE(form.spec);
    const Problem problem = MakeProblem(8, {64, 32, 0}, DType::kF32, form.spec);
    for (const char* algorithm : {"hierarchical", "hierarchical_peer", "auto"}) {
      EXPECT_EQ(SentBetweenNodes(topology, Proved(problem, topology, Asking(algorithm))),
                form.between);
    }
    EXPECT_EQ(LeastBetweenNodes(problem, topology, {}), form.between);
  }
}

// A small all-reduce takes one step: each rank adds up all terms, in the order of the ranks.
TEST(Collectives, ASmallAllReduceSumsEverywhere) {
  for (const auto& [m, everywhere] : {std::pair(16, true), {1024, false}}) {
    for (const int nodes : {1, 4}) {
      SCOPED_TRACE(absl::StrCat(m, " rows, ", nodes, " nodes"));
      const Problem problem = MakeProblem(4, {m, 96, 0}, DType::kBF16, "A[M, K]{U_x} -> B[M, K]");
      const Topology topology = MakeTopology(4, nodes);
      const Schedule schedule = Proved(problem, topology, Asking(nodes == 1 ? "peer" : "direct"));
      for (const std::vector<Step>& steps : schedule.ranks) {
        for (const Step& step : steps) {
          if (const auto* reduce = std::get_if<Reduce>(&step.op); reduce && reduce->finish)
            EXPECT_EQ(reduce->c.cols.size(), everywhere ? 96 : 24);
          // Terms travel as they are.
          const auto* transfer = std::get_if<Transfer>(&step.op);
          if (transfer && everywhere) EXPECT_EQ(transfer->from.dtype, DType::kBF16);
        }
      }
    }
  }
}

// Rounded terms take two rounds for any size, or a row would have other bits in a larger batch.
TEST(Collectives, RoundedTermsTakeTwoRounds) {
  const Problem problem = MakeProblem(4, {16, 96, 0}, DType::kBF16, "A[M, K]{U_x} -> B[M, K]");
  PlanOptions options = Asking("direct");
  options.partials = DType::kF16;
  for (const std::vector<Step>& steps : Proved(problem, MakeTopology(4, 4), options).ranks) {
    for (const Step& step : steps) {
      if (const auto* reduce = std::get_if<Reduce>(&step.op); reduce && reduce->finish)
        EXPECT_EQ(reduce->c.cols.size(), 24);
    }
  }
}

// The shape of the steps on one node: no rank copies what another one can read.
TEST(Collectives, OnOneNodeASumReadsItsTermsInPlace) {
  const Problem problem = MakeProblem(4, {64, 32, 0}, DType::kBF16, "A[M, K]{U_x} -> B[M_x, K]");
  const Schedule schedule = Proved(problem, MakeTopology(4, 1), Asking("peer"));
  EXPECT_EQ(schedule.workspace_bytes, 0);
  for (Rank rank = 0; rank < 4; ++rank) {
    int reductions = 0;
    for (const Step& step : schedule.ranks[rank]) {
      EXPECT_FALSE(std::holds_alternative<Transfer>(step.op));
      const auto* reduce = std::get_if<Reduce>(&step.op);
      if (reduce == nullptr) continue;
      ++reductions;
      ASSERT_EQ(reduce->from.size(), 4u);
      for (Rank from = 0; from < 4; ++from) EXPECT_EQ(reduce->from[from].rank, from);
      EXPECT_TRUE(reduce->finish && !reduce->accumulate);
    }
    EXPECT_EQ(reductions, 1);
  }
}

// More terms than a reduction takes: they are added up in several steps.
TEST(Collectives, ASumOfManyTermsInPlaceTakesSeveralSteps) {
  const int ranks = 2 * kMostTerms + 3;
  const Problem problem =
      MakeProblem(ranks, {ranks, 4, 0}, DType::kF32, "A[M, K]{U_x} -> B[M_x, K]");
  const Topology topology = MakeTopology(ranks, 1);
  const Schedule schedule = Proved(problem, topology, Asking("peer"));
  int reductions = 0;
  for (const Step& step : schedule.ranks[0]) reductions += std::holds_alternative<Reduce>(step.op);
  EXPECT_EQ(reductions, 3);
}

// A line of "Sharded Matrices and How to Multiply Them" (How to Scale Your Model, chapter 3): the
// split that is chosen, or the name of the collective, and the bytes that all ranks send
// (hierarchical, every rank on a node of its own, bf16; terms of sums are f32). With `direct`, sums
// this small would take one step and more bytes.
struct Line {
  const char* line;
  const char* spec;
  const char* mesh;
  const char* how;
  int64_t total;
};

// 32 rows and columns of every dimension. A whole matrix in bf16, and in f32.
constexpr int64_t kSide = 32, kElements = kSide * kSide, kMatrix = 2 * kElements,
                  kTerms = 4 * kElements;

const Line kBook[] = {
    {"case 1", "A[I_x, J] * B[J, K_y] -> C[I_x, K_y]", "x=2,y=2", "I=x,K=y", 0},
    {"case 1, gathered", "A[I_x, J] * B[J, K] -> C[I, K]", "x=4", "I=x", 3 * kMatrix},
    {"case 2", "A[I, J_x] * B[J, K] -> C[I, K]", "x=4", "none", 3 * kMatrix},
    // Gathering both costs less than a sum, because K is so short.
    {"case 3", "A[I, J_x] * B[J_x, K] -> C[I, K]", "x=4", "none", 6 * kMatrix},
    {"case 3, open", "A[I, J_x] * B[J_x, K] -> C[I, K]{U_x}", "x=4", "J=x", 0},
    // A is gathered, and B changes its cut.
    {"case 3, scattered", "A[I, J_x] * B[J_x, K] -> C[I, K_x]", "x=4", "K=x",
     3 * kMatrix + kMatrix * 3 / 4},
    {"case 4, strategy 1", "A[I_x, J] * B[J, K_x] -> C[I, K_x]", "x=4", "K=x", 3 * kMatrix},
    {"case 4, strategy 2", "A[I_x, J] * B[J, K_x] -> C[I_x, K]", "x=4", "I=x", 3 * kMatrix},
    {"AllGather", "A[I, J_x] -> B[I, J]", "x=4", "all-gather", 3 * kMatrix},
    // Two of the four ranks have a quarter that belongs to the other half.
    {"AllGather over one of two axes", "A[I_xy, J] -> B[I_y, J]", "x=2,y=2", "all-gather",
     6 * kMatrix / 4},
    {"AllGather over both", "A[I_xy, J] -> B[I, J]", "x=2,y=2", "all-gather", 3 * kMatrix},
    {"AllReduce", "C[I, K]{U_x} -> D[I, K]", "x=4", "all-reduce", 3 * (kTerms + kMatrix)},
    {"AllReduce of shards", "A[I_x, J]{U_y} -> B[I_x, J]", "x=2,y=2", "all-reduce",
     kTerms + kMatrix},
    {"ReduceScatter", "A[I_x, J]{U_y} -> B[I_x, J_y]", "x=2,y=2", "reduce-scatter", kTerms},
    {"ReduceScatter, then AllGather", "A[I_x, J_y] -> B[I_x, J]", "x=2,y=2", "all-gather", kMatrix},
    {"AllToAll", "A[I_x, J] -> B[I, J_x]", "x=4", "all-to-all", kMatrix * 3 / 4},
    {"question 4, strategy 1", "X[B, D] * Y[D_x, F] -> Z[B, F]", "x=4", "none", 3 * kMatrix},
    {"question 4, strategy 2", "X[B, D_x] * Y[D_x, F] -> Z[B, F]{U_x}", "x=4", "D=x", 0},
    {"question 4, its AllReduce", "Z[B, F]{U_x} -> S[B, F]", "x=4", "all-reduce",
     3 * (kTerms + kMatrix)},
    // The halves of C are summed over y.
    {"question 6, a", "A[I_x, J_y] * B[J_y, K] -> C[I_x, K]", "x=2,y=2", "I=x,J=y",
     kTerms + kMatrix},
    {"question 6, b", "A[I_x, J] * B[J_x, K_y] -> C[I_x, K_y]", "x=2,y=2", "I=x,K=y", kMatrix},
    {"question 6, c", "A[I_x, J] * B[J, K_y] -> C[I_x, K_y]", "x=2,y=2", "I=x,K=y", 0},
    // An all-to-all of A, and one of C.
    {"question 9", "A[I, J_x] * B[J, K] -> C[I, K_x]", "x=4", "I=x", 2 * kMatrix * 3 / 4},
    {"question 9, along I", "A[I, J_x] * B[J, K] -> C[I_x, K]", "x=4", "I=x", kMatrix * 3 / 4},
    {"the JAX example", "A[I_x, J_y] * B[J, K_y] -> C[I_x, K_y]", "x=2,y=2", "I=x,K=y", kMatrix},
};

TEST(Book, EveryLineMovesItsBytes) {
  for (const Line& line : kBook) {
    SCOPED_TRACE(absl::StrCat(line.line, ": ", line.spec));
    const Mesh mesh = ParseMesh(line.mesh).value();
    const Problem problem =
        ParseProblem(line.spec, mesh, {kSide, kSide, kSide}, DType::kBF16).value();
    const Topology topology = MakeTopology(mesh.size(), mesh.size());
    const PlanOptions options = Asking("hierarchical", HasProduct(problem) ? line.how : "");
    if (!HasProduct(problem)) {
      EXPECT_EQ(CollectiveName(problem), line.how);
    }
    int64_t total = 0;
    for (const int64_t sent : SentBytes(topology, Proved(problem, topology, options)))
      total += sent;
    EXPECT_EQ(total, line.total);
  }
}

// Gathering and summing, each by the split that asks for it: bytes per rank that both send.
TEST(Book, BothStrategiesOfASumCanBeAskedFor) {
  struct {
    const char* spec;
    const char *gathers, *sums;
    int64_t gathered, summed;
  } const kQuestions[] = {
      // 4: gather Y, or multiply shards and add up.
      {"X[B, D_x] * Y[D_x, F] -> Z[B, F]", "none", "D=x", 2 * 2 * kElements * 3 / 4,
       (4 + 2) * kElements * 3 / 4},
      {"X[B, D] * Y[D_x, F] -> Z[B, F]", "none", "D=x", 2 * kElements * 3 / 4,
       (4 + 2) * kElements * 3 / 4},
      // 9: C along K and along I.
      {"A[I, J_x] * B[J, K] -> C[I, K_x]", "K=x", "J=x", 2 * kElements * 3 / 4,
       4 * kElements * 3 / 4},
      {"A[I, J_x] * B[J, K] -> C[I_x, K]", "I=x", "J=x", 2 * kElements * 3 / 4 / 4,
       4 * kElements * 3 / 4},
  };
  for (const auto& question : kQuestions) {
    SCOPED_TRACE(question.spec);
    const Problem problem = MakeProblem(4, {kSide, kSide, kSide}, DType::kBF16, question.spec);
    const Topology topology = MakeTopology(4, 4);
    const auto sent = [&](const char* split) {
      return SentBytes(topology, Proved(problem, topology, Asking("hierarchical", split)));
    };
    EXPECT_THAT(sent(question.gathers), Each(question.gathered));
    EXPECT_THAT(sent(question.sums), Each(question.summed));
  }
}

TEST(OpenSums, AProductLeavesItsSumOpenWithoutSendingAnything) {
  const Problem problem =
      MakeProblem(3, {8, 8, 9}, DType::kBF16, "A[M, K_x] * B[K_x, N] -> C[M, N]{U_x}");
  const Topology topology = MakeTopology(3, 3);
  const Schedule schedule = Proved(problem, topology, {});
  EXPECT_EQ(schedule.algorithm, "local");
  EXPECT_EQ(schedule.workspace_bytes, 0);
}

// An input with an open sum is closed by the job that multiplies it: by a reduce-scatter if ranks
// multiply different parts of it, else by an all-reduce.
TEST(OpenSums, AnInputIsClosedWhereItIsNeeded) {
  const int64_t elements = 64 * 512;
  struct {
    const char *spec, *split;
    int64_t sent;  // by each rank: terms in f32, and elements in bf16
  } const kForms[] = {
      {"A[M, K]{U_x} * B[K, N] -> C[M_x, N]", "M=x", 4 * elements * 3 / 4},
      {"A[M, K]{U_x} * B[K, N_x] -> C[M, N_x]", "N=x", (4 + 2) * elements * 3 / 4},
      {"A[M, K]{U_x} * B[K_x, N] -> C[M, N]{U_x}", "K=x", 4 * elements * 3 / 4},
  };
  for (const auto& form : kForms) {
    const Problem problem = MakeProblem(4, {64, 256, 512}, DType::kBF16, form.spec);
    const Topology topology = MakeTopology(4, 4);
    EXPECT_EQ(SplitText(problem, ResolveOptions(problem, topology, {}).value().recipe.split),
              form.split);
    for (const char* algorithm : kBalancedRoutes) {
      SCOPED_TRACE(absl::StrCat(form.spec, " ", algorithm));
      const std::vector<int64_t> sent =
          SentBytes(topology, Proved(problem, topology, Asking(algorithm)));
      EXPECT_THAT(sent, Each(form.sent));
    }
  }
}

// On one node, terms and sums are read where they are.
TEST(OpenSums, OnOneNodeAnInputIsClosedWithoutACopy) {
  const Problem problem =
      MakeProblem(4, {16, 24, 32}, DType::kBF16, "A[M, K]{U_x} * B[K, N_x] -> C[M, N_x]");
  const Schedule schedule = Proved(problem, MakeTopology(4, 1), Asking("peer"));
  for (const std::vector<Step>& steps : schedule.ranks)
    for (const Step& step : steps) EXPECT_FALSE(std::holds_alternative<Transfer>(step.op));
}

TEST(OpenSums, ErrorsGiveTheNextAction) {
  const auto status = [](const std::string& spec, const std::string& split, int64_t k = 16) {
    return Plan(MakeProblem(4, {8, 8, k}, DType::kF32, spec), MakeTopology(4, 1),
                Asking("auto", split))
        .status();
  };
  const absl::Status split = status("A[M, K] * B[K, N] -> C[M, N]{U_x}", "M=x");
  EXPECT_EQ(split.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(split.message(), HasSubstr("use a split such as K=x"));
  const absl::Status few = status("A[M, K_x] * B[K_x, N] -> C[M, N]{U_x}", "", 3);
  EXPECT_EQ(few.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(few.message(),
              HasSubstr("K is 3, and C[M, N]{U_x} leaves its sum open over 4 ranks"));
  const absl::Status none = status("A[M_x, K] -> B[M, K]", "M=x");
  EXPECT_EQ(none.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      none.message(),
      HasSubstr(
          "a split needs a product, and A[M_x, K] -> B[M, K] has none; leave the option out"));
}

// A sum along an axis of one rank is closed.
TEST(OpenSums, AnAxisOfOneRankLeavesNothingOpen) {
  const Mesh mesh = ParseMesh("x=1,y=2").value();
  for (const char* spec : {"A[M, K]{U_x} * B[K, N] -> C[M_y, N]{U_x}", "A[M, K]{U_x} -> B[M_y, K]",
                           "A[M_y, K]{U_x} -> B[M, K]{U_x}"}) {
    SCOPED_TRACE(spec);
    const Problem problem = ParseProblem(spec, mesh, {4, 4, 4}, DType::kF32).value();
    Proved(problem, MakeTopology(2, 2), {});
  }
}

}  // namespace
}  // namespace agmm::test
