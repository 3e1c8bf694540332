// The rows and columns that the bytes of a piece cover.
#include "proto/convert/blocks.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Compares the rectangles with the definition, element by element.
void ExpectExact(int64_t rows, int64_t cols, DType dtype, int64_t first, int64_t count) {
  SCOPED_TRACE(testing::Message() << rows << " x " << cols << ": " << count << " from " << first);
  const int64_t element = SizeOf(dtype);
  const auto rects = RectsOfPiece(rows, cols, dtype, first * element, count * element);
  ASSERT_TRUE(rects.ok()) << rects.status();
  ASSERT_LE(rects->size(), 3u);
  int64_t next = first;
  for (const PieceRect& rect : *rects) {
    ASSERT_FALSE(rect.rows.empty() || rect.cols.empty());
    EXPECT_EQ(rect.offset_bytes, (next - first) * element);
    for (int64_t row = rect.rows.begin; row < rect.rows.end; ++row)
      for (int64_t col = rect.cols.begin; col < rect.cols.end; ++col)
        ASSERT_EQ(row * cols + col, next++);
  }
  EXPECT_EQ(next, first + count);
}

TEST(RectsOfPiece, AreAllPiecesOfSmallTensors) {
  for (int64_t rows : {1, 2, 4}) {
    for (int64_t cols : {1, 2, 5}) {
      for (int64_t first = 0; first <= rows * cols; ++first)
        for (int64_t count = 0; count <= rows * cols - first; ++count)
          ExpectExact(rows, cols, DType::kBF16, first, count);
    }
  }
}

TEST(RectsOfPiece, AreTheEndOfARowWholeRowsAndTheBeginningOfOne) {
  const auto rects = RectsOfPiece(10, 4, DType::kF32, 3 * 4, 12 * 4);
  ASSERT_TRUE(rects.ok());
  EXPECT_THAT(*rects, ElementsAre(PieceRect{{0, 1}, {3, 4}, 0}, PieceRect{{1, 3}, {0, 4}, 4},
                                  PieceRect{{3, 4}, {0, 3}, 36}));
}

TEST(RectsOfPiece, OfAnEmptyPieceAreNone) {
  EXPECT_THAT(*RectsOfPiece(3, 3, DType::kF16, 0, 0), IsEmpty());
  EXPECT_THAT(*RectsOfPiece(3, 3, DType::kF16, 18, 0), IsEmpty());
}

TEST(RectsOfPiece, OfTheLargestTensorDoNotOverflow) {
  constexpr int64_t kSize = kMaxDimension, kBytes = kSize * kSize * 4;
  const auto last = RectsOfPiece(kSize, kSize, DType::kF32, kBytes - 4, 4);
  ASSERT_TRUE(last.ok());
  EXPECT_THAT(*last, ElementsAre(PieceRect{{kSize - 1, kSize}, {kSize - 1, kSize}, 0}));
  const auto all = RectsOfPiece(kSize, kSize, DType::kF32, 0, kBytes);
  ASSERT_TRUE(all.ok());
  EXPECT_THAT(*all, ElementsAre(PieceRect{{0, kSize}, {0, kSize}, 0}));
}

TEST(RectsOfPiece, OutsideTheTensorOrWithinAnElementAreRefused) {
  const auto refused = [](int64_t offset, int64_t size) {
    return std::string(RectsOfPiece(3, 5, DType::kF32, offset, size).status().message());
  };
  for (auto [offset, size] : {std::pair<int64_t, int64_t>{-4, 4},
                              {0, -4},
                              {0, 64},
                              {60, 4},
                              {64, 0},
                              {INT64_MAX - 3, 4},
                              {4, INT64_MAX - 3},
                              {INT64_MIN, INT64_MAX}})
    EXPECT_THAT(refused(offset, size), HasSubstr("outside the tensor's 3 x 5")) << offset;
  EXPECT_THAT(refused(2, 4), HasSubstr("not whole elements"));
  EXPECT_THAT(refused(4, 3), HasSubstr("not whole elements"));
}

TEST(EndOfPiece, IsTheEndOfARowWhereThereIsOne) {
  EXPECT_EQ(EndOfPiece(100, 10, 0), 100);
  EXPECT_EQ(EndOfPiece(10 << 20, 1000, 0), 1048000);
  EXPECT_EQ(EndOfPiece(10 << 20, 1000, 1048000), 2096000);
  EXPECT_EQ(EndOfPiece(10 << 20, 1000, 4), 1048000);
  EXPECT_EQ(EndOfPiece(10 << 20, 1 << 20, 0), 1 << 20);
  EXPECT_EQ(EndOfPiece(10 << 20, 3 << 20, 0), 1 << 20);
  EXPECT_EQ(EndOfPiece(10 << 20, 3 << 20, 5 << 19), 3 << 20);
  EXPECT_EQ(EndOfPiece(10 << 20, 3 << 20, (10 << 20) - 4), 10 << 20);
}

}  // namespace
}  // namespace agmm
