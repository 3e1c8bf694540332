// How the contents of a tensor travel as messages, once for daemon and client: blocks in row-major
// order that cover the tensor exactly, without overlap.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "agmm/v1/tensor.pb.h"
#include "kernels/base/dtype.h"

namespace agmm {

// What a sender puts into a message, and the most a receiver takes.
inline constexpr int64_t kBlockBytes = int64_t{1} << 20;
inline constexpr int64_t kMaxBlockBytes = int64_t{4} << 20;

// A position in a tensor of rows x cols. Blocks are bands of whole rows from the top; a band may
// come in pieces from left to right, each of all its rows. A cursor either hands out blocks or
// accepts them.
class BlockCursor {
 public:
  BlockCursor(int64_t rows, int64_t cols, DType dtype) : rows_(rows), cols_(cols), dtype_(dtype) {}

  // All blocks have been passed.
  bool done() const { return row_ == rows_; }
  // Rows that are passed whole.
  int64_t rows_passed() const { return row_; }

  // The ranges of the next block of about kBlockBytes, without data: whole rows, or a piece of one
  // row where a row is longer. Passes it. Not when done().
  v1::TensorBlock Next();
  // Passes `block` if its ranges come next and its data are theirs. Errors: INVALID_ARGUMENT,
  // saying what was expected.
  absl::Status Accept(const v1::TensorBlock& block);

 private:
  void Pass(int64_t row_end, int64_t col_end);

  const int64_t rows_, cols_;
  const DType dtype_;
  int64_t row_ = 0;       // rows [0, row_) are passed
  int64_t col_ = 0;       // and of the band that begins at row_, columns [0, col_)
  int64_t band_end_ = 0;  // where that band ends; means something while col_ > 0
};

}  // namespace agmm
