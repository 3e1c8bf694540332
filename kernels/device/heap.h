// One rank's symmetric memory, addressed by offset. Only its device touches the bytes: other code
// writes, reads and fills rows. A heap in host memory also exposes that memory.
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

// Write, Read and Fill may be called on any thread, even on one that drives the transport. They
// block until the work is done, but never wait for an epoch to progress: work that a device has
// begun ends by itself. Their errors: INVALID_ARGUMENT for rows that overlap or do not fit each
// other, OUT_OF_RANGE for rows outside the heap, and the device's own; the rows' contents are then
// undefined.
class Heap {
 public:
  virtual ~Heap() = default;
  virtual int64_t size_bytes() const = 0;
  // The memory for host code; empty if the host cannot address it.
  virtual absl::Span<std::byte> host() = 0;

  // Copies rows of the host to rows here, equal in number and length. The padding stays.
  virtual absl::Status Write(const HeapRows& to, const Rows& from) = 0;
  // Copies rows from here to rows of the host, equal in number and length. The padding stays.
  virtual absl::Status Read(const HeapRows& from, const Rows& to) = 0;
  // Gives element `col` of row `row` the value of index first_index + row * index_stride + col
  // (fill_value.h). `fill` has been checked for `dtype`. Calls `stop` after every fraction of a
  // millisecond of work, and ends with CANCELLED in the middle once it returns true.
  virtual absl::Status Fill(const HeapRows& to, const FillSpec& fill, DType dtype,
                            int64_t first_index, int64_t index_stride,
                            absl::FunctionRef<bool()> stop) = 0;

  // Allocates large pages for the bytes `written`, which are about to be written, and for their
  // surroundings within the bytes of their `tensor`. A hint: the contents stay. Thread-safe.
  virtual void CommitPages(const Range& written, const Range& tensor) {
    static_cast<void>(written), static_cast<void>(tensor);
  }
  // A file descriptor that another process of this user can map, or -1. Owned by the heap.
  virtual int fd() const = 0;
};

// Checks that `rows` are rows of a heap of `heap_bytes`. Errors: INVALID_ARGUMENT for negative
// sizes and for rows that overlap, OUT_OF_RANGE.
absl::Status CheckInside(const HeapRows& rows, int64_t heap_bytes);
// Like CheckInside; also checks that `host` has rows of the same number and length on the host.
absl::Status CheckCopy(const HeapRows& rows, const Rows& host, int64_t heap_bytes);

// Returns the rows of `heap` in the form that users need: on the host if the heap is in host
// memory. Requires rows inside the heap.
Rows RowsAt(Heap* heap, const HeapRows& place, bool padded);

// Copy rows of the host to rows anywhere, or the reverse; both equal in number and length. The
// padding stays. Errors: those of the heap.
absl::Status WriteRows(const Rows& from, const Rows& to);
absl::Status ReadRows(const Rows& from, const Rows& to);

}  // namespace agmm
