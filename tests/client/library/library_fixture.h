// A world of one real daemon with two devices, and the library as its users link it.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "client/agmm.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/world.h"
#include "tests/support/matrix.h"
#include "tests/support/patience.h"
#include "tests/support/proxy.h"

namespace agmm {

class LibraryTest : public ::testing::Test {
 protected:
  static constexpr int64_t kM = 50, kK = 30, kN = 40;

  // Delays at each step make a job of many epochs long. `local`: more fields of the configuration.
  explicit LibraryTest(const std::string& local = "")
      : world_({.nodes = 1, .devices = 2, .failpoints = "executor.delay=*", .local = local}) {}
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(world_.StartAll()); }

  std::unique_ptr<Client> Connect(bool session = false, std::string endpoint = "") const {
    if (endpoint.empty()) endpoint = world_.endpoint(0);
    Result<std::unique_ptr<Client>> client =
        Client::Connect({.endpoint = endpoint, .session = session});
    EXPECT_TRUE(client.ok()) << client.status().ToString();
    return client.ok() ? *std::move(client) : nullptr;
  }
  // A connection to the daemon that can be broken.
  std::unique_ptr<Proxy> MakeProxy() const {
    return std::make_unique<Proxy>(std::stoi(world_.endpoint(0).substr(sizeof("127.0.0.1:") - 1)));
  }

  static std::vector<float> Integers(int64_t count, int seed) {
    return SmallIntegers(1, count, seed).values;
  }
  static std::vector<float> Product(const std::vector<float>& a, const std::vector<float>& b) {
    return MatrixProduct({kM, kK, a}, {kK, kN, b}).values;
  }
  static int64_t BytesIn(const std::vector<float>& values) { return values.size() * 4; }
  static TensorSpec SpecA() { return {.rows = kM, .cols = kK, .sharding = "[M_x, K]"}; }
  static TensorSpec SpecB() { return {.rows = kK, .cols = kN, .sharding = "[K, N_x]"}; }

  static void PutAB(Client& client, const std::string& suffix = "", int seed = 1) {
    const std::vector<float> a = Integers(kM * kK, seed), b = Integers(kK * kN, seed + 1);
    const auto put_a = client.Put("A" + suffix, SpecA(), a.data(), BytesIn(a));
    ASSERT_TRUE(put_a.ok()) << put_a.status().ToString();
    const auto put_b = client.Put("B" + suffix, SpecB(), b.data(), BytesIn(b));
    ASSERT_TRUE(put_b.ok()) << put_b.status().ToString();
  }
  static JobRequest Request(const std::string& suffix = "") {
    return {.spec = "A[M_x, K] * B[K, N_x] -> C[M, N_x]",
            .a = "A" + suffix,
            .b = "B" + suffix,
            .c = "C" + suffix};
  }
  // Runs for minutes.
  static JobRequest LongRequest() {
    JobRequest request = Request();
    request.repeat_count = 1'000'000;
    request.timeout = std::chrono::minutes(10);
    return request;
  }
  static JobHandle Submit(Client& client, const JobRequest& request) {
    Result<JobHandle> job = client.Submit(request);
    EXPECT_TRUE(job.ok()) << job.status().ToString();
    return job.ok() ? *job : JobHandle();
  }
  static void ExpectExact(Client& client, const std::string& suffix = "", int seed = 1) {
    std::vector<float> c(kM * kN, -99);
    const auto got = client.Get("C" + suffix, c.data(), BytesIn(c));
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    EXPECT_EQ(c, Product(Integers(kM * kK, seed), Integers(kK * kN, seed + 1)));
  }

  class World world_;
};

using Outcome = Result<JobInfo>;
using Transfer = std::future<Result<TensorInfo>>;

// Long enough for a transfer that does not wait.
inline constexpr Milliseconds kWhile{500};

// Adds a client that has created A and B.
class LibraryJobTest : public LibraryTest {
 protected:
  using LibraryTest::LibraryTest;
  void SetUp() override {
    LibraryTest::SetUp();
    client_ = Connect();
    ASSERT_NE(client_, nullptr);
    PutAB(*client_);
  }
  // Waits until the job runs on its devices.
  static void AwaitRunning(const JobHandle& job) {
    EXPECT_TRUE(Eventually([&] { return job.Info()->state == JobState::kRunning; }));
  }
  static Outcome Get(std::future<Outcome>& future) {
    if (future.wait_for(kPatienceMs) != std::future_status::ready)
      return Status(StatusCode::kUnknown, "the future never came");
    return future.get();
  }

  std::unique_ptr<Client> client_;
};

}  // namespace agmm
