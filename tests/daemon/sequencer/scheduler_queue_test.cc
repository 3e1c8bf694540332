// The order in which jobs are launched, and the bounds on launching ahead.
#include "absl/strings/str_cat.h"
#include "daemon/sequencer/scheduler.h"
#include "gmock/gmock.h"
#include "tests/daemon/sequencer/scheduler_harness.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Code = absl::StatusCode;

TEST_F(SchedulerTest, TheOrderOfLaunchIsTheOrderOfAdmission) {
  const Operands3 t = MakeOperands(), u = MakeOperands();
  const uint64_t write = BeginWrite(t.a);
  const uint64_t first = SubmitOk(Request(t)), second = SubmitOk(Request(u));
  AnswerPrepared();
  EXPECT_THAT(Launched(), IsEmpty());
  EndWrite(write, true);
  EXPECT_THAT(Launched(), ElementsAre(first, second));
}

TEST_F(SchedulerTest, JobsOnOtherRanksOvertakeAWaitingOne) {
  const Operands3 t = MakeOperands(64, MeshOf(1, 0)), u = MakeOperands(64, MeshOf(1, 1));
  const uint64_t write = BeginWrite(t.a);
  const uint64_t waits = SubmitOk(Request(t, MeshOf(1, 0)));
  const uint64_t other = SubmitOk(Request(u, MeshOf(1, 1)));
  AnswerPrepared();
  EXPECT_THAT(Launched(), ElementsAre(other));
  DoneEverywhere(other);
  EXPECT_EQ(State(other), v1::Job::STATE_SUCCEEDED);
  EXPECT_EQ(State(waits), v1::Job::STATE_QUEUED);
  EndWrite(write, true);
  EXPECT_THAT(Launched(), ElementsAre(waits));
}

TEST_F(SchedulerTest, AJobNeverOvertakesOneThatSharesARank) {
  const Operands3 t = MakeOperands(64, MeshOf(1, 0)), both = MakeOperands(),
                  u = MakeOperands(64, MeshOf(1, 1));
  const uint64_t write = BeginWrite(t.a);
  const uint64_t first = SubmitOk(Request(t, MeshOf(1, 0))), second = SubmitOk(Request(both)),
                 third = SubmitOk(Request(u, MeshOf(1, 1)));
  AnswerPrepared();
  EXPECT_THAT(Launched(), IsEmpty());
  EndWrite(write, true);
  EXPECT_THAT(Launched(), ElementsAre(first, second, third));
}

TEST_F(SchedulerTest, AJobIsNotLaunchedBehindManyEpochsOfItsPlan) {
  const Operands3 t = MakeOperands();
  v1::SubmitJobRequest endless = Request(t);
  endless.set_repeat_count(5);
  const uint64_t first = SubmitOk(endless), second = SubmitOk(Request(t)),
                 third = SubmitOk(Request(t));
  AnswerPrepared();
  EXPECT_THAT(Launched(), ElementsAre(first));
  EXPECT_EQ(Cancel(second)->state(), v1::Job::STATE_CANCELLED);
  EXPECT_THAT(Cancelled(), IsEmpty());
  DoneEverywhere(first);
  EXPECT_THAT(Launched(), ElementsAre(third));
}

TEST_F(SchedulerTest, AJobIsLaunchedBehindFewEpochsOfItsPlan) {
  const Operands3 t = MakeOperands();
  v1::SubmitJobRequest two = Request(t);
  two.set_repeat_count(2);
  const uint64_t first = SubmitOk(two), second = SubmitOk(two), third = SubmitOk(two),
                 fourth = SubmitOk(two);
  AnswerPrepared();
  EXPECT_THAT(Launched(), ElementsAre(first, second, third));
  DoneEverywhere(first);
  EXPECT_THAT(Launched(), ElementsAre(fourth));
}

TEST_F(SchedulerTest, AQueuedJobsTimeoutNamesTheJobInItsWay) {
  const Operands3 t = MakeOperands(64, MeshOf(1, 0)), u = MakeOperands(64, MeshOf(1, 1));
  BeginWrite(t.a);
  const uint64_t elsewhere = SubmitOk(Request(t, MeshOf(1, 0)));
  v1::SubmitJobRequest request = Request(u, MeshOf(1, 1));
  request.set_repeat_count(1000);
  const uint64_t running = SubmitOk(request);
  AnswerPrepared();
  EXPECT_THAT(Launched(), ElementsAre(running));
  const uint64_t waits = SubmitOk(Request(u, MeshOf(1, 1)));
  request.mutable_timeout()->set_seconds(10);
  const Answer<v1::Job> late = StartWait(SubmitOk(request));
  Advance(absl::Seconds(10));
  const v1::Job behind = *late.Get();
  ExpectLate(behind, "10s: it was queued, and waited for job ");
  EXPECT_THAT(behind.error().message(),
              HasSubstr(absl::StrCat("job ", waits,
                                     ", which is before it in the queue and waited "
                                     "for job ",
                                     running, ", which had not ended")));
  EXPECT_THAT(behind.error().message(), Not(HasSubstr(absl::StrCat("job ", elsewhere, ","))));
  EXPECT_THAT(Cancelled(), IsEmpty());
}

TEST_F(SchedulerTest, AJobLaunchedAheadIsQueuedUntilTheJobBeforeItHasEnded) {
  const Operands3 t = MakeOperands();
  const uint64_t first = SubmitOk(Request(t)), second = SubmitOk(Request(t)),
                 third = SubmitOk(Request(t));
  AnswerPrepared();
  EXPECT_THAT(Launched(), ElementsAre(first, second, third));
  EXPECT_EQ(State(first), v1::Job::STATE_RUNNING);
  EXPECT_EQ(State(second), v1::Job::STATE_QUEUED);
  EXPECT_FALSE(Get(second)->has_start_time());
  EXPECT_THAT(Get(second)->events(1).message(),
              HasSubstr(absl::StrCat("launched ahead behind job ", first, ",")));
  EXPECT_THAT(Get(third)->events(1).message(),
              HasSubstr(absl::StrCat("launched ahead behind job ", second, ",")));
  Done(0, first);
  EXPECT_EQ(State(second), v1::Job::STATE_QUEUED);
  Done(1, first);
  EXPECT_EQ(State(second), v1::Job::STATE_RUNNING);
  EXPECT_TRUE(Get(second)->has_start_time());
  EXPECT_EQ(State(third), v1::Job::STATE_QUEUED);
  DoneEverywhere(second);
  EXPECT_EQ(State(third), v1::Job::STATE_RUNNING);
  DoneEverywhere(third);
  std::vector<v1::Job::State> states;
  const v1::Job job = *Get(third);
  for (const v1::JobEvent& event : job.events()) states.push_back(event.state());
  EXPECT_THAT(states, ElementsAre(v1::Job::STATE_QUEUED, v1::Job::STATE_QUEUED,
                                  v1::Job::STATE_RUNNING, v1::Job::STATE_SUCCEEDED));
}

TEST_F(SchedulerTest, AJobOnSomeRanksRunsOnceTheirNodesHaveEndedTheJobBeforeIt) {
  const Operands3 both = MakeOperands(), one = MakeOperands(64, MeshOf(1, 0));
  const uint64_t first = SubmitOk(Request(both)), second = SubmitOk(Request(one, MeshOf(1, 0)));
  AnswerPrepared();
  EXPECT_THAT(Launched(), ElementsAre(first, second));
  EXPECT_EQ(State(second), v1::Job::STATE_QUEUED);
  Done(0, first);
  EXPECT_EQ(State(second), v1::Job::STATE_RUNNING);
  EXPECT_EQ(State(first), v1::Job::STATE_RUNNING);
}

TEST_F(SchedulerTest, AJobBehindTwoOthersRunsOnceBothHaveEnded) {
  const Operands3 t = MakeOperands(64, MeshOf(1, 0)), u = MakeOperands(64, MeshOf(1, 1)),
                  both = MakeOperands();
  const uint64_t left = SubmitOk(Request(t, MeshOf(1, 0))),
                 right = SubmitOk(Request(u, MeshOf(1, 1))), last = SubmitOk(Request(both));
  AnswerPrepared();
  EXPECT_THAT(Launched(), ElementsAre(left, right, last));
  EXPECT_THAT(Get(last)->events(1).message(), HasSubstr(absl::StrCat("behind job ", right, ",")));
  Done(1, right);
  EXPECT_EQ(State(last), v1::Job::STATE_QUEUED);
  Done(0, left);
  EXPECT_EQ(State(last), v1::Job::STATE_RUNNING);
}

TEST_F(SchedulerTest, OwnersShareTheQueueAndLeaveRoomForUsersOfTheSocket) {
  const v1::SubmitJobRequest request = Request(MakeOperands());
  uint64_t last = 0;
  for (const char* owner : {"ipv4:10.0.0.1:7", "ipv6:[fd00::2]:7", "ipv4:10.0.0.3:7"}) {
    for (int i = 0; i < 2500; ++i) {
      const absl::StatusOr<v1::Job> job = Submit(request, owner);
      ASSERT_TRUE(job.ok()) << job.status();
      last = job->job_id();
    }
  }
  // Another port is the same host.
  EXPECT_EQ(
      Submit(request, "ipv4:10.0.0.1:8").status().message(),
      "2500 jobs of ipv4:10.0.0.1 are queued or running, and 2500 is the limit for one owner; "
      "wait for some of them to end, or cancel some");
  const absl::Status crowded = Submit(request, "ipv4:10.0.0.4:7").status();
  EXPECT_EQ(crowded.code(), Code::kResourceExhausted);
  EXPECT_THAT(std::string(crowded.message()),
              HasSubstr("7500 jobs of other hosts are queued or running, and 7500 is the limit"));
  EXPECT_TRUE(Submit(request, "uid:0").ok());
  ASSERT_TRUE(Cancel(last).ok());
  EXPECT_TRUE(Submit(request, "ipv4:10.0.0.4:7").ok());
  // Jobs that end with the world release their places, too.
  Do([&] {
    scheduler_->OnGenerationEnded({1}, absl::AbortedError("node 1 was lost"));
    scheduler_->OnReady();
  });
  EXPECT_TRUE(Submit(request, "ipv4:10.0.0.1:7").ok());
}

TEST_F(SchedulerTest, AtMost64JobsAreLaunchedAhead) {
  const uint64_t b = Ready("[K, N_x]", 32, 48);
  std::vector<uint64_t> jobs;
  uint64_t a = 0;
  for (int i = 0; i < 66; ++i) {
    // Five to a plan, which needs no workspace, with results of their own.
    const int64_t m = 64 + i / 5;
    if (i % 5 == 0) a = Ready("[M, K]", m, 32);
    v1::SubmitJobRequest request = Request({a, b, Create("[M, N_x]", m, 48)});
    request.set_spec("A[M, K] * B[K, N_x] -> C[M, N_x]");
    jobs.push_back(SubmitOk(request));
  }
  AnswerPrepared();
  EXPECT_EQ(Launched().size(), 64u);
  EXPECT_THAT(Get(jobs[0])->events(1).message(), Not(HasSubstr("behind")));
  EXPECT_THAT(Get(jobs[9])->events(1).message(),
              HasSubstr(absl::StrCat("launched ahead behind job ", jobs[8], ",")));
  DoneEverywhere(jobs[0]);
  EXPECT_THAT(Launched(), ElementsAre(jobs[64]));
}

}  // namespace
}  // namespace agmm
