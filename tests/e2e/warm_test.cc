// A resident weight and a new activation for each job, as in a model server: once warm, nothing is
// planned, packed or allocated any more, even when M shrinks.
#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/agmm.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/world.h"
#include "tests/support/matrix.h"

namespace agmm {
namespace {

struct Work {
  int64_t plans = 0, workspaces = 0, packs = 0, allocations = 0, tensor_bytes = 0;
  bool operator==(const Work&) const = default;
};

void PrintTo(const Work& work, std::ostream* out) {
  *out << work.plans << " plans, " << work.workspaces << " workspaces, " << work.packs << " packs, "
       << work.allocations << " allocations, " << work.tensor_bytes << " B in tensors";
}

class Warm : public ::testing::Test {
 protected:
  static constexpr int kJobs = kSanitized ? 200 : 1000, kNodes = 2;
  static constexpr int64_t kK = 128, kN = 96;

  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(world_.StartAll());
    Result<std::unique_ptr<Client>> client = Client::Connect({.endpoint = world_.endpoint(1)});
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    client_ = *std::move(client);
    ExpectOk(client_
                 ->Put("W", {.rows = kK, .cols = kN, .sharding = "[K, N_x]"}, w_.values.data(),
                       w_.values.size() * sizeof(float))
                 .status());
  }
  static void ExpectOk(const Status& status) { EXPECT_TRUE(status.ok()) << status.ToString(); }

  // Computes C of a new X of `rows` rows, and compares it if `check`.
  void RunOne(int64_t rows, uint64_t seed, bool check, const std::string& split = "N=x") {
    const std::string x = absl::StrCat("X", rows), y = absl::StrCat("Y", rows);
    const TestMatrix a = SmallIntegers(rows, kK, seed);
    ExpectOk(client_
                 ->Put(x, {.rows = rows, .cols = kK, .sharding = "[M_x, K]"}, a.values.data(),
                       a.values.size() * sizeof(float))
                 .status());
    Result<JobHandle> job = client_->Submit(
        {.spec = "A[M_x, K] * B[K, N_x] -> C[M, N_x]", .a = x, .b = "W", .c = y, .split = split});
    ExpectOk(job.status());
    if (!job.ok()) return;
    ExpectOk(job->Wait().status());
    if (!check) return;
    TestMatrix got{rows, kN, std::vector<float>(rows * kN, -1)};
    ExpectOk(client_->Get(y, got.values.data(), got.values.size() * sizeof(float)).status());
    EXPECT_TRUE(SameBits(got, MatrixProduct(a, w_)));
  }

  Work Done() {
    const v1::GetStatusResponse status = world_.Status(0);
    Work work;
    work.plans = static_cast<int64_t>(MetricOf(status, "plans_prepared_total"));
    work.workspaces = static_cast<int64_t>(MetricOf(status, "workspaces_allocated_total"));
    // Each daemon reports the counters of its own devices.
    for (int node = 0; node < kNodes; ++node) {
      const v1::GetStatusResponse own = world_.Status(node);
      for (const v1::DeviceStatus& device : own.nodes(node).devices()) {
        work.packs += device.pack_count();
        work.allocations += device.allocation_count();
        work.tensor_bytes += device.tensor_bytes();
      }
    }
    return work;
  }

  World world_{{.nodes = kNodes, .devices = 2}};
  const TestMatrix w_ = SmallIntegers(kK, kN, 7);
  std::unique_ptr<Client> client_;
};

TEST_F(Warm, LaterJobsPlanPackAndAllocateNothing) {
  for (int64_t rows : {256, 100, 1}) RunOne(rows, 1, true);
  const Work before = Done();
  EXPECT_EQ(before.plans, 3);
  EXPECT_EQ(before.workspaces, 1) << "what M = 256 needs serves the smaller ones";
  EXPECT_GT(before.packs, 0);
  for (int i = 0; i < kJobs && !HasFailure(); ++i) {
    constexpr int64_t kRows[] = {256, 100, 1};
    RunOne(kRows[i % 3], 2 + i, i % 20 < 3);
  }
  EXPECT_EQ(Done(), before);
}

// B is packed for each job, because it arrives over the network, but into memory that is kept.
TEST_F(Warm, BThatTravelsIsPackedWithoutAllocating) {
  for (int64_t rows : {256, 100}) RunOne(rows, 1, true, "M=x");
  const Work before = Done();
  for (int i = 0; i < 100 && !HasFailure(); ++i) RunOne(i % 2 ? 256 : 100, 2 + i, i < 2, "M=x");
  const Work after = Done();
  EXPECT_GT(after.packs, before.packs);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.plans, before.plans);
  EXPECT_EQ(after.workspaces, before.workspaces);
}

// A sum, a sum that stays open, and every collective.
TEST_F(Warm, SumsAndCollectivesAllocateNothingEither) {
  const TestMatrix x = SmallIntegers(64, kK, 3);
  ExpectOk(client_
               ->Put("X", {.rows = x.rows, .cols = x.cols, .sharding = "[M, K_x]"}, x.values.data(),
                     x.values.size() * sizeof(float))
               .status());
  ExpectOk(client_
               ->Put("V", {.rows = kK, .cols = kN, .sharding = "[K_x, N]"}, w_.values.data(),
                     w_.values.size() * sizeof(float))
               .status());
  const auto run_all = [&](int times) {
    for (int i = 0; i < times && !HasFailure(); ++i) {
      const auto run = [&](const std::string& spec, std::map<std::string, std::string> tensors) {
        // Under another split B travels, and is packed for each job.
        const std::string split = tensors.count("B") > 0 ? "K=x" : "";
        ExpectOk(
            client_->Run({.spec = spec, .tensors = std::move(tensors), .split = split}).status());
      };
      const std::map<std::string, std::string> inputs = {{"A", "X"}, {"B", "V"}};
      const auto into = [&](const char* name) {
        std::map<std::string, std::string> tensors = inputs;
        tensors["C"] = name;
        return tensors;
      };
      run("A[M, K_x] * B[K_x, N] -> C[M, N]", into("Whole"));
      run("A[M, K_x] * B[K_x, N] -> C[M, N_x]", into("Columns"));
      run("A[M, K_x] * B[K_x, N] -> C[M, N]{U_x}", into("Parts"));
      run("C[M, N]{U_x} -> D[M, N]", {{"C", "Parts"}, {"D", "Reduced"}});
      run("C[M, N]{U_x} -> D[M_x, N]", {{"C", "Parts"}, {"D", "Scattered"}});
      run("D[M_x, N] -> E[M, N_x]", {{"D", "Scattered"}, {"E", "Moved"}});
      run("E[M, N_x] -> F[M, N]", {{"E", "Moved"}, {"F", "Gathered"}});
    }
  };
  run_all(1);
  const Work before = Done();
  EXPECT_EQ(before.plans, 7);
  run_all(kSanitized ? 10 : 50);
  EXPECT_EQ(Done(), before);
  for (const char* name : {"Whole", "Columns", "Reduced", "Scattered", "Moved", "Gathered"}) {
    TestMatrix got{x.rows, kN, std::vector<float>(x.rows * kN, -1)};
    ExpectOk(client_->Get(name, got.values.data(), got.values.size() * sizeof(float)).status());
    EXPECT_TRUE(SameBits(got, MatrixProduct(x, w_))) << name;
  }
}

// X is M x K; the jobs differ in N, and each gathers all of X.
TEST_F(Warm, FiftyShapesInAQueueTakeTheWorkspacesOfTwo) {
  constexpr int kShapes = 50;
  constexpr int64_t kM = 512, kDepth = 1024;
  const TestMatrix x = SmallIntegers(kM, kDepth, 3);
  ExpectOk(client_
               ->Put("X", {.rows = kM, .cols = kDepth, .sharding = "[M_x, K]"}, x.values.data(),
                     x.values.size() * sizeof(float))
               .status());
  std::vector<TestMatrix> b;
  for (int i = 0; i < kShapes; ++i) {
    b.push_back(SmallIntegers(kDepth, 4 + i, 100 + i));
    ExpectOk(client_
                 ->Put(absl::StrCat("B", i),
                       {.rows = kDepth, .cols = 4 + i, .sharding = "[K, N_x]"}, b[i].values.data(),
                       b[i].values.size() * sizeof(float))
                 .status());
  }
  const auto submit = [&](int i, const std::string& y, int repeat) {
    Result<JobHandle> job = client_->Submit({.spec = "A[M_x, K] * B[K, N_x] -> C[M, N_x]",
                                             .a = "X",
                                             .b = absl::StrCat("B", i),
                                             .c = y,
                                             .algorithm = "hierarchical",
                                             .split = "N=x",
                                             .repeat_count = repeat,
                                             .timeout = std::chrono::minutes(5)});
    ExpectOk(job.status());
    return job;
  };
  // Holds up the queue.
  Result<JobHandle> first = submit(0, "Y", 100000);
  ASSERT_TRUE(first.ok());
  std::vector<JobHandle> jobs;
  for (int i = 0; i < kShapes && !HasFailure(); ++i) {
    Result<JobHandle> job = submit(i, absl::StrCat("Y", i), 1);
    if (job.ok()) jobs.push_back(*std::move(job));
  }
  int64_t heap = 0, workspaces = 0;
  const v1::GetStatusResponse status = world_.Status(0);
  for (const v1::NodeStatus& node : status.nodes()) {
    for (const v1::DeviceStatus& device : node.devices()) {
      heap = device.heap_bytes();
      workspaces = std::max<int64_t>(workspaces, device.workspace_bytes());
    }
  }
  // At least half of X for each launched job.
  constexpr int64_t kGathered = kM * kDepth * sizeof(float) / 2;
  EXPECT_GT(kShapes * kGathered, heap);
  EXPECT_GE(workspaces, kGathered);
  EXPECT_LE(workspaces, 4 * kGathered);
  ExpectOk(first->Cancel());
  for (size_t i = 0; i < jobs.size(); ++i) {
    ExpectOk(jobs[i].Wait().status());
    TestMatrix got{kM, b[i].cols, std::vector<float>(kM * b[i].cols, -1)};
    ExpectOk(
        client_->Get(absl::StrCat("Y", i), got.values.data(), got.values.size() * sizeof(float))
            .status());
    EXPECT_TRUE(SameBits(got, MatrixProduct(x, b[i]))) << i;
  }
}

}  // namespace
}  // namespace agmm
