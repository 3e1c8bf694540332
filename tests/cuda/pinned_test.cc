// Pinned memory: a rank's staging, and the chunks through which a heap is written and read. On the
// model, which is set up once per process, so each test runs in its own process.
#include "kernels/cuda/pinned.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/deadline.h"
#include "kernels/cuda/cuda_heap.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/cuda_kind.h"
#include "tests/support/patience.h"

namespace agmm::test {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kLineBytes = 64;

void StartModel(const std::string& options) {
  // Without kernels for Hopper, whose race check follows each 16 bytes of the large copies.
  setenv("AGMM_MODEL", absl::StrCat(options, ",arch=80").c_str(), /*overwrite=*/1);
}

class StagingTest : public testing::Test {
 protected:
  StagingTest() {
    StartModel("gpus=1");
    auto gpu = Gpu::Open(0, /*shared=*/true);
    EXPECT_TRUE(gpu.ok()) << gpu.status();
    staging_ = std::make_unique<Staging>(*gpu);
  }
  std::unique_ptr<Staging> staging_;
};

TEST_F(StagingTest, WhatIsTakenLiesInItsMemoryOnLinesAndDoesNotOverlap) {
  ASSERT_EQ(staging_->Reserve(1), absl::OkStatus());
  std::byte* const begin = staging_->Take(1);  // of an empty region
  ASSERT_NE(begin, nullptr);
  std::byte* free = begin + 1;
  std::vector<std::byte*> taken = {begin};
  for (int64_t bytes = 1;; bytes = bytes * 7 / 5 + 1) {
    std::byte* const data = staging_->Take(bytes);
    if (data == nullptr) break;
    EXPECT_EQ((data - begin) % kLineBytes, 0);
    EXPECT_GE(data, free);
    free = data + bytes;
    EXPECT_LE(free, begin + staging_->bytes());
    taken.push_back(data);
  }
  EXPECT_GT(taken.size(), 20);
  for (std::byte* const data : taken) staging_->Give(data);
  EXPECT_EQ(staging_->Take(staging_->bytes()), begin);
}

TEST_F(StagingTest, ATakeThatDoesNotFitWaitsForAReturn) {
  ASSERT_EQ(staging_->Reserve(1), absl::OkStatus());
  const int64_t quarter = staging_->bytes() / 4;
  std::vector<std::byte*> taken;
  for (int i = 0; i < 4; ++i) ASSERT_NE(taken.emplace_back(staging_->Take(quarter)), nullptr);
  EXPECT_EQ(staging_->Take(1), nullptr);
  staging_->Give(taken[1]);
  EXPECT_EQ(staging_->Take(quarter + 1), nullptr);
  EXPECT_EQ(staging_->Take(quarter), taken[1]);
  EXPECT_EQ(staging_->Take(1), nullptr);
  staging_->Give(taken[1]);
  staging_->Give(taken[2]);
  EXPECT_EQ(staging_->Take(2 * quarter), taken[1]);
  EXPECT_EQ(staging_->Take(1), nullptr);
}

TEST_F(StagingTest, TheLargestReservationCanBeTaken) {
  const int64_t large = 40 * kMiB + 1;
  for (const int64_t bytes : {int64_t{0}, kMiB, large})
    ASSERT_EQ(staging_->Reserve(bytes), absl::OkStatus());
  std::byte* const data = staging_->Take(large);
  ASSERT_NE(data, nullptr);
  EXPECT_NE(staging_->Take(kMiB), nullptr);
  const int64_t bytes = staging_->bytes();
  ASSERT_EQ(staging_->Reserve(large), absl::OkStatus());
  EXPECT_EQ(staging_->bytes(), bytes);
}

// Rows that need several times the two chunks, in orders that begin copies late.
class HeapChunks : public testing::TestWithParam<const char*> {};

TEST_P(HeapChunks, KeepTheirBytesUntilTheyAreCopied) {
  StartModel(GetParam());
  auto gpu = Gpu::Open(0, /*shared=*/true);
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  const auto heap = CudaHeap::Create(*gpu, 64 * kMiB);
  ASSERT_TRUE(heap.ok()) << heap.status();
  uint64_t state = 1;
  const auto next = [&] { return state = state * 6364136223846793005 + 1442695040888963407; };
  for (const HeapRows& place :
       {HeapRows{128, 1, 5 * kMiB + 77, 5 * kMiB + 77}, HeapRows{0, 7000, 1000, 1024},
        HeapRows{3 * kMiB, 3, 2 * kMiB + 5, 3 * kMiB}, HeapRows{0, 9, kMiB, kMiB},
        HeapRows{640, 5, kMiB - 4, kMiB}}) {
    SCOPED_TRACE(place.rows);
    const int64_t pitch = place.row_bytes + 3;
    std::vector<std::byte> from(place.rows * pitch), to(place.rows * pitch);
    for (std::byte& byte : from) byte = static_cast<std::byte>(next() >> 56);
    const auto host = [&](std::vector<std::byte>& bytes) {
      return Rows{bytes.data(), place.rows, place.row_bytes, pitch};
    };
    ASSERT_EQ((*heap)->Write(place, host(from)), absl::OkStatus());
    ASSERT_EQ((*heap)->Read(place, host(to)), absl::OkStatus());
    for (int64_t row = 0; row < place.rows; ++row) {
      ASSERT_TRUE(
          std::equal(&from[row * pitch], &from[row * pitch] + place.row_bytes, &to[row * pitch]))
          << "row " << row;
    }
  }
}

TEST_P(HeapChunks, AreCopiedWhenAWriteReturns) {
  StartModel(GetParam());
  auto gpu = Gpu::Open(0, /*shared=*/true);
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  auto heap = CudaHeap::Create(*gpu, 8 * kMiB);
  ASSERT_TRUE(heap.ok()) << heap.status();
  for (const int64_t bytes : {int64_t{1}, 2 * kMiB, 3 * kMiB}) {
    std::vector<std::byte> from(bytes);
    ASSERT_EQ((*heap)->Write({0, 1, bytes, bytes}, {from.data(), 1, bytes, bytes}),
              absl::OkStatus());
    // Work of another stream, ordered by nothing but the return.
    const OnGpu here(**gpu);
    const auto stream = GpuStream::Create(*gpu);
    ASSERT_TRUE(stream.ok()) << stream.status();
    elementwise::Fill fill;
    fill.to = {reinterpret_cast<void*>((*heap)->address()), bytes, DType::kF16};
    fill.rows = 1;
    fill.cols = (bytes + 1) / 2;
    ASSERT_EQ((*gpu)->kernels().Launch(fill, (*stream)->get()), CUDA_SUCCESS);
    GpuEvents events(*gpu);
    const auto filled = events.Make();
    ASSERT_TRUE(filled.ok()) << filled.status();
    ASSERT_EQ((*gpu)->driver().cuEventRecord(*filled, (*stream)->get()), CUDA_SUCCESS);
    ASSERT_EQ((*gpu)->Await(*filled, bytes, "a fill"), absl::OkStatus());
  }
}

INSTANTIATE_TEST_SUITE_P(All, HeapChunks,
                         testing::Values("gpus=1,order=lazy", "gpus=1,order=random"));

// Two ranks that send 20 MiB each in an epoch, through 16 MiB of staging or as one copy that needs
// all of it.
Case Large(int nodes, int chunks) {
  return {"ring", DType::kF32, 2, nodes, chunks, 640, 2, 16384, 1};
}
constexpr absl::Duration kLimit = kPatience;  // a fraction is enough

std::unique_ptr<Cluster> ClusterOf(const Case& c) {
  Cluster::Options options;
  options.heap_bytes = 256 * kMiB;
  return std::make_unique<Cluster>(CudaKinds()[0], c.topology(), options);
}

// The staging of the ranks must be returned within an epoch, for messages and for copies to GPUs
// without peer access.
class ReturnedStaging : public testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(ReturnedStaging, LetsAnEpochSendMoreThanItHolds) {
  const auto& [nodes, model] = GetParam();
  StartModel(model);
  const Case c = Large(nodes, 4);
  const auto cluster = ClusterOf(c);
  PreparedPlan plan(*cluster, c.problem(), c.schedule(cluster->topology()));
  for (uint64_t epoch = 1; epoch <= 2; ++epoch) {
    for (const EpochReport& report : plan.RunAll(epoch, 1, kLimit))
      ASSERT_EQ(report.status, absl::OkStatus());
  }
}

// One copy has all of the staging, so nothing is left if the failed epoch keeps it.
TEST_P(ReturnedStaging, OfAFailedStepIsTakenByTheNextPlan) {
  const auto& [nodes, model] = GetParam();
  StartModel(absl::StrCat(model, ",fail=cuMemcpyDtoHAsync@1:1"));
  const Case c = Large(nodes, 1);
  const auto cluster = ClusterOf(c);
  {
    PreparedPlan plan(*cluster, c.problem(), c.schedule(cluster->topology()));
    Reports reports(1);
    plan.Run(0, 1, 1, Deadline::After(kLimit), reports.At(0));
    EXPECT_THAT(std::string(reports.Wait()[0].status.message()),
                testing::HasSubstr("cuMemcpyDtoHAsync on GPU 0 failed"));
  }
  PreparedPlan again(*cluster, c.problem(), c.schedule(cluster->topology()));
  for (const EpochReport& report : again.RunAll(1, 1, kLimit))
    EXPECT_EQ(report.status, absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(All, ReturnedStaging,
                         testing::Values(std::tuple(2, "gpus=2"),
                                         std::tuple(1, "gpus=2,peers=none")));

}  // namespace
}  // namespace agmm::test
