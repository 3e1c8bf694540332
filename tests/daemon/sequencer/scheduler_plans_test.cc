// Plans: when they are made and dropped, and that a refused submit leaves nothing.
#include "absl/strings/str_cat.h"
#include "daemon/sequencer/scheduler.h"
#include "gmock/gmock.h"
#include "tests/daemon/sequencer/scheduler_harness.h"
#include "tests/support/armed.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

class PlansOfJobs : public SchedulerTest {
 protected:
  // Returns a plan for the product of MakeOperands(m).
  static TunedPlan TunedOf(int64_t m, int chunks) {
    TunedPlan plan;
    plan.key = {kSpec, std::vector<DType>(3, DType::kF32), "x=2", {1, 1}, m, 48, 32};
    plan.options = {"ring", chunks, 1, "N=x"};
    plan.time_us = 212;
    return plan;
  }
  // Runs a job to its end, and returns why its plan was chosen.
  std::string ExplanationOf(const v1::SubmitJobRequest& request) {
    const uint64_t id = SubmitOk(request);
    AnswerPrepared();
    DoneEverywhere(id);
    return Get(id)->explanation();
  }
  // Returns why a queued job is not launched.
  std::string WaitOf(uint64_t id) {
    Answer<v1::Job> job;
    v1::GetJobRequest request;
    request.set_job_id(id);
    request.set_progress(true);
    Do([&] { scheduler_->GetJob({}, request, job.reply()); });
    return job.Get()->waits_for().reason();
  }
};

TEST_F(PlansOfJobs, AThousandWarmJobsPlanAndAllocateNothingForAnyM) {
  const Operands3 large = MakeOperands(64), small = MakeOperands(32);
  Warm(Request(large));
  Warm(Request(small));
  EXPECT_EQ(Metric("plans_prepared_total"), 2);
  EXPECT_EQ(Metric("workspaces_allocated_total"), 1);
  const int64_t bytes = WorkspaceBytes();
  for (int i = 0; i < 500; ++i) {
    EndWrite(BeginWrite(large.a), true);
    ASSERT_NO_FATAL_FAILURE(Warm(Request(large)));
    ASSERT_NO_FATAL_FAILURE(Warm(Request(small)));
  }
  EXPECT_EQ(Metric("plans_prepared_total"), 2);
  EXPECT_EQ(Metric("workspaces_allocated_total"), 1);
  EXPECT_EQ(WorkspaceBytes(), bytes);
}

TEST_F(PlansOfJobs, IdleWorkspacesMakeRoomForTensorsAndUsedOnesDoNot) {
  const Operands3 t = MakeOperands();
  const uint64_t id = SubmitOk(Request(t));
  AnswerPrepared();
  const auto fill = [&] {
    int64_t free = 0;
    Do([&] { free = placement_.free_bytes(0); });
    Answer<v1::Tensor> created;
    // One more page-sized row than is free.
    Do([&] {
      catalog_->CreateTensor({}, TensorRequest("", "[M, K]", free / 4096 + 1, 1024, MeshOf(2)),
                             created.reply());
    });
    return created;
  };
  EXPECT_GT(WorkspaceBytes(), 0);
  EXPECT_EQ(fill().Get().status().code(), Code::kResourceExhausted);
  EXPECT_GT(WorkspaceBytes(), 0);
  DoneEverywhere(id);
  EXPECT_GT(WorkspaceBytes(), 0);
  const Answer<v1::Tensor> created = fill();
  EXPECT_EQ(WorkspaceBytes(), 0);
  EXPECT_FALSE(created.has()) << created.Get().status();
  EXPECT_EQ(Metric("plans_cached"), 1) << "a plan without a workspace takes nothing";
}

TEST_F(PlansOfJobs, OtherJobsContinueDuringALongProof) {
  const Operands3 t = MakeOperands(64, MeshOf(1, 0)), u = MakeOperands(32, MeshOf(1, 1));
  Warm(Request(u, MeshOf(1, 1)));
  Answer<v1::Job> submitted;
  uint64_t other = 0;
  {
    Armed held("scheduler.hold_plan");
    Do([&] { scheduler_->SubmitJob({}, Request(t, MeshOf(1, 0)), submitted.reply()); });
    other = SubmitOk(Request(u, MeshOf(1, 1)));
    Do([] {});
    const auto launches = Take(v1::Command::kLaunchJob);
    ASSERT_EQ(launches.size(), 2u) << "of the warm one, and of this";
    EXPECT_EQ(launches.back().command.launch_job().job_id(), other);
    EXPECT_FALSE(submitted.has());
  }
  const absl::StatusOr<v1::Job> job = submitted.Get();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), v1::Job::STATE_QUEUED);
  EXPECT_EQ(job->plan_hash().size(), 16u);
}

// New shapes take milliseconds, and jobs on the same ranks whose plans are known do not wait.
TEST_F(PlansOfJobs, JobsWithKnownPlansPassThoseOfNewShapes) {
  const Operands3 known = MakeOperands(64), fresh = MakeOperands(32), other = MakeOperands(48);
  Warm(Request(known));
  std::vector<Answer<v1::Job>> submitted(2);
  uint64_t passes = 0;
  {
    Armed held("scheduler.hold_plan");
    Do([&] {
      scheduler_->SubmitJob({}, Request(fresh), submitted[0].reply());
      scheduler_->SubmitJob({}, Request(other), submitted[1].reply());
    });
    for (int i = 0; i < 90; ++i) {
      passes = SubmitOk(Request(known));
      DoneEverywhere(passes);
      EXPECT_EQ(State(passes), v1::Job::STATE_SUCCEEDED);
    }
    for (const Answer<v1::Job>& one : submitted) EXPECT_FALSE(one.has());
  }
  const uint64_t first = submitted[0].Get()->job_id(), second = submitted[1].Get()->job_id();
  EXPECT_LT(second, passes);
  // Nor do they wait for the nodes, which prepare the plans.
  const uint64_t next = SubmitOk(Request(known));
  EXPECT_EQ(Launched().back(), next);
  DoneEverywhere(next);
  AnswerPrepared();
  EXPECT_EQ(Launched().front(), first);
  DoneEverywhere(first);
  DoneEverywhere(second);
  EXPECT_EQ(State(second), v1::Job::STATE_SUCCEEDED);
}

TEST_F(PlansOfJobs, AJobDoesNotPassOneWithWhichItSharesAResult) {
  const Operands3 t = MakeOperands(), u = MakeOperands();
  Warm(Request(t));
  Take(v1::Command::kLaunchJob);
  v1::SubmitJobRequest fresh = Request(t);
  fresh.mutable_options()->set_chunk_count(2);
  Answer<v1::Job> submitted;
  uint64_t later = 0, other = 0;
  {
    Armed held("scheduler.hold_plan");
    Do([&] { scheduler_->SubmitJob({}, fresh, submitted.reply()); });
    later = SubmitOk(Request(t));
    EXPECT_THAT(Take(v1::Command::kLaunchJob), IsEmpty());
    EXPECT_THAT(WaitOf(later), HasSubstr("before it in the queue and waited for its plan"));
    other = SubmitOk(Request(u));
    EXPECT_EQ(Take(v1::Command::kLaunchJob).size(), 2u) << "it shares nothing with either";
    DoneEverywhere(other);
    EXPECT_EQ(State(other), v1::Job::STATE_SUCCEEDED);
  }
  const uint64_t first = submitted.Get()->job_id();
  AnswerPrepared();
  EXPECT_THAT(Launched(), ElementsAre(first));
  DoneEverywhere(first);
  EXPECT_THAT(Launched(), ElementsAre(later));
}

TEST_F(PlansOfJobs, AJobBehindTheMostThatArePassedKeepsItsPlace) {
  const Operands3 t = MakeOperands();
  Warm(Request(t));
  Take(v1::Command::kLaunchJob);
  v1::SubmitJobRequest fresh = Request(t);
  fresh.mutable_options()->set_chunk_count(2);
  std::vector<Answer<v1::Job>> submitted(64);
  Armed held("scheduler.hold_plan");
  Do([&] {
    for (Answer<v1::Job>& one : submitted) scheduler_->SubmitJob({}, fresh, one.reply());
  });
  // It writes the same result, and its plan is known.
  const uint64_t later = SubmitOk(Request(t));
  EXPECT_THAT(Take(v1::Command::kLaunchJob), IsEmpty());
  EXPECT_THAT(WaitOf(later), HasSubstr("before it in the queue and waited for its plan"));
}

TEST_F(PlansOfJobs, ASmallPlanDoesNotWaitForALargeOne) {
  const Operands3 t = MakeOperands(1024), u = MakeOperands(32);
  v1::SubmitJobRequest many = Request(t);
  many.mutable_options()->set_chunk_count(256);
  many.mutable_options()->set_split("N=x");
  Answer<v1::Job> large;
  {
    Armed held("scheduler.hold_large_plan");
    Do([&] { scheduler_->SubmitJob({}, many, large.reply()); });
    SubmitOk(Request(u));  // answered once it is planned
    EXPECT_FALSE(large.has());
    const auto asked = Take(v1::Command::kPreparePlan);
    ASSERT_EQ(asked.size(), 2u);
    EXPECT_FALSE(asked[0].command.prepare_plan().large());
  }
  ASSERT_TRUE(large.Get().ok()) << large.Get().status();
  const auto asked = Take(v1::Command::kPreparePlan);
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_TRUE(asked[0].command.prepare_plan().large()) << "its nodes must not wait either";
}

TEST_F(PlansOfJobs, IdlePlansAreDroppedLeastRecentlyUsedFirst) {
  const Operands3 first = MakeOperands(16), second = MakeOperands(32), third = MakeOperands(48);
  plan_bytes_ = 400;
  Warm(Request(first));
  Warm(Request(second));
  Warm(Request(first));
  EXPECT_EQ(Metric("plans_cached"), 2);
  EXPECT_TRUE(Take(v1::Command::kReleasePlan).empty());
  Warm(Request(third));
  EXPECT_EQ(Metric("plans_cached"), 2);
  EXPECT_EQ(Take(v1::Command::kReleasePlan).size(), 2u) << "both nodes forget the second";
  EXPECT_EQ(Metric("plans_prepared_total"), 3);
  Warm(Request(first));
  EXPECT_EQ(Metric("plans_prepared_total"), 3) << "the first was kept";
  Warm(Request(second));
  EXPECT_EQ(Metric("plans_prepared_total"), 4);
}

TEST_F(PlansOfJobs, APlanLargerThanTheCacheRunsAndIsDroppedAlone) {
  const Operands3 small = MakeOperands(16), large = MakeOperands(32);
  plan_bytes_ = 900;
  Warm(Request(small));
  plan_bytes_ = 1001;
  const uint64_t one = SubmitOk(Request(large)), two = SubmitOk(Request(large));
  AnswerPrepared();
  DoneEverywhere(one);
  EXPECT_EQ(State(one), v1::Job::STATE_SUCCEEDED);
  EXPECT_EQ(Metric("plans_cached"), 2) << "the second job holds it";
  DoneEverywhere(two);
  EXPECT_EQ(State(two), v1::Job::STATE_SUCCEEDED);
  EXPECT_EQ(Metric("plans_cached"), 1);
  EXPECT_EQ(Take(v1::Command::kReleasePlan).size(), 2u);
  Warm(Request(small));
  EXPECT_EQ(Metric("plans_prepared_total"), 2) << "the small one was kept";
}

TEST_F(PlansOfJobs, NodesPlanWithTheCurrentIslands) {
  const v1::SubmitJobRequest request = Request(MakeOperands(64));
  const auto islands = [&] {
    SubmitOk(request);
    std::vector<int> islands;
    for (const auto& [node, command] : Take(v1::Command::kPreparePlan)) {
      const auto& of_plan = command.prepare_plan().islands();
      islands.assign(of_plan.begin(), of_plan.end());
    }
    return islands;
  };
  EXPECT_THAT(islands(), IsEmpty()) << "each node is one island";
  std::vector<int> expected;
  Do([&] {
    for (WorldRank& rank : members_.mutable_ranks())
      expected.push_back(rank.island = static_cast<int>(expected.size()) % 2);
  });
  EXPECT_EQ(islands(), expected);
}

TEST_F(PlansOfJobs, AreChosenAgainForANewMachine) {
  const Operands3 t = MakeOperands();
  for (const int64_t version : {1, 1, 2}) {
    Do([&] { machine_ = MeasuredMachine(version); });
    Warm(Request(t));
    EXPECT_EQ(Metric("plans_prepared_total"), version);
  }
  EXPECT_THAT(Get(SubmitOk(Request(t)))->explanation(), HasSubstr("machine measured 2"));
}

TEST_F(PlansOfJobs, AreChosenAgainIfTheirTunedPlanChanges) {
  machine_ = MeasuredMachine(1);
  const Operands3 large = MakeOperands(64), small = MakeOperands(16);
  std::string why;  // of the large one
  const auto prepared_with = [&](const std::vector<TunedPlan>& plans) {
    Do([&] { tuning_ = std::make_shared<const TuningTable>(plans); });
    why = ExplanationOf(Request(large));
    ExplanationOf(Request(small));
    return Metric("plans_prepared_total");
  };
  EXPECT_EQ(prepared_with({}), 2);
  EXPECT_EQ(prepared_with({TunedOf(64, 2)}), 3) << "the large one alone";
  EXPECT_THAT(why, HasSubstr("tuned: ring in 2 chunks"));
  EXPECT_EQ(prepared_with({TunedOf(16, 3), TunedOf(64, 2)}), 4) << "the small one alone";
  EXPECT_EQ(prepared_with({TunedOf(16, 3), TunedOf(64, 2), TunedOf(1024, 4)}), 4) << "none";
  EXPECT_EQ(prepared_with({TunedOf(16, 3), TunedOf(64, 4)}), 5) << "the large one alone";
  EXPECT_THAT(why, HasSubstr("tuned: ring in 4 chunks"));
  EXPECT_EQ(prepared_with({}), 5) << "both plans of the choice by prediction are still there";
}

TEST_F(PlansOfJobs, ARequestRepeatedDuringPlanningIsTheSameJob) {
  v1::SubmitJobRequest request = Request(MakeOperands());
  request.set_request_id("r1");
  Answer<v1::Job> first, second;
  {
    Armed held("scheduler.hold_plan");
    for (auto* answer : {&first, &second})
      Do([&] { scheduler_->SubmitJob({}, request, answer->reply()); });
    EXPECT_FALSE(second.has());
  }
  EXPECT_EQ(first.Get()->job_id(), second.Get()->job_id());
  EXPECT_EQ(Metric("jobs_submitted_total"), 1);
}

TEST_F(PlansOfJobs, CancelAndDeadlineReachAJobWhosePlanIsBeingMade) {
  v1::SubmitJobRequest request = Request(MakeOperands());
  v1::SubmitJobRequest late = Request(MakeOperands(32));
  late.mutable_timeout()->set_seconds(10);
  request.set_session_id("s1");
  Armed held("scheduler.hold_plan");
  Answer<v1::Job> cancelled, timed_out;
  Do([&] { scheduler_->SubmitJob({}, request, cancelled.reply()); });
  Do([&] { scheduler_->SubmitJob({}, late, timed_out.reply()); });
  Do([&] { scheduler_->EndSession("s1"); });
  EXPECT_EQ(cancelled.Get()->state(), v1::Job::STATE_CANCELLED);
  Advance(absl::Seconds(10));
  const v1::Job job = *timed_out.Get();
  EXPECT_EQ(job.state(), v1::Job::STATE_FAILED);
  EXPECT_THAT(job.error().message(), HasSubstr("its plan, which was being made"));
}

TEST_F(PlansOfJobs, APlanLargerThanTheHeapIsRefusedAtSubmit) {
  // Tensors take all but a page.
  const Operands3 t = MakeOperands(640);
  int64_t free = 0;
  Do([&] { free = placement_.free_bytes(0); });
  Create("[M, K]", free / 4096 - 1, 1024);
  v1::SubmitJobRequest request = Request(t);
  request.set_request_id("r1");
  EXPECT_EQ(Submit(request).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(Submit(request).status().code(), Code::kResourceExhausted) << "not a job of that id";
  EXPECT_EQ(Metric("jobs_submitted_total"), 0);
  EXPECT_EQ(Metric("jobs_failed_total"), 0);
  EXPECT_EQ(Metric("plans_cached"), 0);
  EXPECT_TRUE(Take(v1::Command::kPreparePlan).empty());
  Answer<v1::ListJobsResponse> list;
  Do([&] { list.reply()(scheduler_->history().List({})); });
  EXPECT_EQ(list.Get()->jobs_size(), 0);
}

TEST_F(PlansOfJobs, AnUnusedNameForCCreatesATensor) {
  const Operands3 t = MakeOperands();
  v1::SubmitJobRequest request = Request(t);
  request.mutable_tensors(2)->set_name("Y");
  request.set_session_id("s1");
  const absl::StatusOr<v1::Job> job = Submit(request);
  ASSERT_TRUE(job.ok()) << job.status();
  const uint64_t c = job->tensor_ids(2);
  for (const auto& [node, command] : Take(v1::Command::kPlaceTensor))
    Report(node, PlacedReport(command.place_tensor().tensor().tensor_id()));
  v1::Tensor tensor;
  Do([&] { tensor = catalog_->Find(c).value(); });
  EXPECT_EQ(tensor.name(), "Y");
  EXPECT_EQ(tensor.owner(), "uid:7");
  EXPECT_EQ(tensor.session_id(), "s1");
  EXPECT_EQ(tensor.spec().sharding(), "[M, N_x]");
  EXPECT_EQ(tensor.spec().rows(), 64);
  EXPECT_EQ(tensor.spec().cols(), 48);
  AnswerPrepared();
  EXPECT_THAT(Launched(), ElementsAre(job->job_id()));
  DoneEverywhere(job->job_id());
  EXPECT_EQ(StateOf(c), v1::Tensor::STATE_READY);
  EXPECT_EQ(Submit(request)->tensor_ids(2), c) << "now it has a tensor";
}

TEST_F(PlansOfJobs, ARefusedSubmitLeavesNoC) {
  const Operands3 t = MakeOperands(640);
  int64_t free = 0;
  Do([&] { free = placement_.free_bytes(0); });
  // There is room for C but not for a workspace as well.
  Create("[M, K]", free / 4096 - 24, 1024);
  v1::SubmitJobRequest request = Request(t);
  request.mutable_tensors(2)->set_name("Y");
  v1::TensorRef name;
  name.set_name("Y");
  const auto expect_refused = [&](Code code) {
    const absl::Status refused = Submit(request).status();
    EXPECT_EQ(refused.code(), code) << refused;
    for (const auto& [node, command] : Take(v1::Command::kPlaceTensor))
      Report(node, PlacedReport(command.place_tensor().tensor().tensor_id()));
    Do([&] { EXPECT_EQ(catalog_->Resolve(name).status().code(), Code::kNotFound); });
  };
  expect_refused(Code::kResourceExhausted);
  request.mutable_options()->set_algorithm("magic");
  expect_refused(Code::kInvalidArgument);
  request = Request(t);
  request.mutable_tensors(0)->set_name("X");
  EXPECT_EQ(Submit(request).status().code(), Code::kNotFound) << "inputs are not made";
}

}  // namespace
}  // namespace agmm
