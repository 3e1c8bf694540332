// Jobs that the library submits and awaits in one call: Client::Run.
#include <atomic>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/client/library/library_fixture.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

class LibraryRun : public LibraryJobTest {
 protected:
  static std::future<Outcome> Start(Client& client, const JobRequest& request,
                                    Milliseconds timeout = {}) {
    auto promise = std::make_shared<std::promise<Outcome>>();
    client.Run(
        request, [promise](const Outcome& outcome) { promise->set_value(outcome); }, timeout);
    return promise->get_future();
  }
};

TEST_F(LibraryRun, AProductIsExactAndEqualsTheResultOfWait) {
  const Outcome ran = client_->Run(Request());
  ASSERT_TRUE(ran.ok()) << ran.status().ToString();
  ExpectExact(*client_);
  const auto job = client_->FindJob(ran->id);
  ASSERT_TRUE(job.ok());
  const Outcome waited = job->Wait();
  ASSERT_TRUE(waited.ok());
  EXPECT_EQ(ran->plan_hash, waited->plan_hash);
  EXPECT_EQ(ran->figures.time_us, waited->figures.time_us);
  EXPECT_EQ(ran->end_time, waited->end_time);
  EXPECT_EQ(ran->explanation, waited->explanation);
  EXPECT_EQ(ran->m, kM);
}

TEST_F(LibraryRun, CHasTheTypeThatTheSpecGivesIt) {
  const std::vector<float> a = Integers(kM * kK, 1), b = Integers(kK * kN, 2);
  TensorSpec spec_a = SpecA(), spec_b = SpecB();
  spec_a.type = spec_b.type = ElementType::kBF16;
  const std::vector<BFloat16> narrow_a(a.begin(), a.end()), narrow_b(b.begin(), b.end());
  ASSERT_TRUE(client_->Put("A", spec_a, narrow_a.data(), narrow_a.size() * 2).ok());
  ASSERT_TRUE(client_->Put("B", spec_b, narrow_b.data(), narrow_b.size() * 2).ok());
  JobRequest request = Request();
  request.spec += ":f32";
  const Outcome ran = client_->Run(request);
  ASSERT_TRUE(ran.ok()) << ran.status().ToString();
  EXPECT_EQ(ran->type, ElementType::kBF16);
  EXPECT_EQ(ran->result_type, ElementType::kF32);
  ExpectExact(*client_);  // as f32
}

TEST_F(LibraryRun, ErrorsAreThoseOfSubmitAndWait) {
  JobRequest request = Request();
  request.a = "nobody";
  EXPECT_EQ(client_->Run(request).status().code(), StatusCode::kNotFound);
  request = Request();
  request.spec = "A[M_z, K] * B[K, N_x] -> C[M, N_x]";
  EXPECT_EQ(client_->Run(request).status().code(), StatusCode::kInvalidArgument);
  request = LongRequest();
  request.timeout = Milliseconds(50);
  const Status late = client_->Run(request).status();
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late.reason(), "DEADLINE") << "the job's own";
}

TEST_F(LibraryRun, AStopRequestCancelsTheJob) {
  for (const bool early : {false, true}) {
    std::stop_source stop;
    if (early) stop.request_stop();
    std::future<Outcome> future =
        client_->RunAsync(LongRequest(), /*timeout=*/{}, stop.get_token());
    if (!early) {
      const absl::Time end = absl::Now() + kPatience;
      const auto running = [&] {
        const auto jobs = client_->Jobs(1);
        return jobs.ok() && !jobs->empty() && jobs->front().state == JobState::kRunning;
      };
      while (!running()) ASSERT_LT(absl::Now(), end);
      stop.request_stop();
    }
    const Status cancelled = Get(future).status();
    EXPECT_EQ(cancelled.code(), StatusCode::kCancelled) << cancelled.ToString();
    EXPECT_EQ(cancelled.reason(), "CANCELLED") << "by the daemon";
    const auto jobs = client_->Jobs(1);
    ASSERT_TRUE(jobs.ok());
    EXPECT_EQ(jobs->front().state, JobState::kCancelled);
  }
  ASSERT_TRUE(client_->Run(Request()).ok());
}

TEST_F(LibraryRun, AStopRequestRightBeforeACloseCancelsTheJob) {
  const auto client = Connect();
  std::stop_source stop;
  std::future<Outcome> future = client->RunAsync(LongRequest(), /*timeout=*/{}, stop.get_token());
  EXPECT_TRUE(Eventually([&] { return client_->Jobs(1)->size() == 1; }));
  stop.request_stop();
  client->Close();
  EXPECT_EQ(Get(future).status().code(), StatusCode::kCancelled);
  // The nodes end the job after the cancellation was accepted.
  EXPECT_TRUE(Eventually([&] { return client_->Jobs(1)->front().state == JobState::kCancelled; }));
}

// A client that connects to node 0 before node 1 has joined, so it does not know the number of
// devices, which a run without a mesh needs.
class LibraryRunBeforeTheWorld : public ::testing::Test {
 protected:
  void SetUp() override {
    world_.Start(0);
    proxy_.emplace(std::stoi(world_.endpoint(0).substr(sizeof("127.0.0.1:") - 1)));
    ASSERT_TRUE(Eventually([&] {
      auto connected = Client::Connect({.endpoint = proxy_->endpoint()});
      if (connected.ok()) client_ = *std::move(connected);
      return client_ != nullptr;
    }));
  }

  World world_{{.nodes = 2}};
  std::optional<Proxy> proxy_;
  std::unique_ptr<Client> client_;
};

TEST_F(LibraryRunBeforeTheWorld, WaitsInTheBackgroundUntilAStop) {
  proxy_->HoldAnswers();
  std::stop_source stop;
  std::future<Outcome> run = client_->RunAsync(
      {.spec = "A[M_x, K] * B[K, N_x] -> C[M, N_x]", .a = "A", .b = "B", .c = "C"},
      /*timeout=*/{}, stop.get_token());
  EXPECT_EQ(run.wait_for(kWhile), std::future_status::timeout);
  stop.request_stop();
  ASSERT_EQ(run.wait_for(kPatienceMs), std::future_status::ready);
  EXPECT_EQ(run.get().status().code(), StatusCode::kCancelled);
}

TEST_F(LibraryRunBeforeTheWorld, KeepsTheOrderOfRuns) {
  world_.Start(1);
  ASSERT_TRUE(world_.WaitReady(0));
  auto other = Client::Connect({.endpoint = world_.endpoint(0)}).value();
  const float value = 1;
  ASSERT_TRUE(other->Put("T0", {.rows = 1, .cols = 1, .sharding = "[M, N]"}, &value, 4).ok());
  proxy_->HoldAnswers();
  std::vector<std::future<Outcome>> runs;
  for (int i = 0; i < 16; ++i) {
    JobRequest next = {.spec = "A[M, N] -> B[M, N]",
                       .tensors = {{"A", absl::StrCat("T", i)}, {"B", absl::StrCat("T", i + 1)}}};
    if (i % 2 == 1) next.mesh = "x=2";  // needs no answer
    runs.push_back(client_->RunAsync(next));
  }
  proxy_->Cut();  // from then on, answers arrive
  for (std::future<Outcome>& run : runs) {
    ASSERT_EQ(run.wait_for(kPatienceMs), std::future_status::ready);
    const Outcome outcome = run.get();
    EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
  }
}

TEST(LibraryRunDeathTest, AClientThatKnowsTheDevicesNeedsNoThread) {
#ifndef AGMM_FAILPOINTS
  GTEST_SKIP() << "needs failpoints";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("AGMM_FAILPOINTS", "thread.none starts runs=*", 1);
  const auto run = [](bool ready) {
    World world({.nodes = 2});
    world.Start(0);
    Result<std::unique_ptr<Client>> client = Status(StatusCode::kUnknown, "not connected");
    if (ready) world.Start(1);
    if (ready && !world.WaitReady(0)) return 1;
    if (!Eventually([&] {
          client = Client::Connect({.endpoint = world.endpoint(0)});
          return client.ok();
        })) {
      return 2;
    }
    if (!ready) world.Start(1);
    if (!ready && !Eventually([&] { return (*client)->World()->ready; })) return 3;
    const float value = 1;
    const TensorSpec spec = {.rows = 1, .cols = 1, .sharding = "[M, N]", .mesh = "x=2"};
    if (!(*client)->Put("A", spec, &value, 4).ok()) return 4;
    world.daemon(0).Stop();
    // Without the number of devices, this call would ask the stopped daemon for it.
    std::future<Outcome> outcome =
        (*client)->RunAsync({.spec = "A[M, N] -> B[M, N]", .tensors = {{"A", "A"}, {"B", "B"}}});
    world.daemon(0).Signal(SIGCONT);
    if (outcome.wait_for(kPatienceMs) != std::future_status::ready) return 5;
    return outcome.get().ok() ? 0 : 6;
  };
  EXPECT_EXIT(std::exit(run(true)), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::exit(run(false)), ::testing::ExitedWithCode(0), "");
  unsetenv("AGMM_FAILPOINTS");
}

TEST(LibraryRunDeathTest, AMissingThreadLosesNoCancellation) {
#ifndef AGMM_FAILPOINTS
  GTEST_SKIP() << "needs failpoints";
#endif
  // A process of its own, because the library reads the variable once.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("AGMM_FAILPOINTS", "thread.none cancels jobs=1", 1);
  const auto run = [] {
    World world({.nodes = 1, .failpoints = "executor.delay=*"});
    world.StartAll();
    auto client = Client::Connect({.endpoint = world.endpoint(0)}).value();
    const float value = 1;
    const TensorSpec spec = {.rows = 1, .cols = 1, .sharding = "[M, N]"};
    if (!client->Put("A", spec, &value, 4).ok()) return 1;
    std::stop_source stop;
    std::future<Outcome> future = client->RunAsync({.spec = "A[M, K] * B[K, N] -> C[M, N]",
                                                    .a = "A",
                                                    .b = "A",
                                                    .c = "C",
                                                    .repeat_count = 1'000'000,
                                                    .timeout = std::chrono::minutes(10)},
                                                   /*timeout=*/{}, stop.get_token());
    stop.request_stop();
    if (future.wait_for(kPatienceMs) != std::future_status::ready) return 2;
    return future.get().status().code() == StatusCode::kCancelled ? 0 : 3;
  };
  EXPECT_EXIT(std::exit(run()), ::testing::ExitedWithCode(0), "");
  unsetenv("AGMM_FAILPOINTS");
}

TEST_F(LibraryRun, AClosedClientRefusesCalls) {
  std::future<Outcome> future = Start(*client_, LongRequest());
  client_->Close();
  EXPECT_EQ(Get(future).status().code(), StatusCode::kCancelled);
  client_->Close();
  EXPECT_EQ(client_->Run(Request()).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(client_->World().status().code(), StatusCode::kCancelled);
}

TEST_F(LibraryRun, ATimeoutEndsTheWaitAndNotTheJob) {
  // The job's own timeout is much longer.
  const Outcome first = client_->Run(Request(), std::chrono::minutes(10));
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  std::future<Outcome> future = Start(*client_, LongRequest(), std::chrono::seconds(5));
  EXPECT_TRUE(Eventually([&] {
    const JobInfo newest = client_->Jobs(1)->front();
    return newest.id > first->id && newest.state == JobState::kRunning;
  }));
  const Status late = Get(future).status();
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded) << late.ToString();
  EXPECT_EQ(late.reason(), "");
  const auto jobs = client_->Jobs(1);
  ASSERT_TRUE(jobs.ok());
  ASSERT_EQ(jobs->size(), 1u);
  EXPECT_EQ(jobs->front().state, JobState::kRunning);
  EXPECT_TRUE(client_->FindJob(jobs->front().id)->Cancel().ok());
}

TEST_F(LibraryRun, AnUnreadableRequestFailsAlone) {
  std::future<Outcome> other = Start(*client_, LongRequest());
  EXPECT_TRUE(Eventually([&] { return client_->Jobs(1)->size() == 1; }));
  JobRequest request = Request();
  request.b = "B\xff";
  const Status no_text = client_->Run(request).status();
  EXPECT_EQ(no_text.code(), StatusCode::kInvalidArgument) << no_text.ToString();
  EXPECT_THAT(no_text.ToString(), HasSubstr("not UTF-8 from byte 1 on"));
  EXPECT_EQ(client_->Submit(request).status().code(), StatusCode::kInvalidArgument);
  request = Request();
  request.spec.append(9 << 20, ' ');
  const Status too_long = client_->Run(request).status();
  EXPECT_EQ(too_long.code(), StatusCode::kInvalidArgument) << too_long.ToString();
  EXPECT_THAT(too_long.ToString(), HasSubstr("1048576"));
  EXPECT_TRUE(client_->FindJob(client_->Jobs(1)->front().id)->Cancel().ok());
  EXPECT_EQ(Get(other).status().code(), StatusCode::kCancelled);
}

TEST_F(LibraryRun, ACancelledJobFailsWithCancelled) {
  std::future<Outcome> future = Start(*client_, LongRequest());
  EXPECT_TRUE(Eventually([&] {
    const auto jobs = client_->Jobs(1);
    return jobs.ok() && !jobs->empty() && client_->FindJob(jobs->front().id)->Cancel().ok();
  }));
  EXPECT_EQ(Get(future).status().code(), StatusCode::kCancelled);
}

TEST_F(LibraryRun, ManyJobsThatStartEachOtherEndOnceEach) {
  constexpr int kJobs = 300, kLanes = 40;
  std::atomic<int> started = 0, ended = 0;
  std::mutex mutex;
  std::set<uint64_t> ids;
  std::promise<void> all;
  std::function<void()> next = [&] {
    if (++started > kJobs) return;
    client_->Run(Request(), [&](const Outcome& outcome) {
      ASSERT_TRUE(outcome.ok()) << outcome.status().ToString();
      {
        std::lock_guard lock(mutex);
        ids.insert(outcome->id);
      }
      next();
      if (++ended == kJobs) all.set_value();
    });
  };
  for (int lane = 0; lane < kLanes; ++lane) next();
  ASSERT_EQ(all.get_future().wait_for(kPatienceMs), std::future_status::ready);
  EXPECT_EQ(ids.size(), static_cast<size_t>(kJobs));
  ExpectExact(*client_);
}

TEST_F(LibraryRun, ACallbackMayRunAndWait) {
  std::promise<Outcome> second;
  client_->Run(Request(), [&](const Outcome&) { second.set_value(client_->Run(Request())); });
  std::future<Outcome> future = second.get_future();
  EXPECT_TRUE(Get(future).ok());
}

TEST_F(LibraryRun, ARunOverABrokenConnectionIsOneJob) {
  const auto proxy = MakeProxy();
  const auto client = Connect(/*session=*/false, proxy->endpoint());
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->Run(Request()).ok());
  const size_t before = client_->Jobs(1000)->size();
  // The daemon receives the jobs, but the client does not receive their outcomes.
  proxy->HoldAnswers();
  std::vector<std::future<Outcome>> futures;
  for (int i = 0; i < 5; ++i) futures.push_back(Start(*client, Request()));
  EXPECT_TRUE(Eventually([&] { return client_->Jobs(1000)->size() == before + 5; }));
  proxy->Cut();
  std::set<uint64_t> ids;
  for (std::future<Outcome>& future : futures) {
    const Outcome outcome = Get(future);
    ASSERT_TRUE(outcome.ok()) << outcome.status().ToString();
    ids.insert(outcome->id);
  }
  EXPECT_EQ(ids.size(), 5u);
  EXPECT_EQ(client_->Jobs(1000)->size(), before + 5);
}

TEST_F(LibraryRun, EveryOutageMayLastAsLongAsTheFirst) {
  const auto proxy = MakeProxy();
  const auto client = Connect(/*session=*/false, proxy->endpoint());
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->Run(Request()).ok());
  proxy->Break();
  EXPECT_EQ(client->Run(Request()).status().code(), StatusCode::kUnavailable);
  std::future<Outcome> future = Start(*client, Request());
  // By then its first attempt has failed.
  const int before = proxy->refused();
  EXPECT_TRUE(Eventually([&] { return proxy->refused() >= before + 2; }));
  proxy->Restore();
  const Outcome outcome = Get(future);
  EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
}

TEST_F(LibraryRun, ALostDaemonEndsTheRuns) {
  const auto proxy = MakeProxy();
  const auto client = Connect(/*session=*/true, proxy->endpoint());
  ASSERT_NE(client, nullptr);
  std::future<Outcome> future = Start(*client, LongRequest());
  EXPECT_TRUE(Eventually([&] { return !client_->Jobs(1)->empty(); }));
  proxy->Stop();
  // The session and its job ended with the connection.
  EXPECT_EQ(Get(future).status().code(), StatusCode::kUnavailable);
}

TEST_F(LibraryRun, ADestroyedClientEndsItsRuns) {
  auto client = Connect(/*session=*/true);
  std::future<Outcome> future = Start(*client, LongRequest());
  EXPECT_TRUE(Eventually([&] { return !client_->Jobs(1)->empty(); }));
  client.reset();
  EXPECT_EQ(Get(future).status().code(), StatusCode::kCancelled);
  EXPECT_TRUE(Eventually([&] { return client_->Jobs(1)->front().state == JobState::kCancelled; }))
      << "it was of the session";
}

}  // namespace
}  // namespace agmm
