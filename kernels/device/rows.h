// Rows of memory, the form in which the bytes of tensors are copied and sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace agmm {

class Heap;

// Rows of memory, `pitch_bytes` apart. They lie at `data` on the host, or, if that is null, at
// `offset_bytes` of `heap`, which the host cannot address. rows == 0: no bytes.
struct Rows {
  std::byte* data = nullptr;
  int64_t rows = 0, row_bytes = 0, pitch_bytes = 0;
  // The bytes between two rows are padding, not columns of a wider block: they may be sent along
  // and overwritten, which saves a copy at either end.
  bool padded = false;
  Heap* heap = nullptr;
  int64_t offset_bytes = 0;

  int64_t bytes() const { return rows * row_bytes; }
  bool dense() const { return rows <= 1 || pitch_bytes == row_bytes; }
  bool on_host() const { return data != nullptr || heap == nullptr; }
};

// Copies `from` to `to`, which has the same number of rows of the same length; both lie on the
// host. The padding stays.
inline void CopyRows(const Rows& from, const Rows& to) {
  if (from.bytes() == 0) return;
  if (from.dense() && to.dense()) {
    std::memcpy(to.data, from.data, from.bytes());
    return;
  }
  for (int64_t row = 0; row < from.rows; ++row)
    std::memcpy(to.data + row * to.pitch_bytes, from.data + row * from.pitch_bytes, from.row_bytes);
}

}  // namespace agmm
