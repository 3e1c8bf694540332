// Plans whose products kernels compute, proved in the order in which the kernels run them.
#include "tests/cuda/launched_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/verify.h"
#include "tests/schedule/shardings.h"
#include "tests/support/armed.h"
#include "tests/support/seed.h"

namespace agmm {
namespace {

using test::Draw;
using test::ShardedCase;
using test::ShardedPlan;

// Checked plans of each sharding.
constexpr size_t kPlans = 50;
// A pass or a send of a kernel is a lane.
constexpr int kManyLanes = 1 << 10;

// The launches of checked plans.
struct Launches {
  int kernels = 0, sends = 0;
};

void Count(const std::vector<CudaProgram>& programs, Launches* launches) {
  for (const CudaProgram& program : programs) {
    for (const LaunchUnit& unit : program.units) {
      if (!unit.product.has_value()) continue;
      ++launches->kernels;
      for (const ProductPiece& piece : unit.product->pieces) {
        launches->sends += static_cast<int>(piece.sends.size());
        EXPECT_LE(piece.slots.size(), size_t{sm90::kMaxWaits});
        EXPECT_LE(piece.sends.size(), size_t{sm90::kMaxSends});
      }
    }
  }
}

void ExpectProof(const Problem& problem, const Topology& topology, const PlanOptions& options,
                 Launches* launches) {
  const absl::StatusOr<Schedule> schedule = Plan(problem, topology, options);
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  const auto programs = LowerForAllRanks(problem, topology, *schedule);
  ASSERT_TRUE(programs.ok()) << programs.status();
  Count(*programs, launches);
  EXPECT_THAT(FindStuckUnits(*schedule, *programs), testing::IsEmpty());
  EXPECT_EQ(Verify(problem, topology, LaunchedOrder(*schedule, *programs), kManyLanes),
            absl::OkStatus());
}

void ExpectProof(const char* spec, const char* mesh, const Shape& shape, DType dtype, int nodes,
                 PlanOptions options) {
  const Armed few_rows("products.few_rows");
  const Problem problem = ParseProblem(spec, ParseMesh(mesh).value(), shape, dtype).value();
  const int ranks = problem.mesh.size(), devices = (ranks + nodes - 1) / nodes;
  options.chunks = std::max(options.chunks, 1);
  options.k_chunks = std::max(options.k_chunks, 1);
  Launches launches;
  ExpectProof(problem, UniformTopology(ranks, (ranks + devices - 1) / devices, devices).value(),
              options, &launches);
  EXPECT_GT(launches.kernels, 0);
}

// Each of these plans was once refused.

TEST(LaunchedOrder, APassWaitsForPlacesThatAnEarlierPassAwaits) {
  ExpectProof("A[M_xy, K] * B[K, N_y] -> C[M_y, N]", "x=2,y=2", {35, 18, 71}, DType::kF16, 1,
              {.algorithm = "hierarchical", .split = "N=y"});
}

TEST(LaunchedOrder, AChunkIsSentOnBehindAllEarlierChunks) {
  ExpectProof("A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=7", {7 * 256 * 5, 64, 7 * 64}, DType::kBF16,
              1, {.algorithm = "bidirectional_ring", .chunks = 5, .split = "N=x", .carried = true});
}

TEST(LaunchedOrder, PassesOverPartsOfKWaitForTheirOperands) {
  ExpectProof("A[M, K_y] * B[K_y, N]{U_x} -> C[M, N]", "x=2,y=2", {69, 20, 77}, DType::kF16, 1,
              {.algorithm = "split_ring", .k_chunks = 3, .split = "none"});
}

TEST(LaunchedOrder, AnOperandThatIsNotCarriedIsReadBeforeItsPlaceIsWrittenAgain) {
  ExpectProof("A[M_x, K] * B[K, N_x] -> C[M, N]", "x=3", {56, 27, 15}, DType::kF16, 1,
              {.algorithm = "ring", .chunks = 3, .split = "none", .carried = true});
}

TEST(LaunchedOrder, TheTransfersOfALaneAreCarriedAsAWholeOrNotAtAll) {
  ExpectProof("A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=4", {54, 23, 46}, DType::kF16, 3,
              {.algorithm = "split_ring", .chunks = 3, .split = "none", .carried = true});
}

std::vector<ShardedCase> ProductCases() {
  std::vector<ShardedCase> products;
  for (const ShardedCase& one : test::ShardedCases())
    if (absl::StrContains(one.spec, '*')) products.push_back(one);
  return products;
}

class LaunchedShardings : public testing::TestWithParam<int> {};

TEST_P(LaunchedShardings, AreProved) {
  const Armed few_rows("products.few_rows");
  std::mt19937_64 random(TestSeed() + GetParam());
  const auto below = [&](int bound) { return static_cast<int>(random() % bound); };
  Draw draw = {ProductCases()[GetParam()]};
  const int ranks = ParseMesh(draw.sharded.mesh)->size();
  draw.nodes = 1 + below(std::min(ranks, 4));
  draw.dtype = below(2) == 0 ? DType::kBF16 : DType::kF16;
  draw.shape = {1 + below(70), 1 + below(40), 1 + below(90)};
  std::vector<ShardedPlan> plans = PlansOf(draw, /*thorough=*/true);
  std::shuffle(plans.begin(), plans.end(), random);
  plans.resize(std::min(plans.size(), kPlans));
  Launches launches;
  for (const ShardedPlan& one : plans) {
    SCOPED_TRACE(one.name);
    ExpectProof(one.problem, one.topology, one.options, &launches);
  }
  EXPECT_GT(launches.kernels, 0);
}

INSTANTIATE_TEST_SUITE_P(All, LaunchedShardings,
                         testing::Range(0, static_cast<int>(ProductCases().size())));

struct RingCase {
  const char* algorithm;
  bool carried;
};
std::ostream& operator<<(std::ostream& out, const RingCase& one) {
  return out << one.algorithm << (one.carried ? "_carried" : "");
}

class LaunchedRings : public testing::TestWithParam<RingCase> {};

TEST_P(LaunchedRings, AreProved) {
  Launches launches;
  for (int ranks = 2; ranks <= 8; ++ranks) {
    for (const int nodes : {1, 2}) {
      for (const int chunks : {1, 2, 3, 5, 8}) {
        for (const char* spec : {"A[M_x, K] * B[K, N_x] -> C[M, N_x]",  //
                                 "A[M_x, K] * B[K, N_x] -> C[M, N]"}) {
          SCOPED_TRACE(
              absl::StrFormat("%s, %d ranks, %d nodes, %d chunks", spec, ranks, nodes, chunks));
          const Problem problem = ParseProblem(spec, ParseMesh(absl::StrCat("x=", ranks)).value(),
                                               {ranks * 256 * chunks, 64, ranks * 64}, DType::kBF16)
                                      .value();
          PlanOptions options;
          options.algorithm = GetParam().algorithm;
          options.chunks = chunks;
          options.split = "N=x";
          options.carried = GetParam().carried;
          options.k_chunks = 1;
          const int devices = (ranks + nodes - 1) / nodes;
          ExpectProof(problem, UniformTopology(ranks, nodes, devices).value(), options, &launches);
        }
      }
    }
  }
  EXPECT_GT(launches.kernels, 0);
  EXPECT_EQ(launches.sends > 0, GetParam().carried);
}

INSTANTIATE_TEST_SUITE_P(All, LaunchedRings,
                         testing::Values(RingCase{"ring", false}, RingCase{"ring", true},
                                         RingCase{"bidirectional_ring", false},
                                         RingCase{"bidirectional_ring", true},
                                         RingCase{"direct", false}, RingCase{"direct", true}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace agmm
