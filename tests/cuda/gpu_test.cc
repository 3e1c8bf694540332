// One GPU and its heap when work does not end or the GPU is lost, on the model. The model is set up
// once per process, so each test runs in its own process.
#include "kernels/cuda/gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/failpoint.h"
#include "kernels/cuda/cuda_heap.h"
#include "kernels/cuda/streams.h"
#include "kernels/cuda/work_clock.h"
#include "tests/gpu/driver_table.h"

namespace agmm::test {
namespace {

using testing::ContainsRegex;

// Awaited work gets a tenth of its usual grace period: 3 s.
class GpuTest : public testing::Test {
 protected:
  GpuTest() { failpoint::Arm("executor.short_grace"); }
  ~GpuTest() override { failpoint::Disarm("executor.short_grace"); }

  // GPU 0 of a model with these options, and a heap of it.
  void Open(const std::string& options) {
    setenv("AGMM_MODEL", options.c_str(), /*overwrite=*/1);
    auto gpu =
        Gpu::Open(0, /*shared=*/true, [this](const std::string& why) { failures_.push_back(why); });
    ASSERT_TRUE(gpu.ok()) << gpu.status();
    gpu_ = *gpu;
    auto heap = CudaHeap::Create(gpu_, 64 << 20);
    ASSERT_TRUE(heap.ok()) << heap.status();
    heap_ = *std::move(heap);
  }
  absl::Status Write() {
    std::byte byte{};
    return heap_->Write({0, 1, 1, 1}, {&byte, 1, 1, 1});
  }
  absl::Status Read() {
    std::byte byte{};
    return heap_->Read({0, 1, 1, 1}, {&byte, 1, 1, 1});
  }

  std::vector<std::string> failures_;  // failures that the GPU reported
  std::shared_ptr<Gpu> gpu_;
  std::unique_ptr<CudaHeap> heap_;
};

// Returns the end of the description under a model with these options.
std::string ReachUnder(const std::string& options, int number) {
  setenv("AGMM_MODEL", options.c_str(), /*overwrite=*/1);
  const auto gpu = Gpu::Open(number, /*shared=*/true);
  if (!gpu.ok()) return gpu.status().ToString();
  const std::string& text = (*gpu)->description();
  return text.substr(text.rfind(", reaches") + 2);
}

TEST(GpuReach, IsNoOtherGpu) {
  EXPECT_EQ(ReachUnder("gpus=2,peers=none", 0), "reaches no other GPU");
}

TEST(GpuReach, IsOneGpu) { EXPECT_EQ(ReachUnder("gpus=4,peers=pairs", 1), "reaches GPU 0"); }

TEST(GpuReach, IsARangeOfGpus) { EXPECT_EQ(ReachUnder("gpus=4", 0), "reaches GPUs 1 to 3"); }

TEST(GpuReach, LeavesOutTheGpuItself) {
  const std::string reach = ReachUnder("gpus=4", 1);
  EXPECT_EQ(reach, "reaches GPUs 0, 2 to 3");
}

TEST_F(GpuTest, AHungCopyIsReportedWithItsTimeAndBound) {
  Open("gpus=1,hang=0@2");
  EXPECT_EQ(Write(), absl::OkStatus());
  const absl::Status status = Write();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(status.message()),
      ContainsRegex("^GPU 0 has not ended a copy of its heap after [0-9.]+ s \\(limit 3.0 s\\); "
                    "restart the daemon$"));
  EXPECT_EQ(gpu_->health().given_up(), status);
  EXPECT_EQ(gpu_->health().failure(), absl::StrCat("GPU 0 is given up: ", status.message()));
  EXPECT_THAT(failures_, testing::ElementsAre(gpu_->health().failure()));
}

// If each waited for two seconds, the test would exceed its time limit.
TEST_F(GpuTest, CallersBehindAHungCopyFailAtOnce) {
  Open("gpus=1,hang=0@1");
  std::vector<absl::Status> ended(32);
  std::vector<std::thread> callers;
  for (size_t i = 0; i < ended.size(); ++i)
    callers.emplace_back([&, i] { ended[i] = i % 2 == 0 ? Write() : Read(); });
  for (std::thread& caller : callers) caller.join();
  for (const absl::Status& status : ended) EXPECT_EQ(status, gpu_->health().given_up());
  EXPECT_FALSE(gpu_->health().given_up().ok());
}

TEST_F(GpuTest, ACopysLimitIncludesTheTimeOfOtherWorkThatHasBegun) {
  Open("gpus=1,hang=0@1");
  std::optional<WorkClock::Begun> other(1'500'000'000);
  const absl::Status status = Read();
  other.reset();
  EXPECT_THAT(std::string(status.message()), ContainsRegex("after [0-9.]+ s \\(limit 4.5 s\\)"));
  EXPECT_EQ(WorkClock::begun_ns(), 0);
}

TEST_F(GpuTest, LanesThatDoNotMultiplyGoFirst) {
  Open("gpus=1");
  DriverTable cu;
  ASSERT_EQ(cu.Open(AGMM_MODEL_FOLDER "/libcuda.so.1"), "");
  RankStreams streams(gpu_);
  const auto copies = streams.Lane(0, /*multiplies=*/false), multiplies = streams.Lane(0, true);
  ASSERT_TRUE(copies.ok() && multiplies.ok());
  EXPECT_EQ(*streams.Lane(0, true), *multiplies);
  const OnGpu here(*gpu_);
  int first = 0, then = 0;
  EXPECT_EQ(cu.cuStreamGetPriority(*copies, &first), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamGetPriority(*multiplies, &then), CUDA_SUCCESS);
  EXPECT_LT(first, then);
  EXPECT_EQ(then, 0);
}

TEST_F(GpuTest, LanesShareNeitherStreamsNorWorkspaces) {
  Open("gpus=2");
  const auto other = Gpu::Open(1, /*shared=*/true);
  ASSERT_TRUE(other.ok()) << other.status();
  RankStreams streams(gpu_);
  EXPECT_NE(*streams.Lane(0, /*multiplies=*/false), *streams.Lane(1, false));
  EXPECT_NE(*streams.Lane(0, true), *streams.Lane(1, true));
  EXPECT_NE(*streams.Workspace(0), *streams.Workspace(1));
  EXPECT_NE(*streams.Through(0, *other), *streams.Through(1, *other));
  EXPECT_NE(*streams.Through(0, *other), *streams.Through(0, gpu_));
}

// A tenant whose turn goes on until Remove has begun, and then for the time in which a Remove that
// does not wait would return.
class LongTurn final : public GpuTenant {
 public:
  explicit LongTurn(GpuThread& thread) : thread_(thread), others_(thread.tenant_count()) {}
  Turn TakeTurn() override {
    begun.count_down();
    while (thread_.tenant_count() > others_) std::this_thread::yield();
    for (int i = 0; i < 100 && !removed; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    over = true;
    return {};
  }
  std::latch begun{1};
  std::atomic<bool> removed{false}, over{false};

 private:
  GpuThread& thread_;
  const int others_;
};

TEST_F(GpuTest, ATenantIsRemovedAfterItsTurn) {
  Open("gpus=1");
  LongTurn tenant(gpu_->thread());
  gpu_->thread().Add(&tenant);
  tenant.begun.wait();
  gpu_->thread().Remove(&tenant);
  EXPECT_TRUE(tenant.over);
  tenant.removed = true;
}

// A product whose launch fails, on a lost GPU and on a healthy one.
class FailedProduct : public GpuTest {
 protected:
  absl::Status RunAfterAFill() {
    const OnGpu here(*gpu_);
    const auto stream = GpuStream::Create(gpu_);
    const auto workspace = GpuBytes::Create(gpu_, kGemmWorkspaceBytes, "a workspace");
    const auto product = gpu_->gemm().Get({8, 8, 8, 32, 32, 32, 4, 4, 4});
    EXPECT_TRUE(stream.ok() && workspace.ok() && product.ok());
    const CUdeviceptr a = heap_->address(), b = a + 1024, c = b + 1024;
    elementwise::Fill fill;
    fill.to = {reinterpret_cast<void*>(a), 32, DType::kF32};
    fill.rows = fill.cols = 8;
    // A launch that loses the GPU succeeds.
    EXPECT_EQ(gpu_->kernels().Launch(fill, (*stream)->get()), CUDA_SUCCESS);
    const absl::Status status = gpu_->Check(
        (*product)->Run(a, b, c, (*workspace)->address(), (*stream)->get()), "cublasLtMatmul");
    if (!gpu_->health().lost().ok()) return status;
    GpuEvents events(gpu_);
    const auto filled = events.Make();
    EXPECT_EQ(gpu_->driver().cuEventRecord(*filled, (*stream)->get()), CUDA_SUCCESS);
    EXPECT_EQ(gpu_->Await(*filled, 0, "a fill"), absl::OkStatus());
    return status;
  }
};

TEST_F(FailedProduct, OnALostGpuNamesTheLoss) {
  Open("gpus=1,lose=0@1");
  const absl::Status status = RunAfterAFill();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              ContainsRegex("^cublasLtMatmul on GPU 0 failed: CUDA_ERROR_LAUNCH_FAILED: .*; this "
                            "daemon cannot use the GPU any more: .*restart the daemon$"));
  EXPECT_EQ(gpu_->health().lost(), status);
  EXPECT_EQ(gpu_->health().failure(), absl::StrCat("GPU 0 is lost: ", status.message()));
  EXPECT_THAT(failures_, testing::ElementsAre(gpu_->health().failure()));
}

TEST_F(FailedProduct, OnAHealthyGpuNamesTheProduct) {
  Open("gpus=1,fail=cublasLtMatmul@1");
  const absl::Status status = RunAfterAFill();
  EXPECT_THAT(std::string(status.message()), ContainsRegex("^cublasLtMatmul on GPU 0 failed: "));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(gpu_->health().lost(), absl::OkStatus());
  EXPECT_EQ(gpu_->health().failure(), "");
}

}  // namespace
}  // namespace agmm::test
