// The choice of options for more than 64 ranks, for which the steps leave room for few simulations:
// estimates decide which ones.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "kernels/predict/choose.h"
#include "kernels/predict/simulate.h"
#include "kernels/schedule/algorithm.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/machine_text.h"

namespace agmm::test {
namespace {

constexpr const char* kGather = "A[M_x, K] * B[K, N_x] -> C[M, N_x]";
constexpr const char* kGatherAlongK = "A[M, K_x] * B[K, N_x] -> C[M, N_x]";
constexpr const char* kReduceScatter = "A[M, K_x] * B[K_x, N] -> C[M_x, N]";

struct Asked {
  std::string name, preset, spec, mesh;
  agmm::Shape shape;
  int nodes = 1;
};
void PrintTo(const Asked& asked, std::ostream* out) { *out << asked.name; }

// The least simulated time of the algorithms in one piece, with each split that the choice took
// into account.
int64_t FastestNs(const Problem& problem, const Platform& platform, const Choice& choice) {
  std::vector<Split> splits;
  int64_t fastest_ns = 0;
  for (const PlanCandidate& candidate : choice.candidates) {
    if (absl::c_linear_search(splits, candidate.recipe.split)) continue;
    splits.push_back(candidate.recipe.split);
    for (const Algorithm& algorithm : Algorithms()) {
      Recipe recipe = candidate.recipe;
      recipe.algorithm = &algorithm;
      recipe.chunks = recipe.k_chunks = 1;
      if (CostOf(problem, platform.topology, recipe).steps > kMaxPlanSteps) continue;
      const absl::StatusOr<Schedule> schedule = PlanWith(problem, platform.topology, recipe);
      if (!schedule.ok()) continue;
      const int64_t time_ns = Simulate(problem, platform, *schedule)->time_ns;
      if (fastest_ns == 0 || time_ns < fastest_ns) fastest_ns = time_ns;
    }
  }
  return fastest_ns;
}

class ManyRanks : public testing::TestWithParam<Asked> {};

TEST_P(ManyRanks, TakeAPlanThatIsHardlySlowerThanTheFastestAlgorithm) {
  const Asked& asked = GetParam();
  const Problem problem =
      ParseProblem(asked.spec, ParseMesh(asked.mesh).value(), asked.shape, DType::kBF16).value();
  const Platform platform = {
      Preset(asked.preset).value(), UniformTopology(problem.mesh.size(), asked.nodes).value(), {}};
  const Choice choice = Choose(problem, platform, {}).value();
  const int64_t fastest_ns = FastestNs(problem, platform, choice);
  ASSERT_GT(fastest_ns, 0);
  EXPECT_LE(static_cast<double>(choice.time_ns), 1.05 * static_cast<double>(fastest_ns))
      << choice.why;
}

INSTANTIATE_TEST_SUITE_P(
    Products, ManyRanks,
    testing::Values(
        Asked{"GatherOf72OnNodesOf4", "cpu-tcp", kGather, "x=72", {18432, 4608, 1152}, 18},
        Asked{"GatherOf96OnNodesOf1", "cpu-tcp", kGather, "x=96", {6144, 6144, 1536}, 96},
        Asked{"GatherOf72GpusOnNodesOf4", "h100-nvlink", kGather, "x=72", {36864, 18432, 8192}, 18},
        Asked{"AlongKOf72OnNodesOf4", "cpu-tcp", kGatherAlongK, "x=72", {4608, 4608, 2304}, 18},
        Asked{"AlongKOf72Gpus", "h100-nvlink", kGatherAlongK, "x=72", {9216, 9216, 4608}, 18},
        Asked{"SumOf72OnNodesOf4", "cpu-tcp", kReduceScatter, "x=72", {4608, 1152, 4608}, 18},
        Asked{"GatherOf128OnNodesOf4", "cpu-tcp", kGather, "x=128", {65536, 28672, 8192}, 32}),
    [](const testing::TestParamInfo<Asked>& param) { return param.param.name; });

}  // namespace
}  // namespace agmm::test
