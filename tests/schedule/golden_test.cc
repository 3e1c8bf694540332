// A few whole plans as text, which show every change of the planner's output line by line.
#include "tests/golden/golden.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "kernels/base/hash.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/plan_hash.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/text.h"
#include "kernels/schedule/verify.h"
#include "tests/schedule/text_parse.h"

namespace agmm {
namespace {

struct Case {
  const char* name;
  const char *spec, *mesh;
  Shape shape;
  DType dtype;
  int nodes, devices_per_node;
  PlanOptions options;
};

// Options of a plan that gathers A.
PlanOptions GatherA(const char* algorithm, int chunks, const char* split = "N=x") {
  return {algorithm, chunks, 0, split};
}

const Case kCases[] = {
    {"local_2", "A[M_x, K] * B[K, N] -> C[M_x, N]", "x=2", {8, 4, 4}, DType::kF32, 1, 0, {}},
    {"serial_2", kDefaultSpec, "x=2", {8, 4, 4}, DType::kF32, 1, 0, GatherA("serial", 0)},
    {"serial_4_nodes_2", kDefaultSpec, "x=4", {8, 4, 4}, DType::kF32, 2, 0, GatherA("serial", 0)},
    {"ring_2", kDefaultSpec, "x=2", {8, 4, 4}, DType::kF32, 1, 0, GatherA("ring", 1)},
    {"ring_4_nodes_2_chunks_2",
     kDefaultSpec,
     "x=4",
     {64, 32, 96},
     DType::kBF16,
     2,
     0,
     GatherA("ring", 2)},
    {"ring_3_nodes_2_ragged",
     kDefaultSpec,
     "x=3",
     {7, 5, 333},
     DType::kBF16,
     2,
     2,
     GatherA("ring", 2)},
    {"ring_4_more_ranks_than_rows",
     kDefaultSpec,
     "x=4",
     {3, 8, 4},
     DType::kF16,
     2,
     0,
     GatherA("ring", 1)},
    {"direct_4_nodes_2_chunks_2",
     kDefaultSpec,
     "x=4",
     {64, 32, 96},
     DType::kBF16,
     2,
     0,
     GatherA("direct", 2)},
    {"direct_2_by_2",
     "A[M_dp, K] * B[K, N_tp] -> C[M, N_tp]",
     "dp=2,tp=2",
     {8, 8, 8},
     DType::kF32,
     2,
     0,
     GatherA("direct", 1, "N=tp")},
    {"peer_2", kDefaultSpec, "x=2", {8, 4, 4}, DType::kF32, 1, 0, GatherA("peer", 0)},
    {"peer_3_ragged_chunks_2",
     kDefaultSpec,
     "x=3",
     {7, 2, 333},
     DType::kBF16,
     1,
     0,
     GatherA("peer", 2)},
    {"peer_2_by_2",
     "A[M_tp, K] * B[K, N_tp] -> C[M, N_tp]",
     "dp=2,tp=2",
     {8, 8, 8},
     DType::kF32,
     2,
     0,
     GatherA("peer", 1, "N=tp")},
};

class GoldenPlan : public ::testing::TestWithParam<Case> {};

TEST_P(GoldenPlan, IsPlannedAgain) {
  const Case& c = GetParam();
  const auto problem = ParseProblem(c.spec, ParseMesh(c.mesh).value(), c.shape, c.dtype);
  ASSERT_TRUE(problem.ok()) << problem.status();
  const auto topology = UniformTopology(problem->mesh.size(), c.nodes, c.devices_per_node);
  ASSERT_TRUE(topology.ok()) << topology.status();
  const auto schedule = Plan(*problem, *topology, c.options);
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  const absl::Status verified = Verify(*problem, *topology, *schedule);
  EXPECT_TRUE(verified.ok()) << verified;
  const std::string name = absl::StrCat("plans/", c.name, ".txt");
  ExpectGolden(name,
               absl::StrFormat("# %s\n# nodes=%d algorithm=%s chunks=%d\n# plan %s\n%s",
                               ToString(*problem), c.nodes, c.options.algorithm, c.options.chunks,
                               HashHex(PlanHash(*problem, *schedule)), Print(*problem, *schedule)));
  const auto parsed = Parse(*problem, ReadGolden(name));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, *schedule);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenPlan, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace agmm
