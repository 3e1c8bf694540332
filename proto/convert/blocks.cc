#include "proto/convert/blocks.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace agmm {

v1::TensorBlock BlockCursor::Next() {
  const int64_t row_bytes = cols_ * SizeOf(dtype_);
  int64_t row_end = row_ + 1, col_end = cols_;
  if (col_ == 0 && row_bytes <= kBlockBytes)
    row_end = std::min(rows_, row_ + kBlockBytes / row_bytes);
  else
    col_end = std::min(cols_, col_ + kBlockBytes / SizeOf(dtype_));
  v1::TensorBlock block;
  block.set_row_begin(row_);
  block.set_row_end(row_end);
  block.set_col_begin(col_);
  block.set_col_end(col_end);
  Pass(row_end, col_end);
  return block;
}

absl::Status BlockCursor::Accept(const v1::TensorBlock& block) {
  const bool inside = block.row_begin() >= 0 && block.row_begin() < block.row_end() &&
                      block.row_end() <= rows_ && block.col_begin() >= 0 &&
                      block.col_begin() < block.col_end() && block.col_end() <= cols_;
  if (!inside) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "block rows [%d, %d) columns [%d, %d) is empty or outside the tensor's %d x %d",
        block.row_begin(), block.row_end(), block.col_begin(), block.col_end(), rows_, cols_));
  }
  const bool next = block.row_begin() == row_ && block.col_begin() == col_ &&
                    (col_ == 0 || block.row_end() == band_end_);
  if (!next) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "block rows [%d, %d) columns [%d, %d) is out of order: the next one begins at row %d, "
        "column %d%s; "
        "send bands of rows from the top, each from left to right",
        block.row_begin(), block.row_end(), block.col_begin(), block.col_end(), row_, col_,
        col_ == 0 ? "" : absl::StrFormat(" and ends at row %d", band_end_)));
  }
  // Both factors are at most kMaxDimension: no overflow.
  const int64_t bytes = (block.row_end() - block.row_begin()) *
                        (block.col_end() - block.col_begin()) * SizeOf(dtype_);
  const int64_t got = static_cast<int64_t>(block.data().size());
  if (got != bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "block rows [%d, %d) columns [%d, %d) of %s is %d bytes and %d came", block.row_begin(),
        block.row_end(), block.col_begin(), block.col_end(), Name(dtype_), bytes, got));
  }
  if (bytes > kMaxBlockBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a block of %d bytes is over the %d of one message; send fewer rows", bytes,
                        kMaxBlockBytes));
  }
  Pass(block.row_end(), block.col_end());
  return absl::OkStatus();
}

void BlockCursor::Pass(int64_t row_end, int64_t col_end) {
  band_end_ = row_end;
  col_ = col_end;
  if (col_ < cols_) return;
  col_ = 0;
  row_ = row_end;
}

}  // namespace agmm
