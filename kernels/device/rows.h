// Rows of memory: the form in which the bytes of tensors are copied and sent.
#pragma once

#include <cstddef>
#include <cstdint>

namespace agmm {

// Rows of memory on the host, `pitch_bytes` apart. rows == 0: no bytes.
struct Rows {
  std::byte* data = nullptr;
  int64_t rows = 0, row_bytes = 0, pitch_bytes = 0;
  // The bytes between two rows are padding, not columns of a wider block: they may be sent along
  // and overwritten, which spares a copy at either end.
  bool padded = false;

  int64_t bytes() const { return rows * row_bytes; }
  bool dense() const { return rows <= 1 || pitch_bytes == row_bytes; }
};

// Copies `from` to `to`, which has the same number of rows of the same length. The padding stays.
void CopyRows(const Rows& from, const Rows& to);

}  // namespace agmm
