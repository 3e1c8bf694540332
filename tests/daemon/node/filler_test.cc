// Fills of a node's shards: every element of every shard, and nothing else, is written; a drained
// filler writes nothing.
#include "daemon/node/filler.h"

#include <cstring>
#include <mutex>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/fill.h"
#include "kernels/base/units.h"
#include "kernels/cpu/cpu_device.h"
#include "proto/convert/rpc_status.h"
#include "tests/daemon/fake_members.h"
#include "tests/support/hidden_heap.h"
#include "tests/support/notification.h"
#include "tests/support/patience.h"

namespace agmm {
namespace {

// The parameter is true if the host cannot address the heaps.
class FillerTest : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr int64_t kHeap = 1 << 20;
  static constexpr int kRanks = 4;

  FillerTest() : device_(*CreateCpuDevice(1)) {
    std::vector<Heap*> raw;
    for (int rank = 0; rank < kRanks; ++rank) {
      heaps_.push_back(*device_->CreateHeap(kHeap));
      hidden_.push_back(std::make_unique<test::HiddenHeap>(heaps_.back()->host()));
      raw.push_back(GetParam() ? hidden_.back().get() : heaps_.back().get());
    }
    Poison();
    store_ = std::make_unique<TensorStore>(0, raw);
    filler_ = std::make_unique<Filler>(store_.get(), [this](v1::Report report) {
      std::lock_guard lock(mutex_);
      reports_.push_back(std::move(report));
      changed_.notify_all();
    });
  }
  ~FillerTest() override { failpoint::Disarm("filler.stuck"); }

  void Poison() {
    for (auto& heap : heaps_) std::memset(heap->host().data(), 0xa5, kHeap);
  }
  bool Untouched(int rank, int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i)
      if (heaps_[rank]->host().data()[i] != std::byte{0xa5}) return false;
    return true;
  }
  void Place(uint64_t id, const v1::CreateTensorRequest& request, int64_t offset) {
    v1::Tensor tensor;
    tensor.set_tensor_id(id);
    *tensor.mutable_spec() = request.spec();
    tensor.set_offset_bytes(offset);
    tensor.set_shard_bytes(kHeap - offset);
    ASSERT_TRUE(store_->Place(tensor).ok());
  }
  void Start(uint64_t id, uint64_t seed) {
    v1::FillShards command;
    command.set_tensor_id(id);
    command.mutable_fill()->set_kind(v1::Fill::KIND_UNIFORM);
    command.mutable_fill()->set_seed(seed);
    filler_->Fill(command);
  }
  // Returns report `n`, or an error if it does not arrive.
  absl::StatusOr<v1::TensorFilled> Report(size_t n) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, absl::ToChronoNanoseconds(kPatience),
                           [&] { return reports_.size() > n; }))
      return absl::DeadlineExceededError("no report");
    return reports_[n].tensor_filled();
  }
  size_t ReportCount() {
    std::lock_guard lock(mutex_);
    return reports_.size();
  }

  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<Heap>> heaps_, hidden_;
  std::unique_ptr<TensorStore> store_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<v1::Report> reports_;
  std::unique_ptr<Filler> filler_;
};
INSTANTIATE_TEST_SUITE_P(Hidden, FillerTest, ::testing::Bool());

TEST_P(FillerTest, EveryShardHasItsPartAndThePaddingIsLeftAlone) {
  constexpr int64_t kRows = 10, kCols = 37, kOffset = 4096;
  std::vector<float> expected(kRows * kCols);
  const FillSpec fill{FillKind::kUniform, 9};
  v1::Mesh square = MeshOf(4);
  square.mutable_axes(0)->set_size(2);
  *square.add_axes() = square.axes(0);
  square.mutable_axes(1)->set_name("y");
  uint64_t id = 1;
  size_t report = 0;
  for (v1::DType proto : {v1::DTYPE_F32, v1::DTYPE_BF16, v1::DTYPE_F16}) {
    const DType dtype = proto == v1::DTYPE_F32    ? DType::kF32
                        : proto == v1::DTYPE_BF16 ? DType::kBF16
                                                  : DType::kF16;
    const int64_t element = SizeOf(dtype);
    std::vector<std::byte> whole(kRows * kCols * element);
    FillValues(fill, dtype, 0, kRows * kCols, whole.data());
    for (const char* sharding : {"[M_x, K_y]", "[M_y, K_x]", "[M_xy, K]", "[M, K_x]", "[M, K]"}) {
      SCOPED_TRACE(sharding);
      Poison();
      Place(++id, TensorRequest("", sharding, kRows, kCols, square, proto), kOffset);
      Start(id, 9);
      const auto filled = Report(report++);
      ASSERT_TRUE(filled.ok()) << filled.status();
      EXPECT_EQ(filled->tensor_id(), id);
      EXPECT_TRUE(FromProto(filled->error()).ok());
      const auto shards = store_->Shards(id);
      ASSERT_TRUE(shards.ok());
      int64_t elements = 0;
      for (const LocalShard& shard : *shards) {
        for (int64_t row = 0; row < shard.rows.size(); ++row) {
          const std::byte* at =
              heaps_[shard.rank]->host().data() + shard.offset_bytes + row * shard.pitch_bytes;
          const int64_t bytes = shard.cols.size() * element;
          ASSERT_EQ(std::memcmp(
                        at, &whole[((shard.rows.begin + row) * kCols + shard.cols.begin) * element],
                        bytes),
                    0);
          for (int64_t i = bytes; i < shard.pitch_bytes; ++i) ASSERT_EQ(at[i], std::byte{0xa5});
        }
        elements += shard.rows.size() * shard.cols.size();
        const int64_t end = kOffset + shard.rows.size() * shard.pitch_bytes;
        const int rank = static_cast<int>(&shard - shards->data());
        if (shards->size() == kRanks) {
          EXPECT_TRUE(Untouched(rank, 0, kOffset));
          EXPECT_TRUE(Untouched(rank, end, kHeap));
        }
      }
      EXPECT_EQ(elements % (kRows * kCols), 0);
    }
  }
}

TEST_P(FillerTest, AnUnknownTensorIsReported) {
  Start(77, 1);
  const auto filled = Report(0);
  ASSERT_TRUE(filled.ok());
  EXPECT_TRUE(absl::IsNotFound(FromProto(filled->error())));
}

TEST_P(FillerTest, NothingIsWrittenOnceAGenerationHasDrained) {
#ifndef AGMM_FAILPOINTS
  GTEST_SKIP() << "needs a fill that does not end";
#endif
  Place(1, TensorRequest("", "[M_x, K]", 400, 400, MeshOf(4)), 0);
  failpoint::Arm("filler.stuck");
  Start(1, 1);
  Start(1, 2);
  Notification drained;
  filler_->EndGeneration([&] { drained.Notify(); });
  ASSERT_TRUE(drained.WaitFor(kPatience));
  failpoint::Disarm("filler.stuck");
  // The next generation's fill is the first that is reported, and finds memory that no other fill
  // writes.
  Poison();
  Place(2, TensorRequest("", "[M_x, K]", 4, 4, MeshOf(4)), kHeap / 2);
  Start(2, 3);
  const auto filled = Report(0);
  ASSERT_TRUE(filled.ok()) << filled.status();
  EXPECT_EQ(filled->tensor_id(), 2u);
  EXPECT_TRUE(FromProto(filled->error()).ok());
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(Untouched(rank, 0, kHeap / 2));
  EXPECT_EQ(ReportCount(), 1u);
}

TEST_P(FillerTest, AnIdleFillerDrainsAtOnceAndARunningOneEnds) {
#ifndef AGMM_FAILPOINTS
  GTEST_SKIP() << "needs a fill that does not end";
#endif
  Notification drained;
  filler_->EndGeneration([&] { drained.Notify(); });
  EXPECT_TRUE(drained.WaitFor(kPatience));
  Place(1, TensorRequest("", "[M_x, K]", 400, 400, MeshOf(4)), 0);
  failpoint::Arm("filler.stuck");
  Start(1, 1);
  filler_.reset();
  EXPECT_EQ(ReportCount(), 0u);
}

}  // namespace
}  // namespace agmm
