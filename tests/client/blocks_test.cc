#include "proto/convert/blocks.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

v1::TensorBlock Block(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end,
                      int64_t bytes) {
  v1::TensorBlock block;
  block.set_row_begin(row_begin);
  block.set_row_end(row_end);
  block.set_col_begin(col_begin);
  block.set_col_end(col_end);
  block.set_data(std::string(bytes, 'x'));
  return block;
}

// What a sender's cursor hands out, a receiver's takes: exactly all of it, in messages of bounded
// size.
void ExpectCovered(int64_t rows, int64_t cols, DType dtype) {
  BlockCursor sender(rows, cols, dtype), receiver(rows, cols, dtype);
  int64_t elements = 0;
  while (!sender.done()) {
    ASSERT_FALSE(receiver.done());
    v1::TensorBlock block = sender.Next();
    const int64_t count =
        (block.row_end() - block.row_begin()) * (block.col_end() - block.col_begin());
    ASSERT_LE(count * SizeOf(dtype), kBlockBytes);
    block.set_data(std::string(count * SizeOf(dtype), 'x'));
    ASSERT_EQ(receiver.Accept(block), absl::OkStatus());
    elements += count;
  }
  EXPECT_TRUE(receiver.done());
  EXPECT_EQ(elements, rows * cols);
}

TEST(Blocks, CoverTensorsOfEveryShape) {
  ExpectCovered(1, 1, DType::kBF16);
  ExpectCovered(1000, 512, DType::kF32);
  ExpectCovered(7, (1 << 18) - 1, DType::kF32);  // one row a block
  ExpectCovered(3, (1 << 19) + 5, DType::kF32);  // pieces of rows
  ExpectCovered(5, 1 << 18, DType::kF32);        // rows of exactly a block
}

TEST(Blocks, BandsMayComeInPiecesOfAllTheirRows) {
  BlockCursor cursor(5, 10, DType::kF32);
  EXPECT_EQ(cursor.Accept(Block(0, 3, 0, 4, 48)), absl::OkStatus());
  EXPECT_THAT(std::string(cursor.Accept(Block(0, 2, 4, 10, 48)).message()),
              HasSubstr("ends at row 3"));
  EXPECT_EQ(cursor.Accept(Block(0, 3, 4, 10, 72)), absl::OkStatus());
  EXPECT_EQ(cursor.rows_passed(), 3);
  EXPECT_EQ(cursor.Accept(Block(3, 5, 0, 10, 80)), absl::OkStatus());
  EXPECT_TRUE(cursor.done());
}

TEST(Blocks, WhatIsNotNextIsRefusedAndChangesNothing) {
  BlockCursor cursor(8, 8, DType::kF32);
  ASSERT_EQ(cursor.Accept(Block(0, 2, 0, 8, 64)), absl::OkStatus());
  const v1::TensorBlock wrong[] = {
      Block(0, 2, 0, 8, 64),    // again
      Block(1, 3, 0, 8, 64),    // overlaps
      Block(3, 4, 0, 8, 32),    // leaves a gap
      Block(2, 3, 1, 8, 28),    // leaves a gap in its row
      Block(2, 2, 0, 8, 0),     // empty
      Block(3, 2, 0, 8, 0),     // backwards
      Block(2, 9, 0, 8, 224),   // below the tensor
      Block(2, 3, 0, 9, 36),    // to the right of it
      Block(-1, 3, 0, 8, 128),  // above it
      Block(2, 3, 0, 8, 31),    // a byte short
      Block(2, 3, 0, 8, 33),    // a byte long
      Block(INT64_MIN, INT64_MAX, INT64_MIN, INT64_MAX, 4),
  };
  for (const v1::TensorBlock& block : wrong) {
    EXPECT_EQ(cursor.Accept(block).code(), absl::StatusCode::kInvalidArgument)
        << block.row_begin() << " " << block.row_end() << " " << block.col_begin() << " "
        << block.col_end();
    EXPECT_EQ(cursor.rows_passed(), 2);
  }
  EXPECT_EQ(cursor.Accept(Block(2, 8, 0, 8, 192)), absl::OkStatus());
}

TEST(Blocks, AMessageIsBounded) {
  const int64_t rows = kMaxBlockBytes / 1024;
  EXPECT_EQ(BlockCursor(2 * rows, 256, DType::kF32).Accept(Block(0, rows, 0, 256, kMaxBlockBytes)),
            absl::OkStatus());
  EXPECT_EQ(BlockCursor(2 * rows, 256, DType::kF32)
                .Accept(Block(0, rows + 1, 0, 256, kMaxBlockBytes + 1024))
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace agmm
