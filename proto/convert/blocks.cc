#include "proto/convert/blocks.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace agmm {

absl::StatusOr<absl::InlinedVector<PieceRect, 3>> RectsOfPiece(int64_t rows, int64_t cols,
                                                               DType dtype, int64_t offset_bytes,
                                                               int64_t size_bytes) {
  const int64_t element = SizeOf(dtype);
  // Counts elements, because their product cannot overflow: rows and cols are at most
  // kMaxDimension.
  const int64_t count = rows * cols;
  const int64_t begin = offset_bytes / element, size = size_bytes / element;
  if (offset_bytes < 0 || size_bytes < 0 || begin > count || size > count - begin) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d bytes from byte %d are outside the tensor's %d x %d of %s", size_bytes,
                        offset_bytes, rows, cols, Name(dtype)));
  }
  if (offset_bytes % element != 0 || size_bytes % element != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d bytes from byte %d are not whole elements; %s has %d bytes", size_bytes,
                        offset_bytes, Name(dtype), element));
  }
  absl::InlinedVector<PieceRect, 3> rects;
  const int64_t end = begin + size;
  for (int64_t at = begin; at < end;) {
    const int64_t row = at / cols, col = at % cols;
    PieceRect& rect = rects.emplace_back();
    rect.offset_bytes = (at - begin) * element;
    if (col == 0 && end - at >= cols) {
      rect.rows = {row, end / cols};
      rect.cols = {0, cols};
    } else {
      rect.rows = {row, row + 1};
      rect.cols = {col, std::min(cols, col + end - at)};
    }
    at = (rect.rows.end - 1) * cols + rect.cols.end;
  }
  return rects;
}

int64_t EndOfPiece(int64_t total_bytes, int64_t row_bytes, int64_t offset_bytes) {
  if (total_bytes - offset_bytes <= kPieceBytes) return total_bytes;
  const int64_t end = offset_bytes + kPieceBytes;
  const int64_t row_end = end / row_bytes * row_bytes;
  return row_end > offset_bytes ? row_end : end;
}

}  // namespace agmm
