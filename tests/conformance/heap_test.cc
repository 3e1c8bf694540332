// The guarantees of every heap for writes, reads and fills of its rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/conformance/harness.h"

namespace agmm::test {
namespace {

constexpr int64_t kHeap = 1 << 20;
constexpr std::byte kOld{0xa5};

class HeapTest : public testing::TestWithParam<DeviceKind> {
 protected:
  HeapTest() : device_(GetParam().create(0, 1)), heap_(*device_->CreateHeap(kHeap)) {
    std::vector<std::byte> poison(kHeap, kOld);
    EXPECT_EQ(heap_->Write({0, 1, kHeap, kHeap}, {poison.data(), 1, kHeap, kHeap}),
              absl::OkStatus());
  }
  std::vector<std::byte> Whole() {
    std::vector<std::byte> bytes(kHeap);
    EXPECT_EQ(heap_->Read({0, 1, kHeap, kHeap}, {bytes.data(), 1, kHeap, kHeap}), absl::OkStatus());
    return bytes;
  }
  static std::vector<std::byte> Counted(int64_t bytes) {
    std::vector<std::byte> made(bytes);
    for (int64_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(i * 37 % 251);
    return made;
  }
  static bool Never() { return false; }

  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Heap> heap_;
};

TEST_P(HeapTest, RowsOfAnyPitchRoundTripAndThePaddingStays) {
  struct Shape {
    int64_t offset, rows, row_bytes, pitch, host_pitch;
  };
  for (const Shape& s : {Shape{0, 1, 1, 1, 1}, Shape{4096, 7, 100, 128, 100},
                         Shape{130, 5, 6, 256, 10}, Shape{128, 9, 128, 128, 128},
                         Shape{kHeap - 4 * 512 - 2, 5, 2, 512, 3}, Shape{256, 3, 40, 40, 48}}) {
    SCOPED_TRACE(s.offset);
    const std::vector<std::byte> before = Whole();
    std::vector<std::byte> from = Counted(s.rows * s.host_pitch);
    const HeapRows place{s.offset, s.rows, s.row_bytes, s.pitch};
    ASSERT_EQ(heap_->Write(place, {from.data(), s.rows, s.row_bytes, s.host_pitch}),
              absl::OkStatus());
    std::vector<std::byte> expected = before;
    for (int64_t row = 0; row < s.rows; ++row)
      std::copy_n(from.begin() + row * s.host_pitch, s.row_bytes,
                  expected.begin() + s.offset + row * s.pitch);
    EXPECT_TRUE(Whole() == expected);
    std::vector<std::byte> to(s.rows * s.host_pitch, kOld), back = to;
    for (int64_t row = 0; row < s.rows; ++row)
      std::copy_n(from.begin() + row * s.host_pitch, s.row_bytes,
                  back.begin() + row * s.host_pitch);
    ASSERT_EQ(heap_->Read(place, {to.data(), s.rows, s.row_bytes, s.host_pitch}), absl::OkStatus());
    EXPECT_TRUE(to == back);
  }
}

TEST_P(HeapTest, ZeroRowsAreAcceptedAndTouchNothing) {
  EXPECT_EQ(heap_->Write({kHeap * 2, 0, 8, 8}, {nullptr, 0, 8, 8}), absl::OkStatus());
  EXPECT_EQ(heap_->Read({0, 4, 0, 0}, {nullptr, 4, 0, 0}), absl::OkStatus());
}

TEST_P(HeapTest, RowsOutsideAreRefusedWithValueAndBound) {
  std::vector<std::byte> bytes = Counted(4096);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const HeapRows& place :
       {HeapRows{kHeap - 9, 1, 10, 10}, HeapRows{-1, 1, 10, 10}, HeapRows{kHeap - 1024, 9, 10, 128},
        HeapRows{kMost, 9, 10, 128}, HeapRows{0, 9, 10, kMost}, HeapRows{8, 9, 10, kMost / 8}}) {
    const Rows host{bytes.data(), place.rows, place.row_bytes, place.row_bytes};
    for (const absl::Status& status : {heap_->Write(place, host), heap_->Read(place, host),
                                       heap_->Fill(place, {}, DType::kBF16, 0, 5, Never)}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr("a heap of 1048576 B"));
    }
  }
  EXPECT_TRUE(Whole() == std::vector<std::byte>(kHeap, kOld));
}

TEST_P(HeapTest, RowsThatOverlapOrDoNotFitEachOtherAreRefused) {
  std::vector<std::byte> bytes = Counted(4096);
  const Rows four{bytes.data(), 4, 10, 10};
  for (const auto& [place, host] : {std::pair{HeapRows{0, 4, 10, 9}, four},
                                    {HeapRows{0, -4, 10, 10}, four},
                                    {HeapRows{0, 3, 10, 10}, four},
                                    {HeapRows{0, 4, 12, 12}, four},
                                    {HeapRows{0, 4, 10, 10}, Rows{nullptr, 4, 10, 10}},
                                    {HeapRows{0, 4, 10, 10}, Rows{bytes.data(), 4, 10, 9}}}) {
    EXPECT_EQ(heap_->Write(place, host).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(heap_->Read(place, host).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(HeapTest, AFillHasTheValuesOfItsIndicesAndThePaddingStays) {
  constexpr int64_t kOffset = 1024, kRows = 6, kCols = 37, kFirst = 1000, kStride = 91;
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const FillSpec& fill : {FillSpec{FillKind::kUniform, 7}, FillSpec{FillKind::kIntegers, 7},
                                 FillSpec{FillKind::kConstant, 0, 0.3}}) {
      const int64_t bytes = kCols * SizeOf(dtype);
      std::vector<std::byte> expected = Whole();
      ASSERT_EQ(heap_->Fill({kOffset, kRows, bytes, 256}, fill, dtype, kFirst, kStride, Never),
                absl::OkStatus());
      for (int64_t row = 0; row < kRows; ++row)
        FillValues(fill, dtype, kFirst + row * kStride, kCols, &expected[kOffset + row * 256]);
      EXPECT_TRUE(Whole() == expected) << Name(dtype);
    }
  }
}

TEST_P(HeapTest, AFillEndsOnceItIsStopped) {
  int asked = 0;
  const auto stop = [&] { return ++asked == 1; };
  const absl::Status status =
      heap_->Fill({0, 16, 1 << 14, 1 << 14}, {}, DType::kF32, 0, 4096, stop);
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_EQ(asked, 1);
}

TEST_P(HeapTest, AFillDelaysNoCopies) {
  constexpr int64_t kBehind = kHeap / 2, kBytes = 1000;
  std::vector<std::byte> from = Counted(kBytes), to(kBytes);
  const auto stop = [&] {
    EXPECT_EQ(heap_->Write({kBehind, 1, kBytes, kBytes}, {from.data(), 1, kBytes, kBytes}),
              absl::OkStatus());
    EXPECT_EQ(heap_->Read({kBehind, 1, kBytes, kBytes}, {to.data(), 1, kBytes, kBytes}),
              absl::OkStatus());
    return false;
  };
  EXPECT_EQ(heap_->Fill({0, 16, 1 << 14, 1 << 14}, {}, DType::kF32, 0, 4096, stop),
            absl::OkStatus());
  EXPECT_TRUE(to == from);
}

INSTANTIATE_TEST_SUITE_P(All, HeapTest, testing::ValuesIn(DeviceKindsAndHidden()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace agmm::test
