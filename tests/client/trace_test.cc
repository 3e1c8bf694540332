#include "client/ctl/job_trace.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/hash.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/plan_hash.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/text.h"
#include "proto/convert/plan_inputs.h"
#include "tests/golden/golden.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

// A ring over world ranks 2 and 3 of nodes 0 and 1, every step 10 us after the one before.
v1::Job TracedJob(double start_unix_us = 1'700'000'000'000'000) {
  const Mesh mesh = *ParseMesh("x=2", {2, 3});
  const Problem problem = *ParseProblem(kDefaultSpec, mesh, {8, 4, 4}, DType::kF32);
  const Topology topology{{0, 1}};
  const PlanOptions options{"ring", 1};
  const Schedule schedule = *Plan(problem, topology, options);
  v1::Job job;
  job.set_job_id(5);
  job.set_state(v1::Job::STATE_SUCCEEDED);
  job.set_spec(kDefaultSpec);
  *job.mutable_mesh() = ToProto(mesh);
  job.set_m(8);
  job.set_n(4);
  job.set_k(4);
  job.set_dtype(v1::DTYPE_F32);
  *job.mutable_options() = ToProto(options);
  job.set_plan_hash(HashHex(PlanHash(problem, schedule)));
  for (Rank rank = 0; rank < 2; ++rank) {
    v1::RankReport* report = job.add_ranks();
    report->set_rank(mesh.ranks[rank]);
    report->set_node(rank);
    report->set_epoch_start_unix_us(start_unix_us + rank * 100);
    for (size_t index = 0; index < schedule.ranks[rank].size(); ++index) {
      v1::StepTime* time = report->add_steps();
      time->set_start_us(index * 10.0);
      time->set_end_us(index * 10.0 + 8);
    }
  }
  return job;
}

TEST(Trace, OfASmallRingIsTheGoldenOne) {
  const absl::StatusOr<Json> trace = TraceOf({TracedJob()});
  ASSERT_TRUE(trace.ok()) << trace.status();
  ExpectGolden("json/trace.json", trace->dump(1) + "\n");
}

TEST(Trace, HasEveryStepOfEveryRankOnItsNodeAndLane) {
  const v1::Job job = TracedJob();
  const Json trace = *TraceOf({job});
  std::set<std::pair<int, int>> seen;  // rank, step
  std::set<int> threads, named;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "M") {
      if (event["name"] == "thread_name") named.insert(event["tid"].get<int>());
      continue;
    }
    ASSERT_EQ(event["ph"], "X");
    const int rank = event["args"]["rank"], step = event["args"]["step"];
    EXPECT_TRUE(seen.emplace(rank, step).second);
    EXPECT_EQ(event["pid"], rank - 2);
    EXPECT_DOUBLE_EQ(event["ts"], (rank - 2) * 100 + step * 10);
    EXPECT_DOUBLE_EQ(event["dur"], 8);
    threads.insert(event["tid"].get<int>());
  }
  EXPECT_EQ(seen.size(), job.ranks(0).steps_size() + job.ranks(1).steps_size());
  EXPECT_EQ(threads, named);
}

TEST(Trace, OfTwoJobsHasOneZero) {
  v1::Job late = TracedJob(1'700'000'000'000'050);
  late.set_job_id(6);
  const Json trace = *TraceOf({late, TracedJob()});
  double first = 1e9;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["args"]["job"] != 6) continue;
    first = std::min(first, event["ts"].get<double>());
  }
  EXPECT_DOUBLE_EQ(first, 50);
  EXPECT_EQ(trace["otherData"]["jobs"].size(), 2);
}

TEST(Trace, IsRefusedWhereTheStepsMeanSomethingElseOrAreGone) {
  v1::Job job = TracedJob();
  job.set_plan_hash("0000000000000000");
  EXPECT_THAT(TraceOf({job}).status().message(), HasSubstr("0000000000000000"));
  EXPECT_TRUE(absl::IsFailedPrecondition(TraceOf({job}).status()));

  job = TracedJob();
  job.mutable_ranks(1)->clear_steps();
  EXPECT_THAT(TraceOf({job}).status().message(), HasSubstr("rank 3 are no longer kept"));
  job.mutable_ranks()->RemoveLast();
  EXPECT_TRUE(absl::IsFailedPrecondition(TraceOf({job}).status()));

  job = TracedJob();
  job.mutable_ranks(0)->mutable_steps()->RemoveLast();
  EXPECT_THAT(TraceOf({job}).status().message(), HasSubstr("its plan has"));

  job = TracedJob();
  job.set_state(v1::Job::STATE_RUNNING);
  EXPECT_THAT(TraceOf({job}).status().message(), HasSubstr("job 5 is running"));
  job.set_state(v1::Job::STATE_CANCELLED);
  EXPECT_THAT(TraceOf({job}).status().message(), HasSubstr("job 5 was cancelled"));
  job.set_state(v1::Job::STATE_FAILED);
  EXPECT_THAT(TraceOf({job}).status().message(), HasSubstr("job 5 has failed"));

  job = TracedJob();
  job.set_spec("A[M");
  EXPECT_TRUE(absl::IsInvalidArgument(TraceOf({job}).status()));
}

}  // namespace
}  // namespace agmm
