// Transfers in the background and their cancellation, through the public library.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "tests/client/library/library_fixture.h"
#include "tests/support/notification.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

Status End(Transfer& transfer) {
  if (transfer.wait_for(kPatienceMs) != std::future_status::ready)
    return Status(StatusCode::kUnknown, "the transfer did not end");
  return transfer.get().status();
}

class LibraryStop : public LibraryJobTest {
 protected:
  using LibraryJobTest::LibraryJobTest;

  // Stops the transfer, which waits.
  void ExpectStopped(Transfer& transfer) {
    EXPECT_EQ(transfer.wait_for(kWhile), std::future_status::timeout);
    stop_.request_stop();
    ExpectCancelled(End(transfer));
  }
  static void ExpectCancelled(const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kCancelled) << status.ToString();
    EXPECT_EQ(status.message(), "stopped at the caller's request");
  }
  TransferOptions Options() const { return {.stop = stop_.get_token()}; }
  // Copies from `values`, and requests the stop for the piece in the middle.
  Reader StopInTheMiddle(const std::vector<float>& values) {
    return [this, &values](int64_t offset, std::byte* into, int64_t size) {
      if (offset >= BytesIn(values) / 2) stop_.request_stop();
      std::memcpy(into, reinterpret_cast<const char*>(values.data()) + offset, size);
      return Status();
    };
  }
  std::vector<float> GetA() {
    std::vector<float> a(kM * kK);
    const auto got = client_->Get("A", a.data(), BytesIn(a));
    EXPECT_TRUE(got.ok()) << got.status().ToString();
    return a;
  }

  static constexpr int64_t kRows = 700, kCols = 1001;
  static TensorSpec LargeSpec() { return {.rows = kRows, .cols = kCols, .sharding = "[M, N_x]"}; }

  const std::vector<float> a_ = Integers(kM * kK, 1), other_ = Integers(kM * kK, 5),
                           large_ = Integers(kRows * kCols, 3);
  std::stop_source stop_;
};

TEST_F(LibraryStop, EndsAPutThatWaitsForAJob) {
  const JobHandle job = Submit(*client_, LongRequest());
  Transfer put = client_->PutAsync("A", SpecA(), other_.data(), BytesIn(other_), Options());
  ExpectStopped(put);
  EXPECT_TRUE(job.Cancel().ok());
  // It had not begun to write.
  EXPECT_EQ(GetA(), a_);
}

TEST_F(LibraryStop, EndsAGetThatWaitsForAJob) {
  const JobHandle job = Submit(*client_, LongRequest());
  AwaitRunning(job);
  std::vector<float> c(kM * kN, -99);
  Transfer get = client_->GetAsync("C", c.data(), BytesIn(c), Options());
  ExpectStopped(get);
  EXPECT_EQ(c, std::vector<float>(kM * kN, -99));
  EXPECT_EQ(job.Info()->state, JobState::kRunning);
  EXPECT_TRUE(job.Cancel().ok());
}

TEST_F(LibraryStop, EndsARewriteInTheMiddleAndLeavesNoContents) {
  ASSERT_TRUE(client_->Put("L", LargeSpec(), large_.data(), BytesIn(large_)).ok());
  ExpectCancelled(client_->Put("L", LargeSpec(), StopInTheMiddle(large_), Options()).status());
  const auto left = client_->Find("L");
  ASSERT_TRUE(left.ok()) << left.status().ToString();
  EXPECT_FALSE(left->has_contents);
  EXPECT_TRUE(client_->Put("L", LargeSpec(), large_.data(), BytesIn(large_)).ok());
}

TEST_F(LibraryStop, EndsAReplacementInTheMiddleAndKeepsTheOldContents) {
  const auto free_bytes = [&] { return client_->World()->devices[0].free_bytes; };
  const int64_t free_before = free_bytes();
  ExpectCancelled(client_->Put("A", LargeSpec(), StopInTheMiddle(large_), Options()).status());
  EXPECT_EQ(GetA(), a_);
  stop_ = std::stop_source();
  ExpectCancelled(client_->Put("new", LargeSpec(), StopInTheMiddle(large_), Options()).status());
  EXPECT_EQ(client_->Find("new").status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(Eventually([&] { return free_bytes() == free_before; }));
}

TEST_F(LibraryStop, EndsAGetInTheMiddle) {
  ASSERT_TRUE(client_->Put("L", LargeSpec(), large_.data(), BytesIn(large_)).ok());
  int64_t taken = 0;
  const auto got = client_->Get(
      "L",
      [&](int64_t, const std::byte*, int64_t size) {
        taken += size;
        stop_.request_stop();
        return Status();
      },
      Options());
  ExpectCancelled(got.status());
  EXPECT_LT(taken, BytesIn(large_));
}

TEST_F(LibraryStop, EndsTransfersThatHaveNotBegun) {
  stop_.request_stop();
  const auto client = Connect();
  std::vector<float> a(kM * kK);
  ExpectCancelled(client->Put("A", SpecA(), other_.data(), BytesIn(other_), Options()).status());
  ExpectCancelled(client->Get("A", a.data(), BytesIn(a), Options()).status());
  Transfer put = client->PutAsync("A", SpecA(), other_.data(), BytesIn(other_), Options());
  ExpectCancelled(End(put));
  EXPECT_EQ(GetA(), a_);
}

TEST_F(LibraryStop, EndsThePausesBeforeThePiecesOfAPutAreSentAgain) {
  const auto proxy = MakeProxy();
  const auto client = Connect(/*session=*/false, proxy->endpoint());
  ASSERT_TRUE(client->Put("L", LargeSpec(), large_.data(), BytesIn(large_)).ok());
  std::atomic<bool> broken = false;
  Transfer put = client->PutAsync(
      "L", LargeSpec(),
      [&](int64_t, std::byte*, int64_t) {
        if (!broken.exchange(true)) proxy->Break();
        return Status();
      },
      Options());
  // Without the stop, it ends with UNAVAILABLE, some seconds later.
  EXPECT_TRUE(Eventually([&] { return proxy->refused() >= 2; }));
  ExpectStopped(put);
}

TEST_F(LibraryStop, EndsThePausesBeforeAGetContinues) {
  const auto proxy = MakeProxy();
  const auto client = Connect(/*session=*/false, proxy->endpoint());
  ASSERT_TRUE(client->Put("L", LargeSpec(), large_.data(), BytesIn(large_)).ok());
  std::vector<float> back(large_.size());
  // The proxy itself breaks the connection: if the sink did, all bytes could have arrived by then.
  proxy->BreakAfterToClient(BytesIn(large_) / 2);
  Transfer get = client->GetAsync("L", back.data(), BytesIn(back), Options());
  EXPECT_TRUE(Eventually([&] { return proxy->refused() >= 2; }));
  ExpectStopped(get);
}

class LibraryStopWithLittleMemory : public LibraryStop {
 protected:
  LibraryStopWithLittleMemory() : LibraryStop("transfer_memory: \"16MiB\"") {}
};

TEST_F(LibraryStopWithLittleMemory, EndsAPutThatWaitsForMemory) {
  ASSERT_TRUE(client_->Put("L", LargeSpec(), large_.data(), BytesIn(large_)).ok());
  JobRequest request = LongRequest();
  request.spec = "A[M, K_x] -> B[M, K]";
  request.a = request.b = request.c = "";
  request.tensors = {{"A", "L"}, {"B", "whole"}};
  const JobHandle job = Submit(*client_, request);
  // Their first pieces wait for the job and fill the memory. They are another client's, because few
  // transfers of one run at once.
  const auto other_client = Connect();
  std::stop_source others;
  std::vector<Transfer> puts;
  for (int i = 0; i < 16; ++i) {
    puts.push_back(other_client->PutAsync("L", LargeSpec(), large_.data(), BytesIn(large_),
                                          {.stop = others.get_token()}));
  }
  // One user's transfers have half of the memory, and a piece is larger than a MiB.
  ASSERT_TRUE(world_.WaitFor(0, "full memory", [](const v1::GetStatusResponse& status) {
    return MetricOf(status, "transfer_memory_bytes") >= (7 << 20);
  }));
  Transfer put = client_->PutAsync("Z", LargeSpec(), large_.data(), BytesIn(large_), Options());
  ExpectStopped(put);
  others.request_stop();
  for (Transfer& waiting : puts) EXPECT_FALSE(End(waiting).ok());
  EXPECT_TRUE(job.Cancel().ok());
  EXPECT_TRUE(client_->Put("Z", LargeSpec(), large_.data(), BytesIn(large_)).ok());
}

using LibraryAsync = LibraryJobTest;

TEST_F(LibraryAsync, TransfersOfManyTensorsMoveAtOnce) {
  constexpr int kCount = 24;
  std::vector<std::vector<float>> values, back(kCount, std::vector<float>(kM * kK));
  std::vector<Transfer> puts, gets;
  const auto name = [](int i) { return "T" + std::to_string(i); };
  for (int i = 0; i < kCount; ++i) values.push_back(Integers(kM * kK, i));
  for (int i = 0; i < kCount; ++i)
    puts.push_back(client_->PutAsync(name(i), SpecA(), values[i].data(), BytesIn(values[i])));
  for (Transfer& put : puts) EXPECT_EQ(End(put).ToString(), "OK");
  std::atomic<int> pieces = 0;
  for (int i = 0; i < kCount; ++i) {
    gets.push_back(client_->GetAsync(name(i), back[i].data(), BytesIn(back[i]),
                                     {.progress = [&](int64_t, int64_t) { ++pieces; }}));
  }
  for (Transfer& get : gets) EXPECT_EQ(End(get).ToString(), "OK");
  EXPECT_EQ(back, values);
  EXPECT_GE(pieces, kCount);
}

// Most of 64 threads would run at once. Without a piece for 500 ms, one more may.
TEST_F(LibraryAsync, ManyTransfersShareAFewThreads) {
  constexpr int kCount = 64;
  const std::vector<float> a = Integers(kM * kK, 7);
  std::atomic<int> running = 0, most = 0;
  std::vector<Transfer> puts;
  for (int i = 0; i < kCount; ++i) {
    puts.push_back(client_->PutAsync(
        "T" + std::to_string(i), SpecA(), [&](int64_t offset, std::byte* into, int64_t size) {
          const int now = ++running;
          for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
          }
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          std::memcpy(into, reinterpret_cast<const char*>(a.data()) + offset, size);
          --running;
          return Status();
        }));
  }
  for (Transfer& put : puts) EXPECT_EQ(End(put).ToString(), "OK");
  EXPECT_LT(most, kCount / 4);
}

TEST_F(LibraryAsync, TransfersThatWaitForOneBehindThemEnd) {
  constexpr int kCount = 12;
  const std::vector<float> a = Integers(kM * kK, 7);
  Notification last;
  std::vector<Transfer> puts;
  for (int i = 0; i <= kCount; ++i) {
    puts.push_back(client_->PutAsync("T" + std::to_string(i), SpecA(),
                                     [&, i](int64_t, std::byte* into, int64_t size) {
                                       if (i == kCount) last.Notify();
                                       last.Wait();
                                       std::memset(into, 0, size);
                                       return Status();
                                     }));
  }
  const bool ended = puts.back().wait_for(kPatienceMs) == std::future_status::ready;
  EXPECT_TRUE(ended);
  last.Notify();
  for (Transfer& put : puts) EXPECT_EQ(End(put).ToString(), "OK");
}

TEST_F(LibraryAsync, AStopRequestRemovesATransferThatHasNotBegun) {
  constexpr int kCount = 30;  // those before the last one begin within 10 s at the earliest
  const JobHandle job = Submit(*client_, LongRequest());
  std::vector<float> c(kM * kN);
  std::stop_source others, stop;
  std::vector<Transfer> gets;
  for (int i = 0; i < kCount; ++i) {
    gets.push_back(client_->GetAsync("C", c.data(), BytesIn(c), {.stop = others.get_token()}));
  }
  bool begun = false;
  Transfer last = client_->PutAsync("A", SpecA(),
                                    [&](int64_t, std::byte*, int64_t) {
                                      begun = true;
                                      return Status();
                                    },
                                    {.stop = stop.get_token()});
  stop.request_stop();
  ASSERT_EQ(last.wait_for(Milliseconds(0)), std::future_status::ready);
  EXPECT_EQ(last.get().status().ToString(), "CANCELLED: stopped at the caller's request");
  EXPECT_FALSE(begun);
  others.request_stop();
  for (Transfer& get : gets) EXPECT_EQ(End(get).code(), StatusCode::kCancelled);
  EXPECT_TRUE(job.Cancel().ok());
}

TEST_F(LibraryAsync, AClosedClientEndsTransfersThatHaveNotBegun) {
  const auto job_client = Connect();
  const JobHandle job = Submit(*job_client, LongRequest());
  std::vector<float> c(kM * kN);
  std::vector<Transfer> gets;
  for (int i = 0; i < 30; ++i) gets.push_back(client_->GetAsync("C", c.data(), BytesIn(c)));
  client_->Close();
  for (Transfer& get : gets) {
    ASSERT_EQ(get.wait_for(Milliseconds(0)), std::future_status::ready);
    EXPECT_EQ(get.get().status().code(), StatusCode::kCancelled);
  }
  EXPECT_TRUE(job.Cancel().ok());
}

TEST_F(LibraryAsync, CallbacksMoveContentsToo) {
  const std::vector<float> a = Integers(kM * kK, 7);
  const char* const from = reinterpret_cast<const char*>(a.data());
  Transfer put =
      client_->PutAsync("A", SpecA(), [from](int64_t offset, std::byte* into, int64_t size) {
        std::memcpy(into, from + offset, size);
        return Status();
      });
  EXPECT_EQ(End(put).ToString(), "OK");
  std::string back;
  Transfer get = client_->GetAsync("A", [&](int64_t, const std::byte* data, int64_t size) {
    back.append(reinterpret_cast<const char*>(data), size);
    return Status();
  });
  EXPECT_EQ(End(get).ToString(), "OK");
  EXPECT_EQ(back, std::string(from, BytesIn(a)));
}

TEST_F(LibraryAsync, AnErrorIsTheFutures) {
  std::vector<float> a(kM * kK);
  Transfer get = client_->GetAsync("none", a.data(), BytesIn(a));
  EXPECT_EQ(End(get).code(), StatusCode::kNotFound);
  Transfer put = client_->PutAsync("A", SpecA(), a.data(), BytesIn(a) - 4);
  EXPECT_EQ(End(put).code(), StatusCode::kInvalidArgument);
}

TEST_F(LibraryAsync, ADestroyedClientEndsItsTransfers) {
  const auto job_client = Connect();
  const JobHandle job = Submit(*job_client, LongRequest());
  std::vector<float> c(kM * kN);
  const std::vector<float> a = Integers(kM * kK, 7);
  Transfer get = client_->GetAsync("C", c.data(), BytesIn(c));
  Transfer put = client_->PutAsync("A", SpecA(), a.data(), BytesIn(a));
  EXPECT_EQ(put.wait_for(kWhile), std::future_status::timeout);
  client_.reset();
  for (Transfer* transfer : {&get, &put}) {
    ASSERT_EQ(transfer->wait_for(Milliseconds(0)), std::future_status::ready);
    EXPECT_EQ(transfer->get().status().code(), StatusCode::kCancelled);
  }
  EXPECT_TRUE(job.Cancel().ok());
}

TEST(LibraryAsyncDeathTest, AMissingThreadIsTheFuturesError) {
#ifndef AGMM_FAILPOINTS
  GTEST_SKIP() << "needs failpoints";
#endif
  // A process of its own, because the library reads the variable once.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("AGMM_FAILPOINTS", "thread.none a put in the background=1", 1);
  const auto put = [] {
    World world({.nodes = 1});
    world.StartAll();
    auto client = Client::Connect({.endpoint = world.endpoint(0)}).value();
    const float value = 1;
    const TensorSpec spec = {.rows = 1, .cols = 1, .sharding = "[M, N]"};
    Transfer refused = client->PutAsync("A", spec, &value, 4);
    std::fprintf(stderr, "%s\n", End(refused).ToString().c_str());
    Transfer later = client->PutAsync("A", spec, &value, 4);
    return End(later).ok() ? 0 : 1;
  };
  EXPECT_EXIT(std::exit(put()), ::testing::ExitedWithCode(0),
              "RESOURCE_EXHAUSTED: no thread for a put in the background could be started");
  unsetenv("AGMM_FAILPOINTS");
}

}  // namespace
}  // namespace agmm
