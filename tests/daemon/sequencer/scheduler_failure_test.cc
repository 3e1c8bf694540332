#include "daemon/sequencer/scheduler.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "kernels/base/deadline.h"
#include "kernels/base/reason.h"
#include "tests/daemon/sequencer/scheduler_harness.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

TEST_F(SchedulerTest, AQueuedJobIsCancelledAtOnce) {
  const Operands3 t = MakeOperands();
  const uint64_t id = SubmitOk(Request(t));
  const absl::StatusOr<v1::Job> job = Cancel(id);
  EXPECT_EQ(job->state(), v1::Job::STATE_CANCELLED);
  EXPECT_EQ(ReasonOf(FromProto(job->error())), kReasonCancelled);
  AnswerPrepared();
  EXPECT_THAT(Launched(), IsEmpty());
  EXPECT_EQ(Metric("jobs_cancelled_total"), 1);
}

TEST_F(SchedulerTest, ARunningJobIsCancelledOnceAllNodesHaveReported) {
  const Operands3 t = MakeOperands();
  const uint64_t id = SubmitOk(Request(t));
  AnswerPrepared();
  EXPECT_EQ(Cancel(id)->state(), v1::Job::STATE_RUNNING);
  EXPECT_THAT(Cancelled(), ElementsAre(std::pair(0, id), std::pair(1, id)));
  Done(0, id, absl::CancelledError("drained"));
  EXPECT_EQ(State(id), v1::Job::STATE_RUNNING);
  Done(1, id, absl::CancelledError("drained"));
  EXPECT_EQ(State(id), v1::Job::STATE_CANCELLED);
  EXPECT_EQ(ReasonOf(FromProto(Get(id)->error())), kReasonCancelled);
  EXPECT_EQ(StateOf(t.c), v1::Tensor::STATE_EMPTY);
}

TEST_F(SchedulerTest, ALateCancelHasNoEffect) {
  const Operands3 t = MakeOperands();
  const uint64_t id = SubmitOk(Request(t));
  AnswerPrepared();
  EXPECT_TRUE(Cancel(id).ok());
  DoneEverywhere(id);
  EXPECT_EQ(State(id), v1::Job::STATE_SUCCEEDED);
  EXPECT_EQ(Cancel(id)->state(), v1::Job::STATE_SUCCEEDED);
  EXPECT_EQ(StateOf(t.c), v1::Tensor::STATE_READY);
}

TEST_F(SchedulerTest, TheEndOfASessionCancelsItsJobs) {
  const Operands3 t = MakeOperands(), u = MakeOperands();
  v1::SubmitJobRequest request = Request(t);
  request.set_session_id("s1");
  const uint64_t mine = SubmitOk(request), other = SubmitOk(Request(u));
  Do([&] { scheduler_->EndSession("s1"); });
  EXPECT_EQ(State(mine), v1::Job::STATE_CANCELLED);
  EXPECT_EQ(State(other), v1::Job::STATE_QUEUED);
}

TEST_F(SchedulerTest, TheFirstErrorStaysAndTheOthersDrainAtOnce) {
  const Operands3 t = MakeOperands();
  const uint64_t id = SubmitOk(Request(t));
  AnswerPrepared();
  Done(1, id, absl::DataLossError("the cause"));
  EXPECT_THAT(Cancelled(), ElementsAre(std::pair(0, id)));
  EXPECT_EQ(State(id), v1::Job::STATE_RUNNING);
  EXPECT_GT(WorkspaceBytes(), 0);
  Done(0, id, absl::AbortedError("cancelled because of node n1"));
  const v1::Job job = *Get(id);
  EXPECT_EQ(job.state(), v1::Job::STATE_FAILED);
  EXPECT_EQ(job.error().code(), static_cast<int>(Code::kDataLoss));
  EXPECT_THAT(job.error().message(), HasSubstr("node n1: the cause"));
  // The plan was retired with it; its workspace serves the next plan, because all ranks have
  // reported.
  EXPECT_EQ(Take(v1::Command::kReleasePlan).size(), 2u);
  EXPECT_EQ(Metric("plans_cached"), 0);
  SubmitOk(Request(t));
  EXPECT_EQ(AnswerPrepared(), 2);
  EXPECT_EQ(Metric("workspaces_allocated_total"), 1);
}

TEST_F(SchedulerTest, JobsBehindAFailedLaunchRunAgainOnANewPlan) {
  const Operands3 t = MakeOperands();
  const uint64_t first = SubmitOk(Request(t)), second = SubmitOk(Request(t)),
                 third = SubmitOk(Request(t));
  AnswerPrepared();
  EXPECT_THAT(Launched(), ElementsAre(first, second, third));
  const uint64_t fourth = SubmitOk(Request(MakeOperands(32)));
  Done(0, first);
  Done(0, second, absl::InternalError("broken"));
  // The jobs behind it are cancelled, the job before it is not.
  EXPECT_THAT(Cancelled(),
              ElementsAre(std::pair(0, third), std::pair(1, second), std::pair(1, third)));
  Done(0, third, absl::AbortedError("spoilt"));
  Done(1, first);
  EXPECT_EQ(State(first), v1::Job::STATE_SUCCEEDED);
  Done(1, second, absl::AbortedError("cancelled"));
  EXPECT_EQ(State(second), v1::Job::STATE_FAILED);
  EXPECT_EQ(State(third), v1::Job::STATE_QUEUED);
  EXPECT_TRUE(Take(v1::Command::kReleasePlan).empty());
  Done(1, third, absl::AbortedError("cancelled"));
  EXPECT_EQ(State(third), v1::Job::STATE_QUEUED);
  EXPECT_EQ(Take(v1::Command::kReleasePlan).size(), 2u);
  EXPECT_EQ(AnswerPrepared(), 4);
  const auto launches = Take(v1::Command::kLaunchJob);
  ASSERT_EQ(launches.size(), 4u);
  // Its plan is ready first.
  EXPECT_EQ(launches[0].command.launch_job().job_id(), fourth);
  EXPECT_EQ(launches[2].command.launch_job().job_id(), third);
  EXPECT_EQ(launches[2].command.launch_job().first_epoch(), 1u);
  DoneEverywhere(fourth);
  DoneEverywhere(third);
  EXPECT_EQ(State(third), v1::Job::STATE_SUCCEEDED);
  EXPECT_EQ(StateOf(t.c), v1::Tensor::STATE_READY);
}

TEST_F(SchedulerTest, ACancelledJobIsNotRequeued) {
  const Operands3 t = MakeOperands();
  const uint64_t first = SubmitOk(Request(t)), second = SubmitOk(Request(t));
  AnswerPrepared();
  Done(0, first, absl::InternalError("broken"));
  Done(0, second, absl::AbortedError("spoilt"));
  EXPECT_TRUE(Cancel(second).ok());
  Done(1, first, absl::AbortedError("cancelled"));
  Done(1, second, absl::AbortedError("cancelled"));
  EXPECT_EQ(State(second), v1::Job::STATE_CANCELLED);
}

TEST_F(SchedulerTest, AQueuedJobsDeadlineNamesItsWait) {
  const Operands3 t = MakeOperands();
  const uint64_t write = BeginWrite(t.a);
  v1::SubmitJobRequest request = Request(t);
  request.mutable_timeout()->set_seconds(10);
  const uint64_t leases = SubmitOk(request);
  const Operands3 u = MakeOperands();
  request = Request(u);
  request.mutable_timeout()->set_seconds(10);
  Advance(absl::Seconds(10));
  const v1::Job waited_for_leases = *StartWait(leases).Get();
  EndWrite(write, true);
  const uint64_t plan = SubmitOk(request);
  Settle();
  Advance(absl::Seconds(10));
  const v1::Job waited_for_plan = *StartWait(plan).Get();
  for (const v1::Job& job : {waited_for_leases, waited_for_plan}) {
    EXPECT_EQ(job.state(), v1::Job::STATE_FAILED);
    EXPECT_EQ(job.error().code(), static_cast<int>(Code::kDeadlineExceeded));
    ExpectLate(job, "10s: it was queued, and waited for ");
  }
  EXPECT_THAT(waited_for_leases.error().message(),
              HasSubstr("which a transfer or a mapping through node n0 writes; if it needs"));
  EXPECT_THAT(waited_for_plan.error().message(),
              HasSubstr("its plan, which n0, n1 had not prepared; if it needs"));
}

TEST_F(SchedulerTest, TheSequencerEndsARunningJobAtItsDeadline) {
  const Operands3 t = MakeOperands();
  v1::SubmitJobRequest request = Request(t);
  request.mutable_timeout()->set_seconds(10);
  const uint64_t id = SubmitOk(request);
  AnswerPrepared();
  // The nodes have the same deadline, and a moment more to report their progress.
  Advance(absl::Seconds(10));
  EXPECT_TRUE(Take(v1::Command::kCancelLaunch).empty());
  Advance(absl::Seconds(1));
  const std::vector<FakeMembers::Sent> cancels = Take(v1::Command::kCancelLaunch);
  ASSERT_EQ(cancels.size(), 2u);
  const absl::Status reason = FromProto(cancels[0].command.cancel_launch().reason());
  EXPECT_EQ(reason.code(), Code::kDeadlineExceeded);
  Done(0, id, reason);
  Done(1, id, reason);
  EXPECT_EQ(State(id), v1::Job::STATE_FAILED);
  ExpectLate(*Get(id), "10s: node n0: stopped at the job's timeout; if it needs");
}

TEST_F(SchedulerTest, ACancelOfAJobLaunchedAheadEndsItForItsClients) {
  const Operands3 t = MakeOperands();
  const Operands3 own = {t.a, t.b, Create("[M, N_x]", 64, 48)};
  const uint64_t first = SubmitOk(Request(t)), second = SubmitOk(Request(own));
  AnswerPrepared();
  EXPECT_THAT(Launched(), ElementsAre(first, second));
  const Answer<v1::Job> waiter = StartWait(second);
  EXPECT_EQ(Cancel(second)->state(), v1::Job::STATE_CANCELLED);
  EXPECT_EQ(waiter.Get()->state(), v1::Job::STATE_CANCELLED);
  EXPECT_THAT(Cancelled(), ElementsAre(std::pair(0, second), std::pair(1, second)));
  // The nodes reach it after the first job; until then it keeps its C.
  Answer<v1::BeginLeaseResponse> write;
  v1::BeginLeaseRequest request;
  request.set_tensor_id(own.c);
  request.set_write(true);
  Do([&] { catalog_->BeginLease({}, request, write.reply()); });
  DoneEverywhere(first);
  EXPECT_FALSE(write.has());
  Done(0, second, absl::CancelledError("drained"));
  EXPECT_FALSE(write.has());
  Done(1, second, absl::CancelledError("drained"));
  EXPECT_TRUE(write.Get().ok());
  EXPECT_EQ(Get(second)->events_size(), 3);
  EXPECT_EQ(Metric("jobs_cancelled_total"), 1);
  EXPECT_EQ(Metric("jobs_failed_total"), 0);
}

TEST_F(SchedulerTest, AJobThatNeverBeganKeepsThePreviousC) {
  const Operands3 t = MakeOperands();
  const uint64_t first = SubmitOk(Request(t)), second = SubmitOk(Request(t));
  AnswerPrepared();
  EXPECT_THAT(Launched(), ElementsAre(first, second));
  EXPECT_TRUE(Cancel(second).ok());
  DoneEverywhere(first);
  for (int node : {0, 1}) Done(node, second, absl::CancelledError("drained"), /*began=*/false);
  EXPECT_EQ(StateOf(t.c), v1::Tensor::STATE_READY);
}

TEST_F(SchedulerTest, AJobThatBeganOnOneNodeAndWasCancelledEmptiesItsC) {
  const Operands3 t = MakeOperands();
  const uint64_t first = SubmitOk(Request(t)), second = SubmitOk(Request(t));
  AnswerPrepared();
  EXPECT_TRUE(Cancel(second).ok());
  DoneEverywhere(first);
  Done(0, second, absl::CancelledError("drained"), /*began=*/false);
  Done(1, second, absl::CancelledError("drained"), /*began=*/true);
  EXPECT_EQ(StateOf(t.c), v1::Tensor::STATE_EMPTY);
}

TEST_F(SchedulerTest, AJobLaunchedBehindAnotherOnItsPlanEndsAtItsDeadline) {
  const Operands3 t = MakeOperands();
  const uint64_t first = SubmitOk(Request(t));
  AnswerPrepared();
  v1::SubmitJobRequest request = Request(t);
  request.mutable_timeout()->set_seconds(10);
  const uint64_t second = SubmitOk(request);
  EXPECT_THAT(Launched(), ElementsAre(first, second));
  Advance(absl::Seconds(11));
  const v1::Job job = *StartWait(second).Get();
  EXPECT_EQ(job.state(), v1::Job::STATE_FAILED);
  ExpectLate(job, absl::StrCat("10s: it was launched ahead behind job ", first, ", which had not"));
  EXPECT_EQ(State(first), v1::Job::STATE_RUNNING);
  // No node is given up for a job that it cannot have reached.
  Advance(4 * Parts().drain_limit);
  Advance(absl::Seconds(5));
  Do([&] { EXPECT_TRUE(members_.lost.empty()); });
  Do([&] {
    scheduler_->OnGenerationEnded({}, absl::AbortedError("over"));
    EXPECT_EQ(Metric("jobs_failed_total"), 2);
  });
}

TEST_F(SchedulerTest, ANodeThatDoesNotEndACancelledJobIsGivenUp) {
  const Operands3 t = MakeOperands();
  const uint64_t id = SubmitOk(Request(t));
  AnswerPrepared();
  EXPECT_TRUE(Cancel(id).ok());
  Done(0, id, absl::CancelledError("drained"));
  // It is asked where it is, and does not answer.
  Advance(Parts().drain_limit);
  Advance(absl::Seconds(1));
  std::vector<std::pair<int, std::string>> lost;
  Do([&] { lost = members_.lost; });
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].first, 1);
  EXPECT_THAT(lost[0].second, HasSubstr("job " + std::to_string(id)));
  Do([&] { scheduler_->OnGenerationEnded({1}, absl::AbortedError("n1 was lost")); });
  EXPECT_EQ(State(id), v1::Job::STATE_FAILED);
}

TEST_F(SchedulerTest, AWaitEndsAtItsOwnDeadline) {
  const Operands3 t = MakeOperands();
  const uint64_t id = SubmitOk(Request(t));
  const Answer<v1::Job> wait = StartWait(id, Deadline::After(absl::Seconds(10), clock_.Nanos()));
  Advance(absl::Seconds(10));
  const auto waited = wait.Get();
  EXPECT_EQ(waited.status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(
      waited.status().message(),
      absl::StrCat("job ", id, " is still queued after a wait of 10s; wait again, or cancel it"));
  EXPECT_EQ(State(id), v1::Job::STATE_QUEUED);
}

TEST_F(SchedulerTest, TheEndOfAGenerationEndsAllJobsAndLaterOnesRun) {
  for (const bool catalog_first : {true, false}) {
    const Operands3 t = MakeOperands(), u = MakeOperands(32);
    const uint64_t running = SubmitOk(Request(t));
    AnswerPrepared();
    const uint64_t write = BeginWrite(u.a);
    const uint64_t queued = SubmitOk(Request(u));
    const Answer<v1::Job> waiter = StartWait(queued);
    Do([&] { members_.sent.clear(); });
    const absl::Status reason = WithReason(absl::AbortedError("node n1 was lost"), kReasonPeerLost);
    Do([&] {
      members_.complete = absl::UnavailableError("n1 is missing");
      if (catalog_first) catalog_->OnGenerationEnded({}, reason);
      scheduler_->OnGenerationEnded({}, reason);
      if (!catalog_first) catalog_->OnGenerationEnded({}, reason);
      EXPECT_TRUE(members_.sent.empty());
    });
    for (uint64_t id : {running, queued}) {
      EXPECT_EQ(State(id), v1::Job::STATE_FAILED);
      EXPECT_EQ(FromProto(Get(id)->error()), reason);
    }
    EXPECT_TRUE(waiter.Get().ok());
    EXPECT_EQ(WorkspaceBytes(), 0);
    EXPECT_EQ(StateOf(t.c), v1::Tensor::STATE_EMPTY);
    EXPECT_EQ(StateOf(t.a), v1::Tensor::STATE_READY);
    EXPECT_EQ(StateOf(u.a), v1::Tensor::STATE_EMPTY) << write;
    Do([&] {
      EXPECT_TRUE(members_.sent.empty());
      members_.complete = absl::OkStatus();
      ++members_.generation_value;
      catalog_->OnReady();
      scheduler_->OnReady();
      members_.sent.clear();
    });
    // A report that was in flight is ignored now.
    Done(0, running);
    const uint64_t again = SubmitOk(Request(t));
    EXPECT_EQ(AnswerPrepared(), 2);
    EXPECT_THAT(Launched(), ElementsAre(again));
    DoneEverywhere(again);
    EXPECT_EQ(State(again), v1::Job::STATE_SUCCEEDED);
  }
}

TEST_F(SchedulerTest, TimesFollowTheWallClockAndDeadlinesDoNot) {
  const Operands3 t = MakeOperands();
  v1::SubmitJobRequest request = Request(t);
  request.mutable_timeout()->set_seconds(60);
  Answer<v1::Job> admitted;
  Do([&] { scheduler_->SubmitJob({}, request, admitted.reply()); });
  ASSERT_TRUE(admitted.Get().ok()) << admitted.Get().status();
  const v1::Job job = *admitted.Get();
  EXPECT_EQ(job.create_time().seconds(), absl::ToUnixSeconds(clock_.Now()));

  clock_.Advance(absl::Seconds(59));
  clock_.SetWall(absl::Hours(1));
  const auto asked = Take(v1::Command::kPreparePlan);
  ASSERT_EQ(asked.size(), 2u);
  v1::Report prepared;
  prepared.mutable_plan_prepared()->set_plan_id(asked[0].command.prepare_plan().plan_id());
  prepared.mutable_plan_prepared()->set_plan_hash(job.plan_hash());
  for (int node : {0, 1}) Do([&] { scheduler_->OnReport(node, prepared); });
  const auto launches = Take(v1::Command::kLaunchJob);
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_EQ(launches[0].command.launch_job().timeout().seconds(), 1);
  EXPECT_EQ(launches[0].command.launch_job().timeout().nanos(), 0);

  clock_.Advance(absl::Milliseconds(500));
  v1::Report done;
  done.mutable_launch_done()->set_job_id(job.job_id());
  for (int node : {0, 1}) Do([&] { scheduler_->OnReport(node, done); });
  Answer<v1::Job> ended;
  v1::GetJobRequest get;
  get.set_job_id(job.job_id());
  Do([&] { scheduler_->GetJob({}, get, ended.reply()); });
  auto millis = [](const google::protobuf::Timestamp& time) {
    return time.seconds() * 1000 + time.nanos() / 1000000;
  };
  EXPECT_EQ(ended.Get()->state(), v1::Job::STATE_SUCCEEDED);
  EXPECT_EQ(millis(ended.Get()->start_time()) - millis(job.create_time()), 3'600'000 + 59'000);
  EXPECT_EQ(millis(ended.Get()->end_time()) - millis(job.create_time()), 3'600'000 + 59'500);
}

}  // namespace
}  // namespace agmm
