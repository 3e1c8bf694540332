// The contents of a tensor as a range of bytes, row-major without padding: how they travel, and
// which rows and columns a piece of them is. Once for daemon and client.
#pragma once

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "kernels/base/dtype.h"
#include "kernels/schedule/problem.h"

namespace agmm {

// About what a sender puts into a message, and the most a receiver takes.
inline constexpr int64_t kPieceBytes = int64_t{1} << 20;
inline constexpr int64_t kMaxPieceBytes = int64_t{4} << 20;

// Rows x columns of a tensor, and where their bytes begin in the piece that they are a part of.
struct PiecePart {
  Range rows, cols;
  int64_t offset_bytes = 0;
  friend bool operator==(const PiecePart&, const PiecePart&) = default;
};

// What bytes [offset_bytes, offset_bytes + size_bytes) of a rows x cols tensor are, in order: the
// end of a row, whole rows, the beginning of a row; those that there are, none for no bytes.
// Errors: INVALID_ARGUMENT for what is outside the tensor or not whole elements.
absl::StatusOr<absl::InlinedVector<PiecePart, 3>> PartsOfPiece(int64_t rows, int64_t cols,
                                                               DType dtype, int64_t offset_bytes,
                                                               int64_t size_bytes);

// Where a piece that begins at offset_bytes ends, best for who sends it: about kPieceBytes on, at
// the end of a row where there is one, never behind total_bytes.
int64_t EndOfPiece(int64_t total_bytes, int64_t row_bytes, int64_t offset_bytes);

}  // namespace agmm
