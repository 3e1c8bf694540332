#include "daemon/sequencer/planning.h"

#include "gmock/gmock.h"
#include "kernels/base/failpoint.h"
#include "kernels/predict/machine.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

// The default product over 128 ranks, two to a node, with eight rows a rank, so that eight chunks
// of a shard are not empty.
JobSpec Job128(const PlanOptions& options) {
  JobSpec job;
  job.problem =
      ParseProblem(kDefaultSpec, ParseMesh("x=128").value(), {1024, 128, 128}, DType::kF32).value();
  job.topology = UniformTopology(128, 64).value();
  job.options = options;
  return job;
}

TEST(Planning, RefusesTooManyStepsAndNamesAPossibleChunkCount) {
  const absl::Status status = BeginPlan(Job128({"ring", 8, 0, "N=x"})).status;
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("ask for 4 chunks and 1 along K"));
  const Planned fits = BeginPlan(Job128({"ring", 4, 0, "N=x"}));
  EXPECT_TRUE(fits.status.ok()) << fits.status;
  EXPECT_TRUE(fits.large);
}

TEST(Planning, RefusesAProductOfChunksOfBothInputs) {
  JobSpec job = Job128({"direct", 256, 8, "none"});
  job.problem = ParseProblem("A[M_x, K] * B[K, N_x] -> C[M, N]", ParseMesh("x=4").value(),
                             {4096, 4096, 4096}, DType::kF32)
                    .value();
  job.topology = UniformTopology(4, 2).value();
  const absl::Status status = BeginPlan(job).status;
  EXPECT_EQ(status.code(), Code::kInvalidArgument) << "4 * 1024 * 1024 * 8 multiplies";
  EXPECT_THAT(std::string(status.message()), HasSubstr("ask for 8 chunks and 8 along K"));
  job.options.chunks = 8;
  EXPECT_TRUE(BeginPlan(job).status.ok());
}

Machine SmallMachine() {
  Machine machine;
  machine.name = "small";
  machine.within.rates = machine.staged.rates = {10, 20, 1000};
  machine.between.rates = {1, 2, 10000};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    machine.device.gemm.push_back({dtype, 1e9, 100});
  machine.device.memory = 10;
  return machine;
}

TEST(Planning, ReportsTheChosenOptionsAndTheReason) {
  JobSpec job = Job128({});
  job.machine = std::make_shared<const Machine>(SmallMachine());
  job.problem =
      ParseProblem(kDefaultSpec, ParseMesh("x=2").value(), {64, 64, 64}, DType::kF32).value();
  job.topology = UniformTopology(2, 2).value();
  Planned planned = BeginPlan(job);
  ASSERT_TRUE(planned.status.ok()) << planned.status;
  EXPECT_FALSE(planned.large);
  EXPECT_NE(planned.options.algorithm, "auto");
  EXPECT_THAT(planned.resolved.why, HasSubstr("auto takes " + planned.options.algorithm));
  EXPECT_THAT(planned.resolved.why, HasSubstr("machine small"));
  EXPECT_GT(planned.predicted_us, 0);
  FinishPlan(job, planned);
  ASSERT_TRUE(planned.status.ok()) << planned.status;
  EXPECT_EQ(planned.hash.size(), 16u);
  EXPECT_EQ(planned.facts.step_counts.size(), 2u);
}

TEST(Planning, WithoutAMachineTakesDefaults) {
  Planned planned = BeginPlan(Job128({}));
  EXPECT_EQ(planned.predicted_us, 0);
  EXPECT_EQ(planned.options.algorithm, "hierarchical_peer");
}

// The plan does not fit, and smaller pieces are suggested as without a machine.
TEST(Planning, RefusesRequestedPiecesThatNoPlanCanHave) {
  JobSpec job = Job128({"direct", 256, 1, "N=x"});
  job.machine = std::make_shared<const Machine>(SmallMachine());
  const absl::Status status = BeginPlan(job).status;
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("at most 131072 can be planned; ask for"));
}

TEST(Planning, ChoosesWithinTheHeap) {
  JobSpec job = Job128({});
  job.problem =
      ParseProblem(kDefaultSpec, ParseMesh("x=4").value(), {256, 256, 256}, DType::kF32).value();
  job.topology = UniformTopology(4, 4).value();
  job.machine = std::make_shared<const Machine>(SmallMachine());
  job.heap_bytes = 150 << 10;
  Planned planned = BeginPlan(job);
  ASSERT_TRUE(planned.status.ok()) << planned.status;
  FinishPlan(job, planned);
  EXPECT_LE(planned.workspace_bytes, job.heap_bytes);
  EXPECT_EQ(planned.options.workspace_shards, 2) << planned.resolved.why;
}

TEST(Planning, RunsATunedPlanUnlessItDoesNotFit) {
  JobSpec job = Job128({});
  job.problem =
      ParseProblem(kDefaultSpec, ParseMesh("x=4").value(), {256, 256, 256}, DType::kF32).value();
  job.topology = UniformTopology(4, 4).value();
  job.machine = std::make_shared<const Machine>(SmallMachine());
  TunedPlan tuned;
  tuned.key = TuningKeyOf(job.problem, job.topology, *job.machine, "cpu");
  tuned.options = {"ring", 3, 1, "N=x"};
  tuned.time_us = 212;
  job.tuned = {&tuned, true};
  Planned planned = BeginPlan(job);
  ASSERT_TRUE(planned.status.ok()) << planned.status;
  EXPECT_EQ(planned.options, tuned.options);
  EXPECT_THAT(planned.resolved.why, HasSubstr("tuned: ring in 3 chunks"));
  EXPECT_GT(planned.predicted_us, 0);
  job.heap_bytes = 150 << 10;
  planned = BeginPlan(job);
  ASSERT_TRUE(planned.status.ok()) << planned.status;
  EXPECT_THAT(planned.resolved.why, HasSubstr("auto takes"));
  EXPECT_EQ(planned.options.workspace_shards, 2) << planned.resolved.why;
}

TEST(Planning, WithoutMemoryNamesThePlan) {
  const JobSpec job = Job128({"ring", 1, 1, "N=x"});
  Planned planned = BeginPlan(job);
  failpoint::Arm("memory.none", 1);
  FinishPlan(job, planned);
  failpoint::Disarm("memory.none");
  EXPECT_EQ(planned.status.code(), Code::kResourceExhausted);
  EXPECT_THAT(std::string(planned.status.message()), HasSubstr("the plan and proof of A[M_x, K]"));
}

}  // namespace
}  // namespace agmm
