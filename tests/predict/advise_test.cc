// Advice on shardings: the answers of the scaling book, limits of memory, ties and a case by hand.
#include "kernels/predict/advise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/str_replace.h"
#include "kernels/schedule/spec.h"
#include "tests/support/seed.h"

namespace agmm::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Mesh ParsedMesh(const std::string& text) {
  const auto mesh = ParseMesh(text);
  EXPECT_TRUE(mesh.ok()) << mesh.status();
  return *mesh;
}

DeviceRates DeviceOf(double flops_per_ns, double memory) {
  return {.gemm = {{DType::kF32, 1e9, flops_per_ns / 6}, {DType::kBF16, 1e9, flops_per_ns}},
          .memory = memory};
}

// A torus in which each axis of the mesh is one of its own.
Platform TpuOf(const std::string& mesh, double one_way, int wrap_multiple, DeviceRates device) {
  Platform platform;
  Machine& machine = platform.machine;
  machine.wrap_multiple = wrap_multiple;
  machine.within = {Wiring::kTorus, {one_way, 2 * one_way, 1000}, {}};
  machine.staged = machine.between = machine.within;
  machine.device = std::move(device);
  const Mesh of = ParsedMesh(mesh);
  platform.topology = *UniformTopology(of.size(), of.size());
  const auto torus = MakeTorus(of, machine, {});
  EXPECT_TRUE(torus.ok()) << torus.status();
  platform.torus = *torus;
  return platform;
}
Platform V5p(const std::string& mesh) { return TpuOf(mesh, 90, 4, DeviceOf(459e3, 2800)); }
Platform V5e(const std::string& mesh) { return TpuOf(mesh, 45, 16, DeviceOf(197e3, 810)); }

// Devices of one node with a port of `one_way` bytes/ns into a switch.
Platform SwitchOf(const std::string& mesh, double one_way, double flops_per_ns) {
  Platform platform;
  platform.machine.within = {Wiring::kSwitch, {one_way, 2 * one_way, 100}, {}};
  platform.machine.staged = platform.machine.between = platform.machine.within;
  platform.machine.device = DeviceOf(6 * flops_per_ns, 1e6);
  platform.topology = *UniformTopology(ParsedMesh(mesh).size(), 1);
  return platform;
}

Problem ProblemOf(const std::string& spec, const std::string& mesh, const Shape& shape,
                  DType dtype = DType::kBF16) {
  const auto problem = ParseProblem(spec, ParsedMesh(mesh), shape, dtype);
  EXPECT_TRUE(problem.ok()) << problem.status();
  return *problem;
}

AdviceRequest RequestOf(const Problem& problem, std::array<bool, 3> keeps = {}) {
  return {.products = {problem}, .keeps = {keeps}};
}

AdviceAnswer AnswerTo(const AdviceRequest& request, const Platform& platform) {
  const auto answer = Advise(request, platform);
  EXPECT_TRUE(answer.ok()) << answer.status();
  return answer.ok() ? *answer : AdviceAnswer{};
}

std::string TextOf(const AdvisedProduct& product) {
  return SpecText(product.problem) + " by " + SplitText(product.problem, product.plan.recipe.split);
}

// The entry with this text; fails the test if none has it.
Advice EntryOf(const AdviceAnswer& answer, const std::string& text) {
  const auto at = absl::c_find_if(
      answer.ranked, [&](const Advice& one) { return TextOf(one.products.front()) == text; });
  EXPECT_NE(at, answer.ranked.end()) << text;
  return at == answer.ranked.end() ? Advice{} : *at;
}

int64_t FastestNs(const std::string& spec, const std::string& mesh, const Shape& shape,
                  const std::string& split, const Platform& platform) {
  const Problem problem = ProblemOf(spec, mesh, shape);
  const auto plans = PredictPlans(problem, platform, *ParseSplit(problem, split));
  EXPECT_TRUE(plans.ok()) << plans.status();
  return plans.ok() ? plans->front().time_ns : 0;
}

// ---- the scaling book, part 3 ----

// "We start with the four most likely options ... (1) and (2) are equally good."
TEST(Advise, FindsTheFirstTwoOptionsOfQuestion5EqualAndBest) {
  const std::string mesh = "x=4,y=4,z=4";
  const Shape shape = {8192, 8192, 8192};
  const Platform platform = V5p(mesh);
  AdviceRequest request =
      RequestOf(ProblemOf("A[I, J] * B[J, K] -> C[I, K]", mesh, shape), {false, false, true});
  request.top = 48;
  const AdviceAnswer answer = AnswerTo(request, platform);
  const Advice rows = EntryOf(answer, "A[I_xyz, J] * B[J, K] -> C[I, K] by I=xyz"),
               cols = EntryOf(answer, "A[I, J] * B[J, K_xyz] -> C[I, K] by K=xyz");
  EXPECT_EQ(rows.place, cols.place);
  EXPECT_TRUE(rows.is_shared);
  const int64_t summed = FastestNs("A[I, J_xyz] * B[J_xyz, K] -> C[I, K]", mesh, shape, "J=xyz",
                                   platform),
                local = FastestNs("A[I, J] * B[J, K] -> C[I, K]", mesh, shape, "none", platform);
  EXPECT_GT(summed, std::max(rows.time_ns, cols.time_ns));
  EXPECT_GT(local, std::max(rows.time_ns, cols.time_ns));
  // Axes in different dimensions are not "likely to change the final cost".
  EXPECT_GT(static_cast<double>(answer.ranked.front().time_ns), 0.97 * rows.time_ns);
}

AdviceRequest Question7(int64_t memory_bytes) {
  AdviceRequest request;
  request.products = {ProblemOf("x[B, D] * W1[D, F] -> H[B, F]", "x=2,y=2", {128, 32768, 8192}),
                      ProblemOf("H[B, F] * W2[F, D] -> Y[B, D]", "x=2,y=2", {128, 8192, 32768})};
  request.keeps = {{}, {}};
  request.memory_bytes = memory_bytes;
  return request;
}

TEST(Advise, LeavesTheWeightsOfQuestion7WhereTheyAre) {
  const AdviceAnswer answer = AnswerTo(Question7(300'000'000), V5e("x=2,y=2"));
  ASSERT_FALSE(answer.ranked.empty());
  const Advice& first = answer.ranked.front();
  ASSERT_THAT(first.products, SizeIs(2));
  EXPECT_EQ(TextOf(first.products[0]), "x[B, D] * W1[D, F_xy] -> H[B, F_xy] by F=xy");
  EXPECT_EQ(TextOf(first.products[1]), "H[B, F_xy] * W2[F_xy, D] -> Y[B, D_xy] by F=xy");
  EXPECT_EQ(MovesText(first.products[0].problem, first.products[0].moves), "nothing");
  EXPECT_EQ(MovesText(first.products[1].problem, first.products[1].moves),
            "reduce-scatter Y over xy");
  // Reading 128 MiB of weights takes 166 us a product, and the sum moves 3 MiB.
  EXPECT_NEAR(static_cast<double>(first.gemm_ns), 342e3, 1e3);
  EXPECT_LT(first.time_ns, 400'000);
  for (const Advice& one : answer.ranked) EXPECT_LE(one.memory_bytes, 300'000'000);
}

TEST(Advise, CountsTheOperandsOfAllProducts) {
  // A quarter of W1 and W2, and of x, H and Y.
  constexpr int64_t kWeights = 2 * 8192LL * 32768 * 2 / 4,
                    kRest = (2 * 128LL * 8192 + 128LL * 32768) * 2 / 4;
  const AdviceAnswer answer = AnswerTo(Question7(kWeights + kRest - 1), V5e("x=2,y=2"));
  EXPECT_THAT(answer.ranked, IsEmpty());
  EXPECT_EQ(answer.simulated, 0);
  EXPECT_EQ(answer.least_bytes, kWeights + kRest);
  EXPECT_EQ(answer.too_large, answer.candidates);
}

// ---- a case by hand ----

TEST(Advise, ChoosesTheCutWhoseGatherCostsLessThanItSaves) {
  // At 1000 flop/ns the product takes 33.6 us, and half of it 16.8; half of C takes 13.1 us at
  // 10 bytes/ns, after a latency of 0.1.
  const AdviceAnswer answer = AnswerTo(
      RequestOf(ProblemOf("A[M, K] * B[K, N] -> C[M, N]", "x=2", {256, 256, 256}, DType::kF32),
                {false, false, true}),
      SwitchOf("x=2", 10, 1000));
  ASSERT_GE(answer.ranked.size(), 3U);
  for (int i : {0, 1}) {
    const Advice& one = answer.ranked[i];
    EXPECT_EQ(one.place, 1);
    EXPECT_TRUE(one.is_shared);
    EXPECT_NEAR(static_cast<double>(one.time_ns), 16777 + 13107 + 100, 10);
    EXPECT_EQ(one.gemm_ns, 16777);
    EXPECT_EQ(one.received_bytes, 256 * 256 * 4 / 2);
    EXPECT_EQ(one.memory_bytes, 256 * 256 * 4 * 5 / 2);
  }
  const Advice& local = EntryOf(answer, "A[M, K] * B[K, N] -> C[M, N] by none");
  EXPECT_EQ(local.place, 3);
  EXPECT_NEAR(static_cast<double>(local.time_ns), 33554, 1);
  EXPECT_EQ(answer.why,
            "the first 2 are equal; the first one is 1.12 times faster than place 3, because its "
            "local products take 16.8 us instead of 33.6 us");
}

TEST(Advise, LeavesTheProductWholeOnASlowLink) {
  const AdviceAnswer answer = AnswerTo(
      RequestOf(ProblemOf("A[M, K] * B[K, N] -> C[M, N]", "x=2", {256, 256, 256}, DType::kF32),
                {false, false, true}),
      SwitchOf("x=2", 1, 1000));
  ASSERT_FALSE(answer.ranked.empty());
  EXPECT_EQ(TextOf(answer.ranked.front().products.front()), "A[M, K] * B[K, N] -> C[M, N] by none");
  EXPECT_THAT(answer.why, HasSubstr("because nothing has to move"));
}

// ---- the rest ----

TEST(Advise, MovesNothingWithoutALimit) {
  const AdviceAnswer answer =
      AnswerTo(RequestOf(ProblemOf("A[M, K] * B[K, N] -> C[M, N]", "x=2,y=2", {512, 512, 512})),
               V5e("x=2,y=2"));
  ASSERT_FALSE(answer.ranked.empty());
  const Advice& first = answer.ranked.front();
  EXPECT_EQ(TextOf(first.products.front()), "A[M_x, K] * B[K, N_y] -> C[M_x, N_y] by M=x,N=y");
  EXPECT_EQ(first.received_bytes, 0);
  EXPECT_EQ(first.products.front().plan.algorithm, "local");
}

TEST(Advise, NeedsLessMemoryUnderALimit) {
  AdviceRequest request =
      RequestOf(ProblemOf("A[M, K] * B[K, N] -> C[M, N]", "x=2,y=2", {4096, 512, 4096}));
  const Platform platform = V5e("x=2,y=2");
  const int64_t unlimited = AnswerTo(request, platform).ranked.front().memory_bytes;
  request.memory_bytes = unlimited - 1;
  const AdviceAnswer answer = AnswerTo(request, platform);
  ASSERT_FALSE(answer.ranked.empty());
  EXPECT_GT(answer.too_large, 0);
  for (const Advice& one : answer.ranked) {
    EXPECT_LT(one.memory_bytes, unlimited);
    EXPECT_GE(one.memory_bytes, answer.least_bytes);
  }
}

TEST(Advise, TakesEqualAxesAsOne) {
  const auto count = [](const std::string& mesh) {
    return AnswerTo(RequestOf(ProblemOf("A[M, K] * B[K, N] -> C[M, N]", mesh, {512, 512, 512})),
                    V5e(mesh))
        .candidates;
  };
  // An axis has 17 uses: 3 each if it cuts M or N, 2 for K, and 9 if it cuts none.
  EXPECT_EQ(count("x=2"), 17);
  EXPECT_EQ(count("x=2,y=4"), 17 * 17);
  EXPECT_EQ(count("x=2,y=2"), 17 * 18 / 2);
  EXPECT_EQ(count("x=2,y=2,z=2"), 17 * 18 * 19 / 6);
  EXPECT_EQ(count("x=2,y=1"), 17);
}

TEST(Advise, TakesAxesOnDifferentLinksAsDifferent) {
  Platform platform = V5e("x=4,y=4");
  const Problem problem = ProblemOf("A[M, K] * B[K, N] -> C[M, N]", "x=4,y=4", {512, 512, 512});
  EXPECT_EQ(AnswerTo(RequestOf(problem), platform).candidates, 17 * 18 / 2);
  platform.torus = *MakeTorus(problem.mesh, platform.machine, {.wrap = "x"});
  EXPECT_EQ(AnswerTo(RequestOf(problem), platform).candidates, 17 * 17);
  platform = SwitchOf("x=4,y=4", 10, 1000);
  EXPECT_EQ(AnswerTo(RequestOf(problem), platform).candidates, 17 * 18 / 2);
  platform.topology = *UniformTopology(16, 4);
  EXPECT_EQ(AnswerTo(RequestOf(problem), platform).candidates, 17 * 17);
}

// A plan of one serves the other, although the planner orders rows and columns differently.
TEST(Advise, GivesATransposedCombinationTheSamePlace) {
  AdviceRequest request =
      RequestOf(ProblemOf("A[M, K] * B[K, N] -> C[M, N]", "x=4,y=4", {1024, 1024, 1024}),
                {false, false, true});
  request.top = 48;
  const AdviceAnswer answer = AnswerTo(request, V5e("x=4,y=4"));
  EXPECT_EQ(EntryOf(answer, "A[M_xy, K] * B[K, N] -> C[M, N] by M=xy").place,
            EntryOf(answer, "A[M, K] * B[K, N_xy] -> C[M, N] by N=xy").place);
}

TEST(Advise, ListsProductsInARowOnceForAllOrdersOfEqualAxes) {
  AdviceRequest request = Question7(300'000'000);
  request.top = 48;
  std::set<std::string> seen;
  for (const Advice& one : AnswerTo(request, V5e("x=2,y=2")).ranked) {
    std::string text;
    for (const AdvisedProduct& product : one.products) {
      text += SpecText(product.problem);
      text += "; ";
    }
    // The axes of one dimension are in the mesh's order in both.
    std::string swapped = text;
    for (char& letter : swapped) letter = letter == 'x' ? 'y' : letter == 'y' ? 'x' : letter;
    swapped = absl::StrReplaceAll(swapped, {{"_yx", "_xy"}, {"y[", "x["}});
    EXPECT_TRUE(seen.insert(std::min(text, swapped)).second) << text;
  }
  EXPECT_THAT(seen, SizeIs(testing::Gt(10U)));
}

TEST(Advise, TakesAxesThatAFixedShardingNamesAsDifferent) {
  const AdviceAnswer answer =
      AnswerTo(RequestOf(ProblemOf("A[M_x, K] * B[K, N] -> C[M, N]", "x=2,y=2", {512, 512, 512}),
                         {true, false, false}),
               V5e("x=2,y=2"));
  // x cuts rows of A: B or C still have 3 uses if it cuts M, 1 or 2 if N or K, and 3 if none.
  // y leaves A whole: 3 for M, 1 for N, 2 for K, 3 for none.
  EXPECT_EQ(answer.candidates, 81);
  for (const Advice& one : answer.ranked)
    EXPECT_THAT(TextOf(one.products.front()), HasSubstr("A[M_x, K]"));
}

TEST(Advise, NamesAxesInTheOrderOfAFixedSharding) {
  const AdviceAnswer answer =
      AnswerTo(RequestOf(ProblemOf("A[M, K] * B[K, N] -> C[M_yx, N]", "x=2,y=2", {512, 512, 512}),
                         {false, false, true}),
               V5e("x=2,y=2"));
  ASSERT_FALSE(answer.ranked.empty());
  EXPECT_EQ(TextOf(answer.ranked.front().products.front()),
            "A[M_yx, K] * B[K, N] -> C[M_yx, N] by M=yx");
  EXPECT_EQ(answer.ranked.front().received_bytes, 0);
}

TEST(Advise, BoundsTheWorkspaceIfItDoesNotFit) {
  // All of B has 32 MiB. A rank holds a quarter, and multiplies with one shard after the other.
  AdviceRequest request =
      RequestOf(ProblemOf("A[M_x, K] * B[K, N_x] -> C[M_x, N]", "x=4", {4096, 4096, 4096}),
                {true, true, true});
  Platform platform = SwitchOf("x=4", 100, 1e5);
  platform.topology = *UniformTopology(4, 4);
  request.memory_bytes = int64_t{45} << 20;
  const AdviceAnswer answer = AnswerTo(request, platform);
  ASSERT_FALSE(answer.ranked.empty());
  EXPECT_EQ(answer.ranked.front().products.front().plan.recipe.workspace_shards, 2);
  EXPECT_LE(answer.ranked.front().memory_bytes, request.memory_bytes);
}

TEST(Advise, RefusesMeshesWithTooManyCombinations) {
  const std::string mesh = "a=2,b=3,c=4,d=5,e=6";
  const auto answer = Advise(
      RequestOf(ProblemOf("A[M, K] * B[K, N] -> C[M, N]", mesh, {512, 512, 512})), V5e(mesh));
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(answer.status().message(), HasSubstr("use fewer axes"));
}

TEST(Advise, RefusesAProductThatDoesNotContinueTheOneBefore) {
  AdviceRequest request = Question7(1 << 30);
  std::swap(request.products[0], request.products[1]);
  EXPECT_THAT(Advise(request, V5e("x=2,y=2")).status().message(), HasSubstr("does not continue"));
}

TEST(Advise, RefusesOpenSums) {
  const auto answer =
      Advise(RequestOf(ProblemOf("A[M, K_x] * B[K_x, N] -> C[M, N]{U_x}", "x=2", {512, 512, 512}),
                       {true, true, true}),
             V5e("x=2"));
  EXPECT_THAT(answer.status().message(), HasSubstr("leaves its sum open"));
}

// ---- pruning ----

struct Tried {
  int64_t time_ns = 0, memory_bytes = 0;
};

// Every sharding of A, B and C with every split, on a mesh of one axis.
std::vector<Tried> TryAll(const Problem& problem, const Platform& platform) {
  const std::vector<Sharding> all = {{}, {.rows = {0}}, {.cols = {0}}};
  std::vector<Tried> tried;
  for (int code = 0; code < 27; ++code) {
    Problem sharded = problem;
    int rest = code;
    int64_t bytes = 0;
    for (Tensor& tensor : sharded.tensors) {
      tensor.sharding = all[rest % 3];
      rest /= 3;
      bytes += ShardBytes(sharded.mesh, tensor);
    }
    for (const Split& split : Splits(sharded)) {
      for (const bool bounded : {false, true}) {
        const auto plans = PredictPlans(sharded, platform, split, bounded);
        if (!plans.ok()) continue;
        for (const PredictedPlan& plan : *plans)
          tried.push_back({plan.time_ns, bytes + plan.workspace_bytes});
      }
    }
  }
  return tried;
}

TEST(Advise, IsAsGoodAsTryingEverything) {
  std::mt19937 random(TestSeed());
  for (int trial = 0; trial < 6; ++trial) {
    // Rows of all shards end at cache lines. The search tries no all-to-all of an input whose other
    // shard differs by its padding alone.
    const auto size = [&] {
      return int64_t{256} << std::uniform_int_distribution<int>(0, 4)(random);
    };
    const Shape shape = {size(), size(), size()};
    const Problem problem = ProblemOf("A[M, K] * B[K, N] -> C[M, N]", "x=4", shape);
    const Platform platform = SwitchOf("x=4", 10, 1000);
    const std::vector<Tried> tried = TryAll(problem, platform);
    AdviceRequest request = RequestOf(problem);
    const AdviceAnswer first = AnswerTo(request, platform);
    for (const int64_t limit :
         {std::numeric_limits<int64_t>::max(), first.ranked.front().memory_bytes - 1}) {
      SCOPED_TRACE(testing::Message() << SpecText(problem) << " " << shape.m << " " << shape.n
                                      << " " << shape.k << " limit " << limit);
      int64_t best = std::numeric_limits<int64_t>::max();
      for (const Tried& one : tried)
        if (one.memory_bytes <= limit) best = std::min(best, one.time_ns);
      request.memory_bytes = limit;
      const AdviceAnswer answer = AnswerTo(request, platform);
      if (best == std::numeric_limits<int64_t>::max()) {
        EXPECT_THAT(answer.ranked, IsEmpty());
        continue;
      }
      ASSERT_FALSE(answer.ranked.empty());
      EXPECT_EQ(answer.ranked.front().time_ns, best);
    }
  }
}

// ---- estimates ----

TEST(InflowAlong, AddsTheLinksOfAllAxesOfATorus) {
  const Mesh mesh = ParsedMesh("x=4,y=4,z=2");
  Platform platform = V5p("x=4,y=4,z=2");
  // Rings receive from both sides, in half as many hops as they have devices.
  EXPECT_EQ(InflowAlong(mesh, platform, {0}).bytes_per_ns, 180);
  EXPECT_EQ(InflowAlong(mesh, platform, {0}).latency_ns, 2000);
  EXPECT_EQ(InflowAlong(mesh, platform, {0, 1, 2}).bytes_per_ns, 180 + 180 + 90);
  EXPECT_EQ(InflowAlong(mesh, platform, {0, 1, 2}).latency_ns, 2000 + 2000 + 1000);
  // The end of a line receives all from one side.
  platform.torus = *MakeTorus(mesh, platform.machine, {.wrap = "none"});
  EXPECT_EQ(InflowAlong(mesh, platform, {0}).bytes_per_ns, 90);
  EXPECT_EQ(InflowAlong(mesh, platform, {0}).latency_ns, 3000);
}

TEST(InflowAlong, SharesThePortOfANode) {
  const Mesh mesh = ParsedMesh("x=2,y=4");
  Platform platform = SwitchOf("x=2,y=4", 100, 1000);
  platform.machine.between = {Wiring::kSwitch, {10, 20, 5000}, {}};
  platform.topology = *UniformTopology(8, 2);
  EXPECT_EQ(InflowAlong(mesh, platform, {1}).bytes_per_ns, 100);  // within a node
  EXPECT_EQ(InflowAlong(mesh, platform, {1}).latency_ns, 100);
  // Four ranks of a node receive from their partners on the other.
  EXPECT_EQ(InflowAlong(mesh, platform, {0}).bytes_per_ns, 10.0 / 4);
  EXPECT_EQ(InflowAlong(mesh, platform, {0}).latency_ns, 5000);
  // Four of seven shards come from the other node, once for all ranks.
  EXPECT_NEAR(InflowAlong(mesh, platform, {0, 1}).bytes_per_ns, 10.0 * 7 / 4, 1e-9);
}

TEST(InflowAlong, HasALinkForEachPeerOfAPair) {
  Platform platform = SwitchOf("x=4", 100, 1000);
  platform.machine.within.wiring = Wiring::kPairwise;
  EXPECT_EQ(InflowAlong(ParsedMesh("x=4"), platform, {0}).bytes_per_ns, 300);
}

TEST(MovesOf, CountsTheBytesIntoARank) {
  const auto bytes = [](const std::string& spec, const std::string& split, AxisUses uses) {
    const Problem problem = ProblemOf(spec, "x=2,y=4", {1024, 512, 2048});
    double sum = 0;
    for (const OperandMove& move : MovesOf(problem, uses)) sum += move.bytes;
    EXPECT_EQ(sum, CostOf(problem, *ParseSplit(problem, split)).busiest_bytes) << spec;
    return sum;
  };
  constexpr double kA2 = 1024 * 2048 * 2, kC2 = 1024 * 512 * 2;
  const Cut none = Cut::kNone, rows = Cut::kRows, cols = Cut::kCols;
  EXPECT_EQ(bytes("A[M_x, K_y] * B[K, N] -> C[M_x, N]", "M=x",
                  {{Dim::kM, {rows, none, rows}}, {std::nullopt, {cols, none, none}}}),
            kA2 / 2 * 3 / 4);
  EXPECT_EQ(bytes("A[M, K] * B[K, N] -> C[M, N]", "M=xy",
                  {{Dim::kM, {none, none, none}}, {Dim::kM, {none, none, none}}}),
            kC2 * 7 / 8);
  EXPECT_EQ(bytes("A[M, K_xy] * B[K_xy, N] -> C[M, N]", "K=xy",
                  {{Dim::kK, {cols, rows, none}}, {Dim::kK, {cols, rows, none}}}),
            kC2 * 7 / 8 * 3);  // terms of 4 bytes, then elements of 2
  EXPECT_EQ(bytes("A[M_x, K] * B[K, N] -> C[M, N_x]", "M=x",
                  {{Dim::kM, {rows, none, cols}}, {std::nullopt, {none, none, none}}}),
            kC2 / 4);
}

TEST(MovesText, NamesTheCollectives) {
  const auto text = [](const std::string& spec, std::optional<Dim> cut) {
    const Problem problem = ProblemOf(spec, "x=2", {512, 512, 512});
    AxisUse use = {cut, {}};
    for (const Operand operand : {kA, kB, kC}) {
      const Sharding& sharding = problem.tensors[operand].sharding;
      use.operands[operand] = !sharding.rows.empty()   ? Cut::kRows
                              : !sharding.cols.empty() ? Cut::kCols
                                                       : Cut::kNone;
    }
    return MovesText(problem, MovesOf(problem, {use}));
  };
  EXPECT_EQ(text("A[M_x, K] * B[K, N] -> C[M_x, N]", Dim::kM), "nothing");
  EXPECT_EQ(text("A[M_x, K] * B[K, N_x] -> C[M_x, N]", Dim::kM), "all-gather B over x");
  EXPECT_EQ(text("A[M_x, K] * B[K, N] -> C[M, N]", Dim::kM), "all-gather C over x");
  EXPECT_EQ(text("A[M_x, K] * B[K, N] -> C[M, N_x]", Dim::kM), "all-to-all C over x");
  EXPECT_EQ(text("A[M, K_x] * B[K, N] -> C[M_x, N]", Dim::kM), "all-to-all A over x");
  EXPECT_EQ(text("A[M, K_x] * B[K_x, N] -> C[M_x, N]", Dim::kK), "reduce-scatter C over x");
  EXPECT_EQ(text("A[M, K_x] * B[K_x, N] -> C[M, N]", Dim::kK), "all-reduce C over x");
  EXPECT_EQ(text("A[M_x, K] * B[K_x, N] -> C[M, N]", std::nullopt),
            "all-gather A over x; all-gather B over x");
}

}  // namespace
}  // namespace agmm::test
