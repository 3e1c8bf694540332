// Calls to a daemon whose process is stopped, so that the connection takes no more bytes.
#include <signal.h>

#include <filesystem>
#include <functional>
#include <future>
#include <iterator>
#include <stop_token>

#include "tests/client/library/library_fixture.h"

namespace agmm {
namespace {

class LibraryPaused : public LibraryTest {
 protected:
  void SetUp() override {
    LibraryTest::SetUp();
    client_ = Connect(/*session=*/false, "unix:" + world_.socket(0));
    ASSERT_NE(client_, nullptr);
    ASSERT_TRUE(Put({}).ok());
    PutAB(*client_);
    world_.daemon(0).Stop();
  }
  void TearDown() override {
    Continue();
    client_.reset();
  }

  void Continue() { world_.daemon(0).Signal(SIGCONT); }
  Result<TensorInfo> Put(const TransferOptions& options) {
    return client_->Put("L", Spec(), values_.data(), BytesIn(values_), options);
  }
  Transfer PutAsync(const TransferOptions& options) {
    return client_->PutAsync("L", Spec(), values_.data(), BytesIn(values_), options);
  }
  static Status End(Transfer& put) {
    if (put.wait_for(kPatienceMs) != std::future_status::ready)
      return Status(StatusCode::kUnknown, "the put did not end");
    return put.get().status();
  }
  // Starts a put that fills the connection.
  Transfer Blocked(const TransferOptions& options) {
    Transfer put = PutAsync(options);
    EXPECT_EQ(put.wait_for(kWhile), std::future_status::timeout);
    return put;
  }
  // Returns when `call` does, while the daemon is stopped.
  Status EndOf(const std::function<Status()>& call) {
    std::future<Status> end = std::async(std::launch::async, call);
    if (end.wait_for(kPatienceMs) == std::future_status::ready) return end.get();
    Continue();
    return Status(StatusCode::kUnknown, "the call did not end; then: " + end.get().ToString());
  }

  static constexpr int64_t kRows = 2000, kCols = 2001;
  static TensorSpec Spec() { return {.rows = kRows, .cols = kCols, .sharding = "[M, N_x]"}; }
  const std::vector<float> values_ = Integers(kRows * kCols, 3);
  std::unique_ptr<Client> client_;
};

TEST_F(LibraryPaused, APutEndsAtItsDeadline) {
  Transfer put = PutAsync({.timeout = Milliseconds(1000)});
  const Status late = End(put);
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded) << late.ToString();
  Continue();
  const auto again = Put({});
  EXPECT_TRUE(again.ok()) << again.status().ToString();
  std::vector<float> back(values_.size());
  EXPECT_TRUE(client_->Get("L", back.data(), BytesIn(back)).ok());
  EXPECT_EQ(back, values_);
}

TEST_F(LibraryPaused, AStopRequestEndsAPut) {
  std::stop_source stop;
  Transfer put = Blocked({.stop = stop.get_token()});
  stop.request_stop();
  EXPECT_EQ(End(put).ToString(), "CANCELLED: stopped at the caller's request");
}

TEST_F(LibraryPaused, AStopRequestEndsASave) {
  std::stop_source stop;
  SaveOptions options;
  options.transfer.stop = stop.get_token();
  auto save = std::async(std::launch::async, [&] {
    return client_->Save(world_.Path("a.safetensors"), {"A"}, options).status();
  });
  EXPECT_EQ(save.wait_for(kWhile), std::future_status::timeout);
  stop.request_stop();
  EXPECT_EQ(save.get().ToString(), "CANCELLED: tensor \"A\" was not saved to " +
                                       world_.Path("a.safetensors") +
                                       ": stopped at the caller's request");
}

// The daemon that does not answer is the first that this client could ask for the devices.
TEST_F(LibraryPaused, TheFirstRunOfAClientDoesNotWaitInItsCall) {
  Continue();
  const auto client = Connect();
  world_.daemon(0).Stop();
  std::future<Outcome> run;
  EXPECT_TRUE(EndOf([&] {
                run = client->RunAsync(Request());
                return Status();
              }).ok());
  Continue();
  const Outcome outcome = run.get();
  EXPECT_TRUE(outcome.ok()) << outcome.status().ToString();
}

TEST_F(LibraryPaused, ACloseEndsAPut) {
  Transfer put = Blocked({});
  EXPECT_TRUE(EndOf([&] {
                client_->Close();
                return Status();
              }).ok());
  EXPECT_EQ(End(put).code(), StatusCode::kCancelled);
}

TEST_F(LibraryPaused, AnotherCallBehindAPutEndsAtItsDeadline) {
  std::stop_source stop;
  Transfer put = Blocked({.stop = stop.get_token()});
  const auto list = [&] { return client_->List(Milliseconds(1000)).status(); };
  EXPECT_EQ(EndOf(list).code(), StatusCode::kDeadlineExceeded);
  stop.request_stop();
  EXPECT_EQ(End(put).code(), StatusCode::kCancelled);
  EXPECT_EQ(EndOf(list).code(), StatusCode::kDeadlineExceeded) << "the connection is still blocked";
  Continue();
  EXPECT_TRUE(client_->List().ok());
}

TEST_F(LibraryPaused, GetsWatchesAndRunsBehindAPutEndAtTheirDeadlines) {
  Continue();
  const JobHandle job = Submit(*client_, LongRequest());
  world_.daemon(0).Stop();
  std::stop_source stop;
  Transfer put = Blocked({.stop = stop.get_token()});
  constexpr Milliseconds kTimeout{1000};
  EXPECT_EQ(EndOf([&] {
              float a[kM * kK];
              return client_->Get("A", a, sizeof(a), {.timeout = kTimeout}).status();
            }).code(),
            StatusCode::kDeadlineExceeded);
  const Status waited = EndOf([&] { return job.Wait(kTimeout).status(); });
  EXPECT_EQ(waited.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(waited.message(), ::testing::HasSubstr("had not ended after a wait of 1s"));
  std::promise<Status> watched;
  job.Watch([](const JobEvent&) { return true; },
            [&](const Outcome& end) { watched.set_value(end.status()); }, 0, kTimeout);
  EXPECT_EQ(EndOf([&] { return watched.get_future().get(); }).code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(EndOf([&] { return client_->Run(Request(), kTimeout).status(); }).code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(put.wait_for(Milliseconds(0)), std::future_status::timeout) << "it did not block";
  stop.request_stop();
  EXPECT_EQ(End(put).code(), StatusCode::kCancelled);
  Continue();
  EXPECT_TRUE(job.Cancel().ok());
  EXPECT_EQ(job.Wait(kPatienceMs).status().code(), StatusCode::kCancelled);
}

TEST_F(LibraryPaused, AStopRequestEndsAGetBehindAPut) {
  Transfer put = Blocked({});
  std::stop_source stop;
  float a[kM * kK];
  Transfer get = client_->GetAsync("A", a, sizeof(a), {.stop = stop.get_token()});
  EXPECT_EQ(get.wait_for(kWhile), std::future_status::timeout);
  stop.request_stop();
  EXPECT_EQ(End(get).ToString(), "CANCELLED: stopped at the caller's request");
}

TEST_F(LibraryPaused, ACloseEndsAWatchBehindAPut) {
  Continue();
  const JobHandle job = Submit(*client_, LongRequest());
  world_.daemon(0).Stop();
  Transfer put = Blocked({});
  std::future<Outcome> wait = job.Done();
  EXPECT_EQ(wait.wait_for(kWhile), std::future_status::timeout);
  EXPECT_TRUE(EndOf([&] {
                client_->Close();
                return Status();
              }).ok());
  EXPECT_EQ(wait.get().status().code(), StatusCode::kCancelled);
}

TEST_F(LibraryPaused, AStopRequestEndsASubmitAndCancelsItsJob) {
  std::stop_source stop;
  std::future<Status> submit = std::async(std::launch::async, [&] {
    return client_->Submit(LongRequest(), /*timeout=*/{}, stop.get_token()).status();
  });
  EXPECT_EQ(submit.wait_for(kWhile), std::future_status::timeout);
  stop.request_stop();
  EXPECT_EQ(EndOf([&] { return submit.get(); }).ToString(),
            "CANCELLED: stopped at the caller's request");
  Continue();
  EXPECT_TRUE(Eventually([&] {
    const auto jobs = client_->Jobs();
    return jobs.ok() && jobs->size() == 1 && jobs->front().state == JobState::kCancelled;
  }));
}

TEST_F(LibraryPaused, CancellationsOfManyRunsShareAThread) {
  constexpr int kRuns = 64;
  Continue();
  std::stop_source stop;
  std::vector<std::future<Outcome>> runs;
  for (int i = 0; i < kRuns; ++i)
    runs.push_back(client_->RunAsync(LongRequest(), /*timeout=*/{}, stop.get_token()));
  EXPECT_TRUE(Eventually([&] { return client_->Jobs(kRuns)->size() == kRuns; }));
  world_.daemon(0).Stop();
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  };
  const int64_t before = threads();
  stop.request_stop();
  // Its callback runs after the cancellations have begun.
  std::promise<void> begun;
  client_->Run({.spec = "\xff"}, [&](const Outcome&) { begun.set_value(); });
  EXPECT_EQ(begun.get_future().wait_for(kPatienceMs), std::future_status::ready);
  EXPECT_LT(threads(), before + kRuns / 4);
  Continue();
  for (std::future<Outcome>& run : runs) {
    ASSERT_EQ(run.wait_for(kPatienceMs), std::future_status::ready);
    EXPECT_EQ(run.get().status().code(), StatusCode::kCancelled);
  }
}

TEST_F(LibraryPaused, ACloseEndsCancellations) {
  Continue();
  std::stop_source stop;
  std::future<Outcome> run = client_->RunAsync(LongRequest(), /*timeout=*/{}, stop.get_token());
  EXPECT_TRUE(Eventually([&] { return client_->Jobs(1)->size() == 1; }));
  world_.daemon(0).Stop();
  stop.request_stop();
  EXPECT_TRUE(EndOf([&] {
                client_->Close();
                return Status();
              }).ok());
  EXPECT_EQ(run.get().status().code(), StatusCode::kCancelled);
}

TEST_F(LibraryPaused, ASecondCloseWaitsForTheFirst) {
  Transfer put = Blocked({});
  std::future<void> first = std::async(std::launch::async, [&] { client_->Close(); });
  EXPECT_TRUE(
      Eventually([&] { return client_->World().status().code() == StatusCode::kCancelled; }));
  client_->Close();
  EXPECT_EQ(put.wait_for(Milliseconds(0)), std::future_status::ready);
}

}  // namespace
}  // namespace agmm
