// Records of jobs, their requests, and the callers that wait for them.
#include "absl/strings/str_cat.h"
#include "daemon/link/protocol.h"
#include "daemon/sequencer/history.h"
#include "daemon/sequencer/request_log.h"
#include "daemon/sequencer/scheduler.h"
#include "gmock/gmock.h"
#include "kernels/base/deadline.h"
#include "kernels/base/memory.h"
#include "kernels/base/units.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/plan_inputs.h"
#include "tests/daemon/sequencer/scheduler_harness.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

TEST(RequestLog, AnIdIsForgottenExactlyWhenItsTimeEnds) {
  ManualClock clock;
  RequestLog log(&clock);
  log.Add("short", "body", 1, absl::Minutes(1));
  log.Add("long", "body", 2, absl::Minutes(20));
  clock.Advance(absl::Hours(30));
  ASSERT_NE(log.Find("short"), nullptr) << "its job has not ended";
  log.End("short", v1::Job::STATE_SUCCEEDED, Code::kOk);
  log.End("long", v1::Job::STATE_FAILED, Code::kInternal);
  clock.Advance(absl::Minutes(10) - absl::Nanoseconds(1));
  clock.SetWall(absl::Hours(1));
  EXPECT_NE(log.Find("short"), nullptr);
  clock.SetWall(-absl::Hours(2));
  clock.Advance(absl::Nanoseconds(1));
  EXPECT_EQ(log.Find("short"), nullptr);
  clock.Advance(absl::Minutes(10) - absl::Nanoseconds(1));
  ASSERT_NE(log.Find("long"), nullptr);
  EXPECT_EQ(log.Find("long")->code, Code::kInternal);
  clock.Advance(absl::Nanoseconds(1));
  EXPECT_EQ(log.Find("long"), nullptr);
  EXPECT_EQ(log.size(), 0u);
}

TEST(RequestLog, AFullLogRefusesUntilIdsAreForgotten) {
  ManualClock clock;
  RequestLog log(&clock, 2);
  for (const char* id : {"a", "b"}) {
    ASSERT_TRUE(log.CheckRoom().ok());
    log.Add(id, "body", 1, absl::Minutes(1));
  }
  EXPECT_EQ(log.CheckRoom().code(), Code::kResourceExhausted);
  log.End("a", v1::Job::STATE_SUCCEEDED, Code::kOk);
  EXPECT_EQ(log.CheckRoom().code(), Code::kResourceExhausted);
  clock.Advance(absl::Minutes(10));
  EXPECT_TRUE(log.CheckRoom().ok());
  EXPECT_NE(log.Find("b"), nullptr);
}

class Records : public SchedulerTest {
 protected:
  v1::ListJobsResponse List(int page_size, uint64_t before) {
    Answer<v1::ListJobsResponse> list;
    v1::ListJobsRequest request;
    request.set_page_size(page_size);
    request.set_before_job_id(before);
    Do([&] { list.reply()(scheduler_->history().List(request)); });
    return *list.Get();
  }
  using Events = std::vector<v1::WatchJobResponse>;
  Answer<Events> Poll(uint64_t job, int64_t after, Deadline deadline = Deadline::Infinite()) {
    Answer<Events> polled;
    CallContext ctx;
    ctx.deadline = deadline;
    v1::WatchJobRequest request;
    request.set_job_id(job);
    request.set_after_event(after);
    Do([&] { scheduler_->PollJob(ctx, request, polled.reply()); });
    return polled;
  }
  // Runs a job of one epoch that takes `epoch_us` on each rank, and returns its record.
  v1::Job Timed(const v1::SubmitJobRequest& request, double epoch_us) {
    const uint64_t id = SubmitOk(request);
    AnswerPrepared();
    Settle();
    for (const auto& [node, command] : Take(v1::Command::kLaunchJob)) {
      v1::Report report;
      v1::LaunchDone* done = report.mutable_launch_done();
      done->set_job_id(command.launch_job().job_id());
      done->set_began(true);
      done->add_ranks()->set_rank(node);
      done->mutable_ranks(0)->add_epoch_us(epoch_us);
      Report(node, report);
    }
    return *Get(id);
  }
  static std::string LastMessage(const v1::Job& job) {
    return job.events().empty() ? "" : job.events(job.events_size() - 1).message();
  }
};

TEST_F(Records, TenThousandJobsThroughAHistoryOfAThousandAreAllKnownByTheirRequests) {
  const Operands3 t = MakeOperands();
  v1::SubmitJobRequest request = Request(t);
  std::vector<uint64_t> jobs;
  for (int i = 0; i < 10000; ++i) {
    request.set_request_id(absl::StrCat("r", i));
    jobs.push_back(SubmitOk(request));
    if (i == 1) {
      AnswerPrepared();
      DoneEverywhere(jobs[0]);
      Done(0, jobs[1], absl::InternalError("broken"));
      Done(1, jobs[1], absl::AbortedError("cancelled"));
    } else if (i > 1) {
      ASSERT_TRUE(Cancel(jobs.back()).ok());
    }
  }
  EXPECT_EQ(Get(jobs[0]).status().code(), Code::kNotFound);
  EXPECT_THAT(std::string(Get(jobs[0]).status().message()), HasSubstr("forgotten"));
  EXPECT_THAT(std::string(Get(jobs.back() + 1).status().message()),
              HasSubstr("job 10001 does not exist"));
  clock_.Advance(absl::Minutes(10) - absl::Nanoseconds(1));
  for (int i = 0; i < 10000; ++i) {
    request.set_request_id(absl::StrCat("r", i));
    const absl::StatusOr<v1::Job> job = Submit(request);
    ASSERT_TRUE(job.ok()) << job.status();
    ASSERT_EQ(job->job_id(), jobs[i]);
    ASSERT_EQ(job->request_id(), request.request_id());
    ASSERT_EQ(job->has_end_time(), true);
    ASSERT_EQ(job->state(), i == 0   ? v1::Job::STATE_SUCCEEDED
                            : i == 1 ? v1::Job::STATE_FAILED
                                     : v1::Job::STATE_CANCELLED);
    if (i == 1) {
      EXPECT_EQ(job->error().code(), static_cast<int>(Code::kInternal));
      EXPECT_THAT(job->explanation(), HasSubstr("details are forgotten"));
    }
  }
  request.set_request_id("r0");
  request.set_repeat_count(7);
  EXPECT_EQ(Submit(request).status().code(), Code::kAlreadyExists);
  EXPECT_EQ(Metric("jobs_submitted_total"), 10000);
  clock_.Advance(absl::Nanoseconds(1));
  EXPECT_GT(SubmitOk(request), jobs.back());
}

// Uses no scheduler, which would take a hundred times as long per job.
TEST(History, AHundredThousandJobsLeaveNoMemoryBehind) {
  Loop loop("a test");
  FakeMembers members(1, 1, 1 << 20);
  ManualClock clock;
  Metrics metrics;
  scheduler::History history(&members, &loop, &clock, &metrics, {}, /*journal=*/nullptr);
  const auto run = [&](int jobs) {
    for (int i = 0; i < jobs; ++i) {
      scheduler::Job* job = history.Add(std::make_unique<scheduler::Job>(), {});
      v1::RankReport& report = job->reports[0];
      report.add_steps()->set_end_us(1);
      history.End(job, v1::Job::STATE_SUCCEEDED, absl::OkStatus());
      history.Trim();
    }
  };
  run(2000);
  const size_t before = AllocatedBytes();
  run(100'000);
  EXPECT_LT(AllocatedBytes(), before + (300 << 10));
  loop.Stop();
}

class BoundedRecords : public Records {
 protected:
  static constexpr int kSteps = 1000;  // of a rank
  static constexpr int64_t kStepBytes = 2 * kSteps * 8;
  BoundedRecords() {
    Scheduler::Parts parts = SchedulerTest::Parts();
    parts.history = {.record_bytes = 100 * 6000, .step_bytes = 4 * kStepBytes};
    scheduler_ = std::make_unique<Scheduler>(parts);
  }
  ~BoundedRecords() override { loop_.Stop(); }

  uint64_t RunLarge(const v1::SubmitJobRequest& request) {
    const uint64_t id = SubmitOk(request);
    AnswerPrepared();
    for (int node : {0, 1}) ReportSteps(node, id);
    return id;
  }
  void ReportSteps(int node, uint64_t job) {
    v1::Report report;
    v1::LaunchDone* done = report.mutable_launch_done();
    done->set_job_id(job);
    done->set_began(true);
    v1::RankReport* rank = done->add_ranks();
    rank->set_rank(node);
    for (int i = 0; i < kSteps; ++i) {
      v1::StepTime* step = rank->add_steps();
      step->set_start_us(i);
      step->set_end_us(i + 0.5);
    }
    Report(node, report);
  }
};

TEST_F(BoundedRecords, StepTimesOfTheLastJobsAreKeptAndOnlyGetJobBringsThem) {
  const v1::SubmitJobRequest request = Request(MakeOperands());
  std::vector<uint64_t> jobs;
  for (int i = 0; i < 6; ++i) jobs.push_back(RunLarge(request));
  for (int i = 0; i < 6; ++i) {
    const v1::Job job = *Get(jobs[i]);
    ASSERT_EQ(job.ranks_size(), 2);
    for (const v1::RankReport& rank : job.ranks())
      ASSERT_EQ(rank.steps_size(), i < 2 ? 0 : kSteps) << "job " << i;
  }
  EXPECT_EQ(Get(jobs[5])->ranks(1).steps(999).start_us(), 999);
  EXPECT_EQ(Get(jobs[5])->ranks(1).steps(999).end_us(), 999.5);
  EXPECT_EQ(StartWait(jobs[5]).Get()->ranks(1).steps_size(), 0);
  EXPECT_EQ(Cancel(jobs[5])->ranks(1).steps_size(), 0);
  EXPECT_EQ(Poll(jobs[5], 3).Get()->at(0).job().ranks(1).steps_size(), 0);
}

TEST_F(BoundedRecords, ReportsAfterTheEndAreKeptAndCounted) {
  const v1::SubmitJobRequest request = Request(MakeOperands());
  const uint64_t first = SubmitOk(request), second = SubmitOk(request);
  AnswerPrepared();
  ASSERT_EQ(Launched().size(), 2u);
  ASSERT_TRUE(Cancel(second).ok());
  ASSERT_EQ(State(second), v1::Job::STATE_CANCELLED) << "it has ended for its clients";
  const double before = Metric("job_history_bytes");
  for (uint64_t job : {first, second})
    for (int node : {0, 1}) ReportSteps(node, job);
  EXPECT_EQ(Get(second)->ranks(1).steps_size(), kSteps);
  EXPECT_GT(Metric("job_history_bytes"), before + 2 * kStepBytes);
}

TEST_F(BoundedRecords, OldRecordsAreDroppedBeyondTheByteBound) {
  const v1::SubmitJobRequest request = Request(MakeOperands());
  const uint64_t first = RunLarge(request);
  const double counted = Metric("job_history_bytes");
  const auto allocated = static_cast<double>(AllocatedBytes());
  for (int i = 0; i < 50; ++i) RunLarge(request);
  if (allocated > 0) {
    const double ratio = (static_cast<double>(AllocatedBytes()) - allocated) /
                         (Metric("job_history_bytes") - counted);
    EXPECT_GT(ratio, 0.75);
    EXPECT_LT(ratio, 1.25);
  }
  EXPECT_TRUE(Get(first).ok());
  for (int i = 0; i < 100; ++i) RunLarge(request);
  EXPECT_LE(Metric("job_history_bytes"), 100 * 6000 + 4 * kStepBytes);
  EXPECT_THAT(std::string(Get(first).status().message()),
              HasSubstr("as many as fit into 585.94 KiB"));
}

TEST_F(Records, JobsAreListedNewestFirstPageByPage) {
  const Operands3 t = MakeOperands();
  std::vector<uint64_t> jobs;
  for (int i = 0; i < 5; ++i) jobs.push_back(SubmitOk(Request(t)));
  AnswerPrepared();
  DoneEverywhere(jobs[0]);
  const auto ids = [](const v1::ListJobsResponse& list) {
    std::vector<uint64_t> ids;
    for (const v1::Job& job : list.jobs()) ids.push_back(job.job_id());
    return ids;
  };
  const v1::ListJobsResponse first = List(2, 0);
  EXPECT_THAT(ids(first), ElementsAre(jobs[4], jobs[3]));
  const v1::ListJobsResponse second = List(2, first.next_before_job_id());
  EXPECT_THAT(ids(second), ElementsAre(jobs[2], jobs[1]));
  const v1::ListJobsResponse third = List(2, second.next_before_job_id());
  EXPECT_THAT(ids(third), ElementsAre(jobs[0]));
  EXPECT_EQ(third.next_before_job_id(), 0u);
  EXPECT_EQ(third.jobs(0).state(), v1::Job::STATE_SUCCEEDED);
  EXPECT_EQ(third.jobs(0).events_size(), 0);
  EXPECT_EQ(third.jobs(0).ranks(0).steps_size(), 0);
  EXPECT_EQ(List(0, 0).jobs_size(), 5);
  EXPECT_EQ(List(5, 0).next_before_job_id(), 0u);
  EXPECT_EQ(List(0, 1).jobs_size(), 0);
}

TEST_F(Records, ADrainingJobIsKeptAndLaterOnesAreDropped) {
  const v1::SubmitJobRequest request = Request(MakeOperands());
  const uint64_t running = SubmitOk(request), draining = SubmitOk(request);
  AnswerPrepared();
  ASSERT_THAT(Launched(), ElementsAre(running, draining));
  ASSERT_TRUE(Cancel(draining).ok());
  ASSERT_EQ(State(draining), v1::Job::STATE_CANCELLED) << "it has ended for its clients";
  std::vector<uint64_t> queued;
  for (int i = 0; i < 1100; ++i) {
    queued.push_back(SubmitOk(request));
    ASSERT_TRUE(Cancel(queued.back()).ok());
  }
  EXPECT_EQ(Get(queued[10]).status().code(), Code::kNotFound);
  EXPECT_TRUE(Get(queued[200]).ok());
  EXPECT_TRUE(Get(draining).ok());
  for (uint64_t job : {running, draining}) DoneEverywhere(job);
  ASSERT_TRUE(Cancel(SubmitOk(request)).ok());
  EXPECT_EQ(Get(draining).status().code(), Code::kNotFound);
}

TEST_F(Records, AListOfLargeRecordsFitsIntoAMessage) {
  const v1::SubmitJobRequest request = Request(MakeOperands());
  const auto fail = [&](size_t lanes, size_t error_bytes) {
    const uint64_t id = SubmitOk(request);
    AnswerPrepared();
    for (int node : {0, 1}) {
      v1::Report report;
      v1::LaunchDone* done = report.mutable_launch_done();
      done->set_job_id(id);
      *done->mutable_error() = ToProto(absl::InternalError(std::string(error_bytes, 'x')));
      v1::RankReport* rank = done->add_ranks();
      rank->set_rank(node);
      for (size_t lane = 0; lane < lanes; ++lane)
        rank->mutable_progress()->add_lanes()->mutable_step()->set_text(std::string(100, 'y'));
      Report(node, report);
    }
    return id;
  };
  uint64_t last = 0;
  for (int i = 0; i < 60; ++i) last = fail(/*lanes=*/600, 10);
  v1::ListJobsResponse list = List(100, 0);
  EXPECT_EQ(list.jobs_size(), 60);
  EXPECT_FALSE(list.jobs(0).ranks(0).has_progress());
  EXPECT_LT(list.ByteSizeLong(), 1u << 20);
  EXPECT_EQ(Get(last)->ranks(1).progress().lanes_size(), 600) << "the record keeps it";

  for (int i = 0; i < 60; ++i) fail(/*lanes=*/0, 100'000);
  int jobs = 0, pages = 0;
  for (uint64_t before = 0; pages == 0 || before != 0; ++pages) {
    list = List(1000, before);
    EXPECT_LT(list.ByteSizeLong(), static_cast<size_t>(kMaxMessageBytes));
    jobs += list.jobs_size();
    before = list.next_before_job_id();
  }
  EXPECT_EQ(jobs, 120);
  EXPECT_GT(pages, 1);
}

TEST_F(Records, AListShowsTheErrorOfAJob) {
  const uint64_t id = SubmitOk(Request(MakeOperands()));
  AnswerPrepared();
  Done(0, id, absl::DataLossError("the cause"));
  Done(1, id, absl::AbortedError("cancelled"));
  const v1::ListJobsResponse list = List(1, 0);
  ASSERT_EQ(list.jobs(0).state(), v1::Job::STATE_FAILED);
  EXPECT_EQ(list.jobs(0).error().code(), static_cast<int>(Code::kDataLoss));
  EXPECT_THAT(list.jobs(0).error().message(), HasSubstr("node n0: the cause"));
}

TEST_F(Records, APollReturnsLaterEventsAndTheEndedJob) {
  const uint64_t id = SubmitOk(Request(MakeOperands()));
  const Events begun = *Poll(id, 0).Get();
  ASSERT_EQ(begun.size(), 1u);
  EXPECT_EQ(begun[0].event().state(), v1::Job::STATE_QUEUED);
  EXPECT_FALSE(begun[0].has_job());
  const Answer<Events> next = Poll(id, 1), end = Poll(id, 2);
  EXPECT_FALSE(next.has());
  AnswerPrepared();
  ASSERT_EQ(next.Get()->size(), 1u);
  EXPECT_EQ(next.Get()->at(0).event().number(), 2);
  EXPECT_FALSE(end.has());
  DoneEverywhere(id);
  ASSERT_EQ(end.Get()->size(), 1u);
  EXPECT_EQ(end.Get()->at(0).event().state(), v1::Job::STATE_SUCCEEDED);
  EXPECT_EQ(end.Get()->at(0).job().state(), v1::Job::STATE_SUCCEEDED);
  EXPECT_EQ(end.Get()->at(0).job().ranks_size(), 2);
  EXPECT_EQ(Poll(id, 0).Get()->size(), 3u);
  EXPECT_FALSE(Poll(id, 0).Get()->at(0).has_job());
  ASSERT_EQ(Poll(id, 3).Get()->size(), 1u);
  EXPECT_FALSE(Poll(id, 3).Get()->at(0).has_event());
  EXPECT_TRUE(Poll(id, 3).Get()->at(0).has_job());
  EXPECT_EQ(Poll(id + 1, 0).Get().status().code(), Code::kNotFound);
}

TEST_F(Records, APollEndsAtItsDeadlineOrWithItsCaller) {
  const uint64_t id = SubmitOk(Request(MakeOperands()));
  const Answer<Events> late = Poll(id, 1, Deadline::After(absl::Seconds(10), clock_.Nanos()));
  Advance(absl::Seconds(10));
  EXPECT_EQ(late.Get().status().code(), Code::kDeadlineExceeded);
  CallContext gone;
  Answer<Events> answer;
  v1::WatchJobRequest request;
  request.set_job_id(id);
  request.set_after_event(1);
  Do([&] { scheduler_->PollJob(gone, request, answer.reply()); });
  gone.cancel->Cancel(absl::CancelledError("hung up"));
  EXPECT_FALSE(Poll(id, 1).has());
  EXPECT_EQ(answer.Get().status().message(), "hung up");
}

TEST_F(Records, AListLeavesOutTheTimesOfEpochsAndSteps) {
  const uint64_t id = SubmitOk(Request(MakeOperands()));
  AnswerPrepared();
  DoneEverywhere(id);
  EXPECT_EQ(Get(id)->ranks(0).epoch_us_size(), 1);
  const v1::ListJobsResponse list = List(1, 0);
  ASSERT_EQ(list.jobs(0).ranks_size(), 2);
  EXPECT_EQ(list.jobs(0).ranks(0).epoch_us_size(), 0);
  EXPECT_EQ(list.jobs(0).ranks(0).steps_size(), 0);
}

TEST_F(Records, ARecordHasThePlanAndTheTimes) {
  for (WorldRank& rank : members_.mutable_ranks()) rank.device = "cpu: a fine one";
  const Operands3 t = MakeOperands();
  v1::SubmitJobRequest request = Request(t);
  request.set_session_id("s1");
  request.mutable_timeout()->set_seconds(7);
  request.mutable_options()->set_algorithm("serial");
  const uint64_t serial = SubmitOk(request);
  AnswerPrepared();
  for (const auto& [node, command] : Take(v1::Command::kLaunchJob)) {
    v1::Report report;
    report.mutable_launch_done()->set_job_id(command.launch_job().job_id());
    report.mutable_launch_done()->set_began(true);
    v1::RankReport* rank = report.mutable_launch_done()->add_ranks();
    rank->set_rank(node);
    rank->add_epoch_us(100);
    rank->add_epoch_us(40 + node);
    Report(node, report);
  }
  const v1::Job job = *Get(serial);
  EXPECT_EQ(job.m(), 64);
  EXPECT_EQ(job.n(), 48);
  EXPECT_EQ(job.k(), 32);
  EXPECT_EQ(job.dtype(), v1::DTYPE_F32);
  EXPECT_EQ(job.session_id(), "s1");
  EXPECT_EQ(job.timeout().seconds(), 7);
  EXPECT_EQ(job.engine(), "cpu: a fine one");
  EXPECT_EQ(job.transport(), "a wire");
  EXPECT_EQ(job.schedule(), "serial");
  EXPECT_EQ(job.figures().time_us(), 41);
  EXPECT_EQ(job.figures().flop_count(), 2.0 * 64 * 48 * 32);
  ASSERT_EQ(job.figures().moved_size(), 1);
  EXPECT_EQ(job.figures().moved(0).path(), "network");
  EXPECT_EQ(job.figures().moved(0).bytes(), 64 * 32 * 4);  // each half of A to the other rank
}

TEST_F(Records, AJobFarFromItsPredictionSaysSoAndIsCounted) {
  machine_ = MeasuredMachine(1, /*latency_ns=*/10e6);
  const v1::SubmitJobRequest request = Request(MakeOperands());
  const v1::Job first = Timed(request, 1);
  EXPECT_EQ(LastMessage(first), "done") << "a first epoch is not compared";
  const double predicted_us = first.predicted_us();
  ASSERT_GT(predicted_us, 1000);
  for (const double ratio : {0.51, 1.0, 1.99})
    EXPECT_EQ(LastMessage(Timed(request, ratio * predicted_us)), "done") << ratio;
  EXPECT_EQ(Metric("jobs_slower_than_predicted_total"), 0);
  EXPECT_EQ(Metric("jobs_faster_than_predicted_total"), 0);
  const std::string predicted = absl::StrCat("predicted ", FormatMicros(predicted_us), "; ");
  EXPECT_THAT(LastMessage(Timed(request, 2.01 * predicted_us)),
              HasSubstr("over twice the " + predicted + "if the world has changed, measure"));
  EXPECT_EQ(Metric("jobs_slower_than_predicted_total"), 1);
  EXPECT_THAT(LastMessage(Timed(request, 0.31 * predicted_us)),
              HasSubstr("0.31 of the " + predicted + "if the world has changed, measure it again"));
  EXPECT_EQ(Metric("jobs_faster_than_predicted_total"), 1);
  EXPECT_EQ(Metric("jobs_slower_than_predicted_total"), 1);
}

TEST_F(Records, AShortJobIsNotCalledFast) {
  machine_ = MeasuredMachine(1);
  const v1::SubmitJobRequest request = Request(MakeOperands());
  const double predicted_us = Timed(request, 1).predicted_us();
  ASSERT_GT(predicted_us, 0);
  ASSERT_LT(predicted_us, 1000);
  EXPECT_EQ(LastMessage(Timed(request, 0.1 * predicted_us)), "done");
  EXPECT_EQ(Metric("jobs_faster_than_predicted_total"), 0);
}

TEST_F(Records, ADifferentLaterMeasurementMarksTheBaselineOfEarlierJobs) {
  v1::SubmitJobRequest request = Request(MakeOperands());
  const Problem problem = *ParseProblem(kSpec, *ParseMesh("x=2"), {64, 48, 32}, DType::kF32);
  // Runs a job whose multiplies, if each rank has one, take `gemm_us` after a gather of 1 ms; or a
  // transfers-only job that takes `transfers_us`.
  const auto run = [&](const std::string& algorithm, double gemm_us, double transfers_us = 0) {
    request.mutable_options()->set_algorithm(algorithm);
    request.mutable_options()->set_transfers_only(transfers_us > 0);
    const uint64_t id = SubmitOk(request);
    AnswerPrepared();
    const PlanOptions options = FromProto(Get(id)->options());
    const ScheduleFacts facts = FactsOf(problem, {{0, 1}}, *Plan(problem, {{0, 1}}, options));
    for (int node : {0, 1}) {
      v1::Report report;
      report.mutable_launch_done()->set_job_id(id);
      v1::RankReport* rank = report.mutable_launch_done()->add_ranks();
      rank->set_rank(node);
      rank->add_epoch_us(transfers_us > 0 ? transfers_us : 5000);
      for (int i = 0; i < facts.step_counts[node]; ++i) {
        v1::StepTime* step = rank->add_steps();
        const bool multiply = i == facts.multiplies[node];
        step->set_start_us(multiply ? 1000 : 0);
        step->set_end_us(multiply ? 1000 + gemm_us : 1);
      }
      Report(node, report);
    }
    return id;
  };
  run("serial", 9000);  // packs B, so it is not a baseline
  const uint64_t serial = run("serial", 2000), ring = run("ring", 0);
  EXPECT_EQ(Get(ring)->figures().baseline_job_id(), serial);
  EXPECT_EQ(Get(ring)->figures().gemm_us(), 2000);
  EXPECT_EQ(Get(ring)->figures().baseline_stale(), "");
  run("serial", 2100);
  EXPECT_EQ(Get(ring)->figures().baseline_stale(), "");
  run("serial", 4000);
  EXPECT_THAT(Get(ring)->figures().baseline_stale(), HasSubstr("job 5 measured T_gemm 4 ms and"));
  EXPECT_EQ(Get(serial)->figures().baseline_stale(), "") << "its own";
  const uint64_t before = run("ring", 0);
  run("hierarchical_peer", 0, 900);
  EXPECT_EQ(Get(before)->figures().baseline_stale(), "");
  const uint64_t gather = run("hierarchical_peer", 0, 400), after = run("ring", 0);
  EXPECT_EQ(Get(gather)->figures().gather_us(), 400);
  EXPECT_EQ(Get(before)->figures().gather_us(), 1000);
  EXPECT_EQ(Get(before)->figures().baseline_stale(),
            "job 8 measured T_gemm 4 ms and T_ag 400 us since");
  EXPECT_EQ(Get(after)->figures().gather_us(), 400);
  EXPECT_EQ(Get(after)->figures().baseline_stale(), "");
  members_.generation_value = 2;
  const uint64_t later = run("ring", 0);
  EXPECT_EQ(Get(later)->figures().baseline_job_id(), 5u);
  EXPECT_EQ(Get(later)->figures().baseline_stale(), "nodes have come or gone since");
}

TEST_F(Records, ThePathsAreThoseOfAllNodesOnceThePlanIsPrepared) {
  const v1::SubmitJobRequest request = Request(MakeOperands());
  const uint64_t first = SubmitOk(request);
  for (const auto& [node, command] : Take(v1::Command::kPreparePlan)) {
    EXPECT_THAT(Get(first)->device_paths(), IsEmpty());
    v1::Report report;
    v1::PlanPrepared* prepared = report.mutable_plan_prepared();
    prepared->set_plan_id(command.prepare_plan().plan_id());
    prepared->set_plan_hash(command.prepare_plan().plan_hash());
    prepared->add_device_paths(node == 0 ? "through pinned memory" : "peer access");
    prepared->add_device_paths("staged to the network");
    prepared->add_device_products(node == 0 ? "cuBLASLt: products of f32" : "agmm_product");
    Report(node, report);
  }
  EXPECT_THAT(Get(first)->device_products(),
              ElementsAre("agmm_product", "cuBLASLt: products of f32"));
  const auto all = ElementsAre("peer access", "staged to the network", "through pinned memory");
  EXPECT_THAT(Get(first)->device_paths(), all);
  DoneEverywhere(first);
  EXPECT_THAT(Get(first)->device_paths(), all);
  // A job on a plan that exists.
  EXPECT_THAT(Submit(request)->device_paths(), all);
}

TEST_F(Records, ARunReceivesOnlyItsOwnJobsEnd) {
  const auto run = [&](const v1::SubmitJobRequest& request) {
    Answer<v1::Job> answer;
    Do([&] { scheduler_->RunJob({}, request, answer.reply()); });
    return answer;
  };
  v1::SubmitJobRequest request = Request(MakeOperands());
  request.set_request_id("r");
  const Answer<v1::Job> first = run(request);
  AnswerPrepared();
  const std::vector<uint64_t> launched = Launched();
  ASSERT_EQ(launched.size(), 1u);
  // The same request is the same job, even from another caller and by SubmitJob.
  const Answer<v1::Job> again = run(request);
  EXPECT_EQ(Submit(request)->job_id(), launched[0]);
  EXPECT_FALSE(first.has());
  EXPECT_FALSE(again.has());
  DoneEverywhere(launched[0]);
  for (const auto& answer : {first, again, run(request)}) {
    ASSERT_TRUE(answer.Get().ok());
    EXPECT_EQ(answer.Get()->job_id(), launched[0]);
    EXPECT_EQ(answer.Get()->state(), v1::Job::STATE_SUCCEEDED);
    EXPECT_GT(answer.Get()->figures().time_us(), 0);
    EXPECT_EQ(answer.Get()->ranks_size() + answer.Get()->events_size(), 0);
  }
  EXPECT_EQ(Get(launched[0])->ranks_size(), 2) << "the record keeps them";
  EXPECT_EQ(Get(launched[0])->events_size(), 3);
  request.set_spec("A[M_z, K] * B[K, N_x] -> C[M, N_x]");
  EXPECT_EQ(run(request).Get().status().code(), Code::kAlreadyExists);
  request.set_request_id("other");
  EXPECT_EQ(run(request).Get().status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace agmm
