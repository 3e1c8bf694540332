// What holds for every plan.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/verify.h"
#include "tests/schedule/problems.h"

namespace agmm::test {
namespace {

constexpr const char* kAlgorithms[] = {"serial", "ring", "direct"};
constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// Plans, proves, and closes once more.
void Check(int ranks, const Topology& topology, Shape shape, DType dtype,
           const PlanOptions& options, const std::string& spec = kDefaultSpec) {
  SCOPED_TRACE(absl::StrFormat("%s %s, %d chunks, %d ranks, M=%d N=%d K=%d %s", spec,
                               options.algorithm, options.chunks, ranks, shape.m, shape.n, shape.k,
                               Name(dtype)));
  const Problem problem = MakeProblem(ranks, shape, dtype, spec);
  const absl::StatusOr<Schedule> plan = Plan(problem, topology, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(Verify(problem, topology, *plan), absl::OkStatus());
  ASSERT_EQ(Close(*plan), *plan);
  ASSERT_EQ(*Plan(problem, topology, options), *plan);
}

TEST(EveryPlan, IsProvedOnEverySplitOfRanksOverNodes) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (int nodes = 1; nodes <= ranks; ++nodes) {
      const int devices = (ranks + nodes - 1) / nodes;
      if ((ranks + devices - 1) / devices != nodes) continue;  // a node would be empty
      const Topology topology = UniformTopology(ranks, nodes, devices).value();
      for (const char* algorithm : kAlgorithms) {
        for (int chunks : {1, 3}) {
          Check(ranks, topology, {97, 61, 333}, DType::kBF16, {algorithm, chunks});
        }
      }
      if (HasFatalFailure()) return;
    }
  }
}

TEST(EveryPlan, IsProvedForRaggedShapes) {
  for (int ranks : {1, 2, 3, 5, 8, 16}) {
    for (int64_t m : {1, 2, 97, 1000}) {
      for (int64_t n : {1, 3, 61}) {
        for (DType dtype : kDTypes) {
          for (const char* algorithm : kAlgorithms) {
            for (int chunks : {0, 1, 2, 3, 8}) {
              Check(ranks, MakeTopology(ranks, 1), {m, n, 333}, dtype, {algorithm, chunks});
            }
          }
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(EveryPlan, IsProvedForRandomProblems) {
  const uint64_t seed = FirstSeed();
  SCOPED_TRACE(absl::StrFormat("AGMM_SEED=%d", seed));
  std::mt19937_64 random(seed);
  auto draw = [&](int64_t most) { return 1 + static_cast<int64_t>(random() % most); };
  const std::string specs[] = {kDefaultSpec, "A[M_x, K] * B[K, N] -> C[M, N]",
                               "A[M_x, K] * B[K, N] -> C[M_x, N]",
                               "A[M, K] * B[K, N_x] -> C[M, N_x]"};
  for (int i = 0; i < 300; ++i) {
    const int ranks = static_cast<int>(draw(16));
    const int devices = static_cast<int>(draw(ranks));
    const Topology topology =
        UniformTopology(ranks, (ranks + devices - 1) / devices, devices).value();
    const Shape shape = {draw(300), draw(300), draw(300)};
    const PlanOptions options = {kAlgorithms[random() % 3], static_cast<int>(draw(8))};
    Check(ranks, topology, shape, kDTypes[random() % 3], options,
          random() % 2 ? kDefaultSpec : specs[random() % 4]);
    if (HasFatalFailure()) return;
  }
}

TEST(EveryPlan, OfAWideMeshIsProved) {
  for (const char* algorithm : kAlgorithms) {
    Check(32, MakeTopology(32, 4), {8192, 4096, 1024}, DType::kBF16, {algorithm, 8});
  }
}

}  // namespace
}  // namespace agmm::test
