// Eight clients at three daemons, thousands of operations each: every C is exact, every read is
// consistent, and nothing is left behind in the heaps or the daemons.
#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/agmm.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/deadline.h"
#include "tests/e2e/usage.h"
#include "tests/e2e/world.h"
#include "tests/support/matrix.h"
#include "tests/support/seed.h"

namespace agmm {
namespace {

constexpr int kClients = 8, kNodes = 3;
constexpr int64_t kK = 64, kN = 48;
// gRPC's own pools vary by a few threads; a leak per client, job or call would be many more.
constexpr int kPoolThreads = 5;
// All jobs use all ranks, for which at most two workspaces are kept. The largest one is smaller
// than three times an X of 96 rows; the factor allows for the padding of narrow blocks of B and C.
constexpr int64_t kMostWorkspace = 2 * 3 * 96 * kK * sizeof(float);
// Bound on the growth of a daemon from the middle of the work to its end, per client operation. A
// daemon remembers each commit for a minute (3 KiB), and the sequencer each request for ten
// minutes; malloc keeps some of the freed memory.
constexpr int64_t kMostGrowthKiB = 4;
constexpr char kSpec[] = "A[M_x, K] * B[K, N_x] -> C[M, N_x]";

// Operations of each client: $AGMM_SOAK_OPERATIONS, or 2,000, or with sanitizers a number that
// takes about as long.
int Operations() {
  int operations = 0;
  const char* text = std::getenv("AGMM_SOAK_OPERATIONS");
  return text != nullptr && absl::SimpleAtoi(text, &operations) ? operations
         : kSanitized                                           ? 100
                                                                : 2000;
}

// One client's thread, with its own X and Y tensors, and the shared W and S.
class Worker {
 public:
  Worker(Client* client, int number, uint64_t seed, const TestMatrix& w)
      : client_(client), name_(absl::StrCat(number)), random_(seed * 1000 + number), w_(w) {
    for (int64_t rows : {int64_t{1}, int64_t{33}, int64_t{96}}) {
      x_.push_back(SmallIntegers(rows, kK, random_()));
      product_.push_back(MatrixProduct(x_.back(), w_));
    }
  }

  void Run(int operations) {
    while (done_ < operations && !::testing::Test::HasFailure()) {
      const unsigned dice = random_() % 100;
      if (dice < 40) {
        OneProduct();
      } else if (dice < 60) {
        Pipelined();
      } else if (dice < 80) {
        Shared();
      } else if (dice < 90) {
        DeleteSomething();
      } else {
        CancelOne();
      }
    }
    for (const char* name : {"X", "Y", "Z"})
      for (size_t i = 0; i < x_.size(); ++i) Forget(Name(name, i));
  }
  int64_t products() const { return products_; }

 private:
  std::string Name(const std::string& kind, size_t i) const {
    return absl::StrCat(kind, name_, ".", i);
  }
  static void ExpectOk(const Status& status) { EXPECT_TRUE(status.ok()) << status.ToString(); }

  size_t PutSomeX() {
    const size_t i = random_() % x_.size();
    // New contents each time, so that a stale A is detected.
    x_[i] = SmallIntegers(x_[i].rows, kK, random_());
    product_[i] = MatrixProduct(x_[i], w_);
    TensorSpec spec{.rows = x_[i].rows, .cols = kK, .sharding = "[M_x, K]"};
    const Result<TensorInfo> put =
        client_->Put(Name("X", i), spec, x_[i].values.data(), x_[i].values.size() * sizeof(float));
    ExpectOk(put.status());
    ++done_;
    return i;
  }
  Result<JobHandle> Submit(size_t i, const std::string& c, int repeat = 1) {
    static constexpr const char* kAlgorithms[] = {"auto", "ring", "direct", "serial"};
    ++done_;
    return client_->Submit({.spec = kSpec,
                            .a = Name("X", i),
                            .b = "W",
                            .c = Name(c, i),
                            .algorithm = kAlgorithms[random_() % 4],
                            .repeat_count = repeat});
  }
  void ExpectProduct(size_t i, const std::string& c) {
    TestMatrix got{x_[i].rows, kN, std::vector<float>(x_[i].rows * kN, -1)};
    const Result<TensorInfo> info =
        client_->Get(Name(c, i), got.values.data(), got.values.size() * sizeof(float));
    ExpectOk(info.status());
    EXPECT_TRUE(SameBits(got, product_[i])) << Name(c, i);
    ++done_;
    ++products_;
  }

  void OneProduct() {
    const size_t i = PutSomeX();
    Result<JobHandle> job = Submit(i, "Y");
    ExpectOk(job.status());
    if (!job.ok()) return;
    ExpectOk(job->Wait().status());
    ExpectProduct(i, "Y");
  }
  // Waits for no job: the get after the submits sees the last C.
  void Pipelined() {
    const size_t i = PutSomeX();
    for (const char* c : {"Y", "Z", "Z", "Y"}) ExpectOk(Submit(i, c).status());
    ExpectProduct(i, "Z");
    ExpectProduct(i, "Y");
  }
  // All clients write S, in two shapes; each read sees exactly one complete write.
  void Shared() {
    ++done_;
    const int64_t rows = random_() % 2 == 0 ? 40 : 57;
    if (random_() % 2 == 0) {
      const std::vector<float> values(rows * kK, static_cast<float>(random_() % 1000));
      ExpectOk(client_
                   ->Put("S", {.rows = rows, .cols = kK, .sharding = "[M_x, K]"}, values.data(),
                         values.size() * sizeof(float))
                   .status());
      return;
    }
    std::vector<float> seen;
    const Result<TensorInfo> info =
        client_->Get("S", [&](int64_t offset, const std::byte* from, int64_t size) {
          seen.resize((offset + size) / sizeof(float));
          std::memcpy(reinterpret_cast<std::byte*>(seen.data()) + offset, from, size);
          return Status();
        });
    ExpectOk(info.status());
    EXPECT_THAT(seen, ::testing::Each(seen.empty() ? 0.0f : seen.front()));
  }
  void DeleteSomething() {
    ++done_;
    Forget(Name(random_() % 2 == 0 ? "Y" : "Z", random_() % x_.size()));
  }
  void Forget(const std::string& name) {
    const Status status = client_->Delete(name);
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kNotFound) << status.ToString();
  }
  void CancelOne() {
    const size_t i = PutSomeX();
    Result<JobHandle> job = Submit(i, "Y", 2000);
    ExpectOk(job.status());
    if (!job.ok()) return;
    ExpectOk(job->Cancel());
    const Result<JobInfo> ended = job->Wait();
    EXPECT_TRUE(ended.ok() || ended.status().code() == StatusCode::kCancelled)
        << ended.status().ToString();
    ++done_;
  }

  Client* const client_;
  const std::string name_;
  std::mt19937_64 random_;
  const TestMatrix& w_;
  std::vector<TestMatrix> x_, product_;
  int done_ = 0;
  int64_t products_ = 0;
};

class Soak : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(world_.StartAll());
    std::printf("AGMM_SEED=%llu\n", static_cast<unsigned long long>(seed_));
  }

  std::unique_ptr<Client> Connect(int node) {
    Result<std::unique_ptr<Client>> client = Client::Connect({.endpoint = world_.endpoint(node)});
    EXPECT_TRUE(client.ok()) << client.status().ToString();
    return client.ok() ? *std::move(client) : nullptr;
  }
  int64_t ResidentKiB(int node) { return ProcessField(world_.daemon(node).pid(), "VmRSS"); }
  Usage HeldBy(int node) { return UsageOf(world_, node); }

  // Runs all clients with this number of operations each, between the put and the delete of W and
  // S.
  void Round(int operations) {
    const TestMatrix w = SmallIntegers(kK, kN, seed_);
    const std::vector<float> s(40 * kK, 1);
    std::unique_ptr<Client> owner = Connect(0);
    ASSERT_NE(owner, nullptr);
    ASSERT_TRUE(owner
                    ->Put("W", {.rows = kK, .cols = kN, .sharding = "[K, N_x]"}, w.values.data(),
                          w.values.size() * sizeof(float))
                    .ok());
    ASSERT_TRUE(owner
                    ->Put("S", {.rows = 40, .cols = kK, .sharding = "[M_x, K]"}, s.data(),
                          s.size() * sizeof(float))
                    .ok());
    std::atomic<int64_t> products = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < kClients; ++i) {
      threads.emplace_back([&, i] {
        const std::unique_ptr<Client> client = Connect(i % kNodes);
        if (client == nullptr) return;
        Worker worker(client.get(), i, seed_, w);
        worker.Run(operations);
        products += worker.products();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const char* name : {"W", "S"}) EXPECT_TRUE(owner->Delete(name).ok());
    std::printf("%lld products compared\n", static_cast<long long>(products));
    EXPECT_GT(products, operations / 10);
  }

  // Returns what the node holds, once that no longer changes.
  Usage Settled(int node) {
    Usage held = HeldBy(node);
    for (const Deadline end = Deadline::After(absl::Seconds(20)); !end.HasPassed();) {
      absl::SleepFor(absl::Milliseconds(500));
      const Usage now = HeldBy(node);
      if (now == held) break;
      held = now;
    }
    return held;
  }

  const uint64_t seed_ = TestSeed();
  World world_{{.nodes = kNodes, .devices = 2, .heap = "64MiB"}};
};

TEST_F(Soak, EveryProductIsExactAndNothingIsLeft) {
  // The first round fills caches and starts the threads that gRPC keeps.
  ASSERT_NO_FATAL_FAILURE(Round(100));
  std::vector<Usage> before(kNodes);
  for (int node = 0; node < kNodes; ++node) before[node] = Settled(node);
  ASSERT_EQ(before[0].tensor_bytes, 0);

  ASSERT_NO_FATAL_FAILURE(Round(Operations() / 2));
  std::vector<int64_t> resident(kNodes);
  for (int node = 0; node < kNodes; ++node) resident[node] = ResidentKiB(node);
  ASSERT_NO_FATAL_FAILURE(Round(Operations() / 2));
  for (int node = 0; node < kNodes; ++node) {
    EXPECT_TRUE(world_.WaitFor(node, "what it held before",
                               [&](const v1::GetStatusResponse&) {
                                 const Usage now = HeldBy(node);
                                 return now.descriptors <= before[node].descriptors &&
                                        now.threads <= before[node].threads + kPoolThreads &&
                                        now.tensor_bytes == 0 && now.staging_bytes == 0 &&
                                        now.workspace_bytes <= kMostWorkspace;
                               }))
        << "before: " << ::testing::PrintToString(before[node])
        << "; now: " << ::testing::PrintToString(HeldBy(node));
    const int64_t now = ResidentKiB(node);
    if (!kSanitized) {
      EXPECT_LE(now, resident[node] + kMostGrowthKiB * Operations()) << "node " << node;
    }
    std::printf("node %d: %s, %lld KiB resident, %lld in the middle\n", node,
                ::testing::PrintToString(HeldBy(node)).c_str(), static_cast<long long>(now),
                static_cast<long long>(resident[node]));
  }
}

}  // namespace
}  // namespace agmm
