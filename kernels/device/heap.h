// One rank's symmetric memory, addressed by offset. Its device alone touches the bytes: other code
// writes, reads and fills rows. A heap in memory of the host also shows it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/base/fill.h"
#include "kernels/device/rows.h"
#include "kernels/schedule/problem.h"

namespace agmm {

// Rows of a heap, `pitch_bytes` apart. rows == 0: no bytes.
struct HeapRows {
  int64_t offset_bytes = 0;
  int64_t rows = 0, row_bytes = 0, pitch_bytes = 0;

  int64_t bytes() const { return rows * row_bytes; }
};

// Write, Read and Fill may be called on any thread, also on one that drives the transport. They
// block until all is done, which never waits for an epoch to go on: what a device has in hand ends
// by itself. Their errors: INVALID_ARGUMENT for rows that overlap or do not fit each other,
// OUT_OF_RANGE for rows outside the heap, and the device's own; the rows' contents are then
// undefined.
class Heap {
 public:
  virtual ~Heap() = default;
  virtual int64_t size_bytes() const = 0;
  // The memory for host code; empty if the host cannot address it.
  virtual absl::Span<std::byte> host() = 0;

  // Copies rows of the host to as many rows of the same length here. The padding stays.
  virtual absl::Status Write(const HeapRows& to, const Rows& from) = 0;
  // Copies rows from here to as many rows of the same length of the host. The padding stays.
  virtual absl::Status Read(const HeapRows& from, const Rows& to) = 0;
  // Gives element `col` of row `row` the value of index first_index + row * index_stride + col
  // (fill_value.h). `fill` has been checked for `dtype`. Calls `stop` every fraction of a
  // millisecond of work, and ends with CANCELLED, half done, once it returns true.
  virtual absl::Status Fill(const HeapRows& to, const FillSpec& fill, DType dtype,
                            int64_t first_index, int64_t index_stride,
                            absl::FunctionRef<bool()> stop) = 0;

  // Takes memory in large pages for the bytes `written`, which are about to be written, and for
  // their neighbourhood within the bytes of their `tensor`. A hint: contents stay. Thread-safe.
  virtual void CommitPages(const Range& written, const Range& tensor) {
    static_cast<void>(written), static_cast<void>(tensor);
  }
  // A file descriptor that another process of this user can map, or -1. Owned by the heap.
  virtual int fd() const = 0;
};

// Checks that `rows` are rows of a heap of `heap_bytes`. Errors: INVALID_ARGUMENT for negative
// sizes and for rows that overlap, OUT_OF_RANGE.
absl::Status CheckInside(const HeapRows& rows, int64_t heap_bytes);
// The same, and that `host` are as many rows of the same length on the host.
absl::Status CheckCopy(const HeapRows& rows, const Rows& host, int64_t heap_bytes);

// The rows of `heap` as their users see them: on the host if the heap is in its memory. Requires
// that they lie inside.
Rows RowsAt(Heap* heap, const HeapRows& place, bool padded);

// Copies rows of the host to rows anywhere, or the reverse: as many, of the same length. The
// padding stays. Errors: those of the heap.
absl::Status WriteRows(const Rows& from, const Rows& to);
absl::Status ReadRows(const Rows& from, const Rows& to);

}  // namespace agmm
