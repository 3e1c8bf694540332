// Jobs through the public library: waits, callbacks, futures, watches, and how they end.
#include <google/protobuf/text_format.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "absl/time/clock.h"
#include "agmm/v1/tuning.pb.h"
#include "tests/client/library/library_fixture.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using LibraryJob = LibraryJobTest;

TEST_F(LibraryJob, AProductIsExact) {
  const JobHandle job = Submit(*client_, Request());
  const Outcome done = job.Wait();
  ASSERT_TRUE(done.ok()) << done.status().ToString();
  EXPECT_EQ(done->id, job.id());
  EXPECT_EQ(done->state, JobState::kSucceeded);
  EXPECT_EQ(done->m, kM);
  EXPECT_EQ(done->n, kN);
  EXPECT_EQ(done->k, kK);
  EXPECT_NE(done->algorithm, "");
  EXPECT_GE(*done->end_time, *done->create_time);
  ExpectExact(*client_);
}

TEST_F(LibraryJob, FiguresReportTheTime) {
  const Outcome done = Submit(*client_, Request()).Wait();
  ASSERT_TRUE(done.ok()) << done.status().ToString();
  EXPECT_GT(done->figures.time_us, 0);
  EXPECT_EQ(done->figures.flop_count, 2. * kM * kN * kK);
}

TEST_F(LibraryJob, ATraceIsThatOfAgmmctl) {
  const JobHandle job = Submit(*client_, Request());
  ASSERT_TRUE(job.Wait().ok());
  const Result<std::string> trace = job.Trace();
  ASSERT_TRUE(trace.ok()) << trace.status().ToString();
  EXPECT_THAT(*trace, StartsWith("{\"schema\":\"agmm.trace.v1\",\"displayTimeUnit\":\"ms\""));
  EXPECT_THAT(*trace, HasSubstr("\"cat\":\"multiply\""));
  const std::string file = world_.Path("trace.json");
  const Ran ran = world_.Ctl(0, {"job", "trace", std::to_string(job.id()), "--out", file});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(*trace + "\n", ReadFile(file));
}

TEST_F(LibraryJob, ATraceOfAQueuedJobIsRefused) {
  const JobHandle running = Submit(*client_, LongRequest());
  AwaitRunning(running);
  // A job runs from its launch on, and has times once a worker has taken it.
  EXPECT_TRUE(Eventually([&] {
    const Result<std::string> trace = running.Trace();
    return trace.ok() && trace->find("\"state\":\"running\"") != std::string::npos;
  }));
  const JobHandle queued = Submit(*client_, Request());
  const Status status = queued.Trace().status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr("it is queued; trace it once it runs"));
  EXPECT_TRUE(running.Cancel().ok());
}

TEST_F(LibraryJob, AJobRunsTheTunedPlanUnlessItIgnoresIt) {
  v1::StoreTuningRequest store;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"pb(plans {
             spec: "A[M_x, K] * B[K, N_x] -> C[M, N_x]"
             dtypes: [ DTYPE_F32, DTYPE_F32, DTYPE_F32 ]
             mesh: "x=2"
             ranks_per_node: 2
             m: 50
             n: 40
             k: 30
             options { algorithm: "serial" chunk_count: 1 k_chunk_count: 1 split: "N=x" }
             time_us: 1
             date: "2026-11-27"
           })pb",
      &store));
  const auto stored = world_.Connect(0)->StoreTuning(store);
  ASSERT_TRUE(stored.ok()) << stored.status();
  JobRequest request = Request();
  const Outcome tuned = Submit(*client_, request).Wait();
  ASSERT_TRUE(tuned.ok()) << tuned.status().ToString();
  EXPECT_THAT(tuned->explanation, StartsWith("tuned: serial"));
  request.ignore_tuning = true;
  const Outcome predicted = Submit(*client_, request).Wait();
  ASSERT_TRUE(predicted.ok()) << predicted.status().ToString();
  EXPECT_THAT(predicted->explanation, StartsWith("auto takes"));
}

TEST_F(LibraryJob, ASubmitReturnsTheErrorOfTheDaemon) {
  JobRequest request = Request();
  request.a = "nobody";
  EXPECT_EQ(client_->Submit(request).status().code(), StatusCode::kNotFound);
  request = Request();
  request.spec = "A[M_z, K] * B[K, N_x] -> C[M, N_x]";
  EXPECT_EQ(client_->Submit(request).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(LibraryJob, ACallbackRunsOnceOnAnotherThread) {
  std::promise<std::thread::id> ran;
  std::atomic<int> runs = 0;
  Submit(*client_, Request()).Then([&](const Outcome& done) {
    EXPECT_TRUE(done.ok()) << done.status().ToString();
    if (++runs == 1) ran.set_value(std::this_thread::get_id());
  });
  EXPECT_NE(ran.get_future().get(), std::this_thread::get_id());
  client_.reset();
  EXPECT_EQ(runs, 1);
}

TEST_F(LibraryJob, ACallbackMaySubmitAndWait) {
  std::promise<Outcome> second;
  Submit(*client_, Request()).Then([&](const Outcome&) {
    second.set_value(Submit(*client_, Request()).Wait());
  });
  std::future<Outcome> future = second.get_future();
  EXPECT_TRUE(Get(future).ok());
}

TEST_F(LibraryJob, ManyPendingJobsTakeNoThreads) {
  const auto threads = [] {
    int count = 0;
    for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
      ++count;
    return count;
  };
  const JobHandle job = Submit(*client_, LongRequest());
  const int before = threads();
  std::vector<std::future<Outcome>> futures;
  for (int i = 0; i < 500; ++i) futures.push_back(job.Done());
  std::atomic<int> ended = 0;
  for (int i = 0; i < 500; ++i)
    job.Watch([](const JobEvent&) { return true; }, [&](const Outcome&) { ++ended; });
  AwaitRunning(job);
  EXPECT_LT(threads(), before + 50);
  EXPECT_TRUE(job.Cancel().ok());
  for (std::future<Outcome>& future : futures)
    EXPECT_EQ(Get(future).status().code(), StatusCode::kCancelled);
  EXPECT_TRUE(Eventually([&] { return ended == 500; }));
}

TEST_F(LibraryJob, AWatchReportsEachEventOnceThenTheEnd) {
  const JobHandle job = Submit(*client_, Request());
  std::vector<int64_t> numbers;
  std::vector<JobState> states;
  std::promise<Outcome> end;
  job.Watch(
      [&](const JobEvent& event) {
        numbers.push_back(event.number);
        states.push_back(event.state);
        return true;
      },
      [&](const Outcome& outcome) { end.set_value(outcome); });
  std::future<Outcome> ended = end.get_future();
  const Outcome outcome = Get(ended);
  ASSERT_TRUE(outcome.ok()) << outcome.status().ToString();
  EXPECT_THAT(states, ElementsAre(JobState::kQueued, JobState::kRunning, JobState::kSucceeded));
  EXPECT_THAT(numbers, ElementsAre(1, 2, 3));

  // After the second event comes the third, and after the third the end.
  for (const int64_t after : {2, 3}) {
    std::promise<Outcome> again;
    int events = 0;
    job.Watch(
        [&](const JobEvent& event) {
          EXPECT_GT(event.number, after);
          return ++events > 0;
        },
        [&](const Outcome& o) { again.set_value(o); }, after);
    ended = again.get_future();
    EXPECT_TRUE(Get(ended).ok());
    EXPECT_EQ(events, 3 - after);
  }
}

TEST_F(LibraryJob, AWatchEndsWhenItsCallbackReturnsFalse) {
  const JobHandle job = Submit(*client_, LongRequest());
  int events = 0;
  std::promise<Outcome> end;
  job.Watch([&](const JobEvent&) { return ++events < 2; },
            [&](const Outcome& outcome) { end.set_value(outcome); });
  std::future<Outcome> ended = end.get_future();
  EXPECT_EQ(Get(ended).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(events, 2);
  EXPECT_EQ(job.Info()->state, JobState::kRunning);
  EXPECT_TRUE(job.Cancel().ok());
}

TEST_F(LibraryJob, ACancelledJobFailsWithCancelled) {
  const JobHandle job = Submit(*client_, LongRequest());
  AwaitRunning(job);
  std::future<Outcome> done = job.Done();
  EXPECT_TRUE(job.Cancel().ok());
  const Outcome outcome = job.Wait();
  EXPECT_EQ(outcome.status().code(), StatusCode::kCancelled);
  EXPECT_EQ(outcome.status().reason(), "CANCELLED");
  EXPECT_EQ(Get(done).status().code(), StatusCode::kCancelled);
  const Result<JobInfo> info = job.Info();
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->state, JobState::kCancelled);
  EXPECT_TRUE(job.Cancel().ok());
}

TEST_F(LibraryJob, AWaitThatRunsOutLeavesTheJobAlone) {
  const JobHandle job = Submit(*client_, LongRequest());
  const Status status = job.Wait(Milliseconds(50)).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.reason(), "");
  std::future<Outcome> future = job.Done(Milliseconds(50));
  const Status done = Get(future).status();
  EXPECT_EQ(done.code(), StatusCode::kDeadlineExceeded);
  for (const Status& each : {status, done}) {
    EXPECT_THAT(each.message(),
                HasSubstr("job " + std::to_string(job.id()) + " had not ended after a wait of "));
    EXPECT_THAT(each.message(), HasSubstr("ms, and goes on; wait again, or cancel it"));
  }
  EXPECT_NE(job.Info()->state, JobState::kFailed);
  EXPECT_TRUE(job.Cancel().ok());
}

TEST_F(LibraryJob, AJobsOwnDeadlineEndsIt) {
  JobRequest request = LongRequest();
  request.timeout = Milliseconds(100);
  const Status status = Submit(*client_, request).Wait(kPatienceMs).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.reason(), "DEADLINE");
}

TEST_F(LibraryJob, ASubmitOverABrokenConnectionIsOneJob) {
  const auto proxy = MakeProxy();
  const auto client = Connect(/*session=*/false, proxy->endpoint());
  ASSERT_TRUE(client->Find("A").ok());
  // The answer to the submit is lost.
  proxy->HoldAnswers();
  std::optional<Result<JobHandle>> job;
  std::thread submitter([&] {
    JobRequest request = Request();
    request.mesh = "x=2";  // a single call, which the proxy breaks
    job = client->Submit(request);
  });
  EXPECT_TRUE(Eventually([&] { return client_->Jobs()->size() == 1; }));
  proxy->Cut();
  submitter.join();
  ASSERT_TRUE(job->ok()) << job->status().ToString();
  EXPECT_TRUE((*job)->Wait().ok());
  const auto jobs = client_->Jobs();
  ASSERT_TRUE(jobs.ok());
  ASSERT_EQ(jobs->size(), 1u);
  EXPECT_EQ(jobs->front().id, (*job)->id());
}

TEST_F(LibraryJob, WaitsAndWatchesResumeAfterABrokenConnection) {
  const auto proxy = MakeProxy();
  const auto client = Connect(/*session=*/false, proxy->endpoint());
  const JobHandle job = Submit(*client, LongRequest());
  std::future<Outcome> done = job.Done();
  std::vector<int64_t> numbers;
  std::promise<Outcome> end;
  std::promise<void> running;
  job.Watch(
      [&](const JobEvent& event) {
        numbers.push_back(event.number);
        if (event.state == JobState::kRunning) running.set_value();
        return true;
      },
      [&](const Outcome& outcome) { end.set_value(outcome); });
  running.get_future().get();
  proxy->Cut();
  ASSERT_TRUE(client->Find("A").ok());  // through a new connection
  EXPECT_TRUE(client_->FindJob(job.id())->Cancel().ok());
  EXPECT_EQ(Get(done).status().reason(), "CANCELLED");
  std::future<Outcome> ended = end.get_future();
  EXPECT_EQ(Get(ended).status().reason(), "CANCELLED");
  EXPECT_THAT(numbers, ElementsAre(1, 2, 3));
}

TEST_F(LibraryJob, AKilledDaemonEndsPendingCalls) {
  const auto of_session = Connect(/*session=*/true);
  const JobHandle job = Submit(*client_, LongRequest());
  std::future<Outcome> done = job.Done(), done_of_session = of_session->FindJob(job.id())->Done();
  std::promise<Outcome> end;
  job.Watch([](const JobEvent&) { return true; },
            [&](const Outcome& outcome) { end.set_value(outcome); });
  AwaitRunning(job);
  world_.Kill(0);
  EXPECT_EQ(Get(done_of_session).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(Get(done).status().code(), StatusCode::kUnavailable);
  std::future<Outcome> ended = end.get_future();
  EXPECT_EQ(Get(ended).status().code(), StatusCode::kUnavailable);
}

TEST_F(LibraryJob, AHandleMayOutliveItsClient) {
  const JobHandle job = Submit(*client_, LongRequest());
  std::future<Outcome> done = job.Done();
  std::promise<Outcome> end;
  job.Watch([](const JobEvent&) { return true; },
            [&](const Outcome& outcome) { end.set_value(outcome); });
  std::optional<Outcome> waited;
  std::thread waiter([&] { waited = job.Wait(); });
  AwaitRunning(job);
  client_.reset();
  waiter.join();
  EXPECT_FALSE(waited->ok());
  std::future<Outcome> ended = end.get_future();
  EXPECT_EQ(Get(done).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(Get(ended).status().code(), StatusCode::kCancelled);

  EXPECT_EQ(job.Wait().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(job.Cancel().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(job.Info().status().message(), HasSubstr("the client of job"));
  std::future<Outcome> late = job.Done();
  EXPECT_EQ(Get(late).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(JobHandle().Wait().status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(LibraryJob, TheJobsOfASessionEndWithTheirClient) {
  uint64_t id = 0;
  {
    const auto client = Connect(/*session=*/true);
    id = Submit(*client, LongRequest()).id();
  }
  EXPECT_TRUE(
      Eventually([&] { return client_->FindJob(id)->Info()->state == JobState::kCancelled; }));
}

TEST_F(LibraryJob, EightThreadsShareAClient) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([this, thread] {
      const std::string suffix = std::to_string(thread);
      for (int round = 0; round < 10; ++round) {
        const int seed = 10 * thread + round;
        ASSERT_NO_FATAL_FAILURE(PutAB(*client_, suffix, seed));
        const JobHandle job = Submit(*client_, Request(suffix));
        std::future<Outcome> done = job.Done();
        ASSERT_NO_FATAL_FAILURE(ExpectExact(*client_, suffix, seed));
        const Outcome outcome = Get(done);
        EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace agmm
