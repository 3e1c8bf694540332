// The log's lines about jobs.
#include "daemon/sequencer/job_log.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "tests/daemon/sequencer/scheduler_harness.h"
#include "tests/support/logged.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

class JobLogTest : public SchedulerTest {
 protected:
  // Runs a job that takes `time` on its ranks.
  uint64_t Run(const v1::SubmitJobRequest& request, absl::Duration time) {
    const uint64_t id = SubmitOk(request);
    AnswerPrepared();
    Settle();
    clock_.Advance(time);
    DoneEverywhere(id);
    return id;
  }
  static int64_t Lines(const std::string& text) {
    return std::count(text.begin(), text.end(), '\n');
  }
};

TEST_F(JobLogTest, AFailedJobLogsOneLineWithItsTermsAndASuccessfulJobNone) {
  const Logged logged;
  const v1::SubmitJobRequest request = Request(MakeOperands());
  Warm(request);
  EXPECT_THAT(logged.text(), IsEmpty());
  const uint64_t id = SubmitOk(request);
  Settle();
  clock_.Advance(absl::Milliseconds(1500));
  Done(1, id, absl::InternalError("rank 1 lane 0\nstep 3 \x1b[31mbroke"));
  Done(0, id, absl::AbortedError("cancelled"));
  const std::string text = logged.text();
  EXPECT_THAT(text, HasSubstr("info: job 2 failed after 1.5 s: node n1: rank 1 lane 0 step 3 "
                              "\\x1b[31mbroke (owner uid:7, A[M_x, K] * B[K, N_x] -> C[M, N_x]  "
                              "M=64 N=48 K=32 f32  mesh x=2, ranks 0-1, 1 epoch, plan "));
  EXPECT_THAT(text, HasSubstr(Get(id)->plan_hash() + ": " + Get(id)->options().algorithm() + ", "));
  EXPECT_EQ(Lines(text), 1);
}

TEST_F(JobLogTest, ACancelledJobLogsOneLineEvenFromTheQueue) {
  const Logged logged;
  const uint64_t id = SubmitOk(Request(MakeOperands()));
  ASSERT_TRUE(Cancel(id).ok());
  EXPECT_THAT(logged.text(), HasSubstr("info: job 1 was cancelled after 0 us: job 1 was cancelled "
                                       "(owner uid:7, A[M_x, K]"));
  EXPECT_EQ(Lines(logged.text()), 1);
}

TEST_F(JobLogTest, AJobThatTakesMoreThanTwiceItsUsualTimeLogsOneLine) {
  const Logged logged;
  v1::SubmitJobRequest request = Request(MakeOperands());
  Run(request, absl::Seconds(3));  // packs B, so it is not measured
  for (int i = 0; i < 3; ++i) Run(request, absl::Milliseconds(20));
  Run(request, absl::Milliseconds(39));
  request.set_repeat_count(4);
  Run(request, absl::Milliseconds(120));
  EXPECT_THAT(logged.text(), IsEmpty());
  Run(request, absl::Milliseconds(400));
  EXPECT_THAT(logged.text(),
              MatchesRegex("info: job 7 took 400 ms, and jobs on its plan usually "
                           "take 9[0-9]\\.?[0-9]* ms \\(owner uid:7, .*, 4 epochs, .*\n"));
}

TEST_F(JobLogTest, AJobThatIsShortEitherWayIsNotSlow) {
  const Logged logged;
  const v1::SubmitJobRequest request = Request(MakeOperands());
  for (int i = 0; i < 3; ++i) Run(request, absl::Microseconds(100));
  Run(request, absl::Milliseconds(9));
  EXPECT_THAT(logged.text(), IsEmpty());
}

TEST_F(JobLogTest, LinesBeyondABoundAreOnlyCountedUntilThePeriodEnds) {
  const Logged logged;
  const v1::SubmitJobRequest request = Request(MakeOperands());
  const auto cancel = [&](int count) {
    for (int i = 0; i < count; ++i) ASSERT_TRUE(Cancel(SubmitOk(request)).ok());
  };
  cancel(scheduler::JobLog::kMaxLines + 7);
  EXPECT_EQ(Lines(logged.text()), scheduler::JobLog::kMaxLines);
  Advance(absl::Seconds(10));
  EXPECT_THAT(logged.text(), HasSubstr("info: more jobs in the last 10s (not logged individually): "
                                       "7 cancelled\n"));
  cancel(2);
  EXPECT_EQ(Lines(logged.text()), scheduler::JobLog::kMaxLines + 3);
}

TEST_F(JobLogTest, AtDebugLevelEachEventOfAJobLogsALine) {
  const v1::SubmitJobRequest request = Request(MakeOperands());
  Warm(request);
  const Logged logged(spdlog::level::debug);
  Run(request, absl::Milliseconds(1));
  EXPECT_THAT(logged.text(), HasSubstr("debug: job 2: admitted (owner uid:7, A[M_x, K]"));
  EXPECT_THAT(logged.text(), HasSubstr("debug: job 2: launched from epoch 2 of plan 1\n"));
  EXPECT_THAT(logged.text(), HasSubstr("debug: job 2: done\n"));
  EXPECT_EQ(Lines(logged.text()), 3);
}

}  // namespace
}  // namespace agmm
