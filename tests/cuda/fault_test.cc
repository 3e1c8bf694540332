// Faults of the driver, of cuBLASLt and of GPUs, on the model: each gives one line with value,
// bound and next action, and unaffected work continues. The model is set up once per process, so
// each test runs in its own process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "kernels/base/failpoint.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/cuda_kind.h"
#include "tests/support/armed.h"

namespace agmm::test {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;

void Model(const std::string& options) { setenv("AGMM_MODEL", options.c_str(), /*overwrite=*/1); }

absl::Status OpenGpu(int gpu = 0) { return CreateCudaDevice({gpu, /*shared=*/true}).status(); }

TEST(CudaFault, AHeapThatDoesNotFitNamesRequestedFreeAndTotalBytes) {
  Model("gpus=1,memory=1GiB");
  const auto device = CreateCudaDevice({0, true});
  ASSERT_TRUE(device.ok()) << device.status();
  const absl::Status status = (*device)->CreateHeap(int64_t{1} << 30).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(status.message()),
      ContainsRegex("^a heap of 1 GiB was requested on GPU 0, where 1 GiB of 1 GiB are free and "
                    "512 MiB must stay free for workspaces and kernels, 512 MiB for each device on "
                    "the GPU; give the device a smaller heap"));
  EXPECT_TRUE((*device)->CreateHeap(64 << 20).ok());
}

TEST(CudaFault, AHeapLeavesRoomForEachRankOfItsGpu) {
  Model("gpus=1,memory=1280MiB");
  const auto first = CreateCudaDevice({0, true}), second = CreateCudaDevice({0, true});
  ASSERT_TRUE(first.ok() && second.ok());
  const auto heap = (*first)->CreateHeap(192 << 20);
  ASSERT_TRUE(heap.ok()) << heap.status();
  const absl::Status status = (*second)->CreateHeap(192 << 20).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("and 1 GiB must stay free"));
  EXPECT_TRUE((*second)->CreateHeap(64 << 20).ok());
}

TEST(CudaFault, ADriverThatRefusesMemoryIsAHeapThatDoesNotFit) {
  Model("gpus=1,fail=cuMemCreate@1");
  const auto device = CreateCudaDevice({0, true});
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->CreateHeap(64 << 20).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE((*device)->CreateHeap(64 << 20).ok());
}

TEST(CudaFault, AHeapIsMappedForAnotherGpuOnceAPlanNeedsIt) {
  Model("gpus=2,fail=cuMemSetAccess@3:217");
  const Case c{"ring", DType::kF32, 2, 1, 1, 40, 12, 20, 1};
  Cluster cluster(CudaKinds()[0], c.topology());
  const absl::Status refused = PrepareRank0(cluster, c.problem(), c.schedule());
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("cuMemSetAccess on GPU 1 failed: CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"));
  EXPECT_EQ(PrepareRank0(cluster, c.problem(), c.schedule()), absl::OkStatus());
}

TEST(CudaFault, AStubIsNoDriver) {
  Model("driver=stub");
  const absl::Status status = OpenGpu();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is the CUDA toolkit's stub"));
}

TEST(CudaFault, AnOldDriverIsRefusedWithBothVersions) {
  Model("driver=11080");
  const absl::Status status = OpenGpu();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              ContainsRegex("of CUDA 11.8, and this program was built for CUDA 1[0-9].0 or newer"));
}

TEST(CudaFault, WithoutCublasLtTheErrorListsTheTriedNames) {
  Model("gpus=1");
  setenv("AGMM_CUBLASLT", "/nowhere/libcublasLt.so.13", 1);
  const absl::Status status = OpenGpu();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              ContainsRegex("^no cuBLASLt: tried /nowhere/libcublasLt.so.13 .*set AGMM_CUBLASLT"));
}

TEST(CudaFault, AGpuThatDoesNotExistIsRefusedWithTheirNumber) {
  Model("gpus=2");
  const absl::Status status = OpenGpu(2);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("GPU 2 does not exist; this machine has 2"));
}

TEST(CudaFault, AGpuThatAnotherDaemonHoldsIsRefusedByItsProcess) {
  Model("gpus=16,memory=64MiB,machine=" + std::to_string(getpid()));
  int held[2], done[2];
  ASSERT_EQ(pipe(held), 0);
  ASSERT_EQ(pipe(done), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto device = CreateCudaDevice({15});
    char word = device.ok() ? 'y' : 'n';
    if (write(held[1], &word, 1) != 1) _exit(1);
    close(done[1]);
    if (read(done[0], &word, 1) < 0) _exit(1);
    _exit(0);
  }
  close(done[0]);
  char word = 0;
  ASSERT_EQ(read(held[0], &word, 1), 1);
  EXPECT_EQ(word, 'y');
  const absl::Status status = CreateCudaDevice({15}).status();
  close(done[1]);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("GPU 15 is held by another daemon, process " + std::to_string(child)));
}

// Two ranks on GPUs 0 and 1, and two on GPUs 2 and 3.
class LostGpu : public testing::TestWithParam<const char*> {};

TEST_P(LostGpu, EndsItsPlansAndNoOthers) {
  Model(std::string("memory=4GiB,") + GetParam());
  const DeviceKind kind = CudaKinds()[0];
  DeviceKind far = kind;
  far.create = [&](Rank rank, int threads) { return kind.create(rank + 2, threads); };
  const Case c{"ring", DType::kF32, 2, 1, 1, 40, 12, 20, 1};
  Cluster near_cluster(kind, c.topology()), far_cluster(far, c.topology());
  PreparedPlan lost(near_cluster, c.problem(), c.schedule()),
      other(far_cluster, c.problem(), c.schedule());
  const TestMatrix a = SmallIntegers(40, 20, 1), b = SmallIntegers(20, 12, 2);
  lost.Fill(a, b);
  other.Fill(a, b);
  absl::Status first;
  for (uint64_t epoch = 1; epoch <= 40 && first.ok(); ++epoch) {
    for (const EpochReport& report : lost.RunAll(epoch)) first.Update(report.status);
  }
  EXPECT_EQ(first.code(), absl::StatusCode::kUnavailable) << first;
  EXPECT_THAT(std::string(first.message()),
              ContainsRegex("on GPU 1 failed: CUDA_ERROR_[A-Z_]+.*restart the daemon"));
  for (const EpochReport& report : lost.RunAll(50)) EXPECT_FALSE(report.status.ok());
  for (const EpochReport& report : other.RunAll(1)) EXPECT_EQ(report.status, absl::OkStatus());
  for (Rank rank = 0; rank < 2; ++rank) EXPECT_EQ(other.CountWrong(rank, MatrixProduct(a, b)), 0);
  // Stuck work blocks other work that shares its hardware channel.
  if (std::string(GetParam()).find("stuck") != std::string::npos) return;
  const Case alone{"serial", DType::kF32, 1, 1, 1, 40, 12, 20, 1};
  Cluster beside(kind, alone.topology());
  PreparedPlan on_gpu_0(beside, alone.problem(), alone.schedule());
  on_gpu_0.Fill(a, b);
  for (const EpochReport& report : on_gpu_0.RunAll(1)) EXPECT_EQ(report.status, absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(All, LostGpu,
                         testing::Values("gpus=4,lose=1@60", "gpus=4,lose=1@60,orphans=stuck",
                                         "gpus=4,lose=1@60,peers=none",
                                         "gpus=4,lose=1@60,peers=none,orphans=stuck",
                                         "gpus=4,lose=1@60,peers=none,orphans=stuck,order=lazy",
                                         "gpus=4,lose=1@60,orphans=refused",
                                         "gpus=4,lose=1@60,peers=none,orphans=refused",
                                         "gpus=4,lose=1@55,peers=none,order=random",
                                         "gpus=4,lose=1@63,peers=none,order=random",
                                         "gpus=4,lose=1@61,order=random"));

// Two ranks on GPUs 0 and 1, of which GPU 1 silently never ends some of its work.
class HungGpu : public testing::TestWithParam<const char*> {
 protected:
  const Armed short_grace_{"executor.short_grace"};
};

TEST_P(HungGpu, EndsItsEpochsAndKeepsWhatItMayWrite) {
  Model(GetParam());
  const DeviceKind kind = CudaKinds()[0];
  const Case c{"ring", DType::kF32, 2, 1, 1, 40, 12, 20, 1};
  Cluster cluster(kind, c.topology());
  PreparedPlan plan(cluster, c.problem(), c.schedule()), other(cluster, c.problem(), c.schedule());
  plan.FillInputs(1);
  other.FillInputs(1);
  std::vector<EpochReport> ended(2);
  for (uint64_t epoch = 1; epoch <= 40 && ended[1].status.ok(); ++epoch)
    ended = plan.RunAll(epoch, 1, absl::Seconds(4));
  EXPECT_EQ(ended[1].status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(
      std::string(ended[1].status.message()),
      ContainsRegex("^rank 1 .*, epoch [0-9]+; GPU 1 has not ended its work [0-9.]+ s after "
                    "the epoch failed \\(limit [0-9.]+ s\\); restart the daemon$"));
  // These have no deadline that could end them.
  Reports later(2);
  plan.Run(1, 50, 1, Deadline::Infinite(), later.At(0));
  other.Run(1, 1, 1, Deadline::Infinite(), later.At(1));
  EXPECT_EQ(later.Wait()[0].status, ended[1].status);
  EXPECT_EQ(later.Wait()[1].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(later.Wait()[1].status.message()),
              ContainsRegex("^GPU 1 has not ended its work .*; restart the daemon$"));
  // The GPU refuses new plans, new heaps and writes, because its work may still write anywhere.
  std::byte byte{};
  for (const absl::Status& refused : {PrepareRank0(cluster, c.problem(), c.schedule()),
                                      cluster.device(1)->CreateHeap(1 << 20).status(),
                                      cluster.heap(1)->Write({0, 1, 1, 1}, {&byte, 1, 1, 1})}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
  }
  // One GPU waits for the other one.
  for (int gpu = 0; gpu < 2; ++gpu) {
    EXPECT_THAT(cluster.device(gpu)->info().failure,
                ContainsRegex(absl::StrFormat(
                    "^GPU %d is given up: (GPU %d|work of GPU %d may still write to it: GPU %d) "
                    "has not ended its work .*; restart the daemon$",
                    gpu, gpu, 1 - gpu, 1 - gpu)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, HungGpu,
                         testing::Values("gpus=2,hang=1@60", "gpus=2,hang=1@61,order=lazy",
                                         "gpus=2,hang=1@60,peers=none,calls=block",
                                         "gpus=2,hang=1@62,order=random,calls=block"));

// GPU 1 never ends its kernel, and the kernels of the others wait for chunks that it sends.
TEST(HungKernel, TheKernelsThatWaitForItEndAndItsGpuIsGivenUp) {
  Model("gpus=3,channels=1,hang=1@30");
  const Armed few_rows("products.few_rows"), short_grace("executor.short_grace");
  Case c{"ring", DType::kBF16, 3, 1, 1, 97, 61, 33};
  c.carried = true;
  Cluster cluster(CudaKinds()[0], c.topology());
  PreparedPlan plan(cluster, c.problem(), c.schedule());
  EXPECT_THAT(plan.executor(1)->device_products(), ElementsAre("agmm_ring_bf16_bf16_128"));
  plan.FillInputs(1);
  std::vector<EpochReport> ended(3);
  for (uint64_t epoch = 1; epoch <= 40 && ended[1].status.ok(); ++epoch)
    ended = plan.RunAll(epoch, 1, absl::Seconds(4));
  for (Rank rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ended[rank].status.code(), absl::StatusCode::kDeadlineExceeded);
    const std::string message(ended[rank].status.message());
    EXPECT_EQ(absl::StrContains(message, "GPU 1 has not ended its work"), rank == 1) << message;
    EXPECT_THAT(cluster.device(rank)->info().failure,
                ContainsRegex(absl::StrFormat("^GPU %d is given up: %sGPU 1 has not ended its work",
                                              rank, rank == 1 ? "" : "work of GPU 1 .*: ")));
  }
}

// Each call fails once, at its first use by an epoch or later: the epoch fails by name, the plan
// with it, and a new plan on the same devices is right.
class FailedCall : public testing::TestWithParam<const char*> {};

TEST_P(FailedCall, FailsItsEpochAndTheNextPlanIsRight) {
  const std::string call = GetParam();
  Model(("gpus=2,fail=" + call).c_str());
  const DeviceKind kind = CudaKinds()[0];
  const Case c{"ring", DType::kBF16, 2, 1, 1, 40, 12, 20, 1};
  Cluster cluster(kind, c.topology());
  const TestMatrix a = SmallIntegers(40, 20, 1), b = SmallIntegers(20, 12, 2);
  {
    PreparedPlan plan(cluster, c.problem(), c.schedule());
    plan.Fill(a, b);
    absl::Status first;
    for (uint64_t epoch = 1; epoch <= 20 && first.ok(); ++epoch) {
      for (const EpochReport& report : plan.RunAll(epoch, 1, absl::Seconds(2)))
        if (report.status.code() != absl::StatusCode::kDeadlineExceeded)
          first.Update(report.status);
    }
    EXPECT_THAT(std::string(first.message()), HasSubstr(call.substr(0, call.find('@'))));
  }
  PreparedPlan again(cluster, c.problem(), c.schedule());
  again.Fill(a, b);
  for (const EpochReport& report : again.RunAll(1)) EXPECT_EQ(report.status, absl::OkStatus());
  for (Rank rank = 0; rank < 2; ++rank) EXPECT_EQ(again.CountWrong(rank, MatrixProduct(a, b)), 0);
}

INSTANTIATE_TEST_SUITE_P(All, FailedCall,
                         testing::Values("cublasLtMatmul@9", "cuMemcpy2DAsync@3:1",
                                         "cuStreamWaitEvent@11:1", "cuEventRecord@38:1",
                                         "cuEventRecord@37:1"));

}  // namespace
}  // namespace agmm::test
