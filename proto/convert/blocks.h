// Maps a tensor's contents as a range of bytes, row-major without padding, to the rows and columns
// of each piece. Shared by daemon and client.
#pragma once

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "kernels/base/dtype.h"
#include "kernels/schedule/problem.h"

namespace agmm {

// The usual size of the data in a message, and the most that a receiver accepts.
inline constexpr int64_t kPieceBytes = int64_t{1} << 20;
inline constexpr int64_t kMaxPieceBytes = int64_t{4} << 20;
// Largest distance from the bytes received in order at which a receiver accepts a piece.
inline constexpr int64_t kUploadWindowBytes = int64_t{8} << 20;

// Rows x columns of a tensor, and where their bytes begin in the piece that contains them.
struct PieceRect {
  Range rows, cols;
  int64_t offset_bytes = 0;
  friend bool operator==(const PieceRect&, const PieceRect&) = default;
};

// Returns the rectangles that hold bytes [offset_bytes, offset_bytes + size_bytes) of a rows x cols
// tensor, in order: the end of a row, whole rows, the beginning of a row, each if it is not empty.
// Errors: INVALID_ARGUMENT for bytes outside the tensor or partial elements.
absl::StatusOr<absl::InlinedVector<PieceRect, 3>> RectsOfPiece(int64_t rows, int64_t cols,
                                                               DType dtype, int64_t offset_bytes,
                                                               int64_t size_bytes);

// Returns where a sender should end a piece that begins at offset_bytes: about kPieceBytes on, at
// the end of a row if there is one, at most total_bytes.
int64_t EndOfPiece(int64_t total_bytes, int64_t row_bytes, int64_t offset_bytes);

}  // namespace agmm
