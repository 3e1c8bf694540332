#include "kernels/device/heap.h"

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

HeapRows PlaceOf(const Rows& rows) {
  return {rows.offset_bytes, rows.rows, rows.row_bytes, rows.pitch_bytes};
}

}  // namespace

absl::Status CheckInside(const HeapRows& rows, int64_t heap_bytes) {
  if (rows.rows < 0 || rows.row_bytes < 0 || (rows.rows > 1 && rows.pitch_bytes < rows.row_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d rows of %d B, %d B apart: sizes must not be negative, nor rows overlap",
                        rows.rows, rows.row_bytes, rows.pitch_bytes));
  }
  if (rows.rows == 0 || rows.row_bytes == 0) return absl::OkStatus();
  // Written so that no sizes can overflow.
  const int64_t room = heap_bytes - rows.row_bytes;
  if (rows.offset_bytes >= 0 && rows.offset_bytes <= room &&
      (rows.rows == 1 || rows.rows - 1 <= (room - rows.offset_bytes) / rows.pitch_bytes))
    return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrFormat(
      "%d rows of %d B, %d B apart, from byte %d on are outside a heap of %d B; both ends must "
      "have the same description of the tensor",
      rows.rows, rows.row_bytes, rows.pitch_bytes, rows.offset_bytes, heap_bytes));
}

absl::Status CheckCopy(const HeapRows& rows, const Rows& host, int64_t heap_bytes) {
  AGMM_RETURN_IF_ERROR(CheckInside(rows, heap_bytes));
  if (rows.rows == host.rows && rows.row_bytes == host.row_bytes &&
      (rows.rows <= 1 || host.pitch_bytes >= host.row_bytes) &&
      (rows.bytes() == 0 || host.data != nullptr))
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%d rows of %d B of a heap do not fit %d rows of %d B, %d B apart, at %s of the host",
      rows.rows, rows.row_bytes, host.rows, host.row_bytes, host.pitch_bytes,
      host.data == nullptr ? "no address" : "an address"));
}

Rows RowsAt(Heap* heap, const HeapRows& place, bool padded) {
  Rows rows{nullptr, place.rows, place.row_bytes, place.pitch_bytes, padded};
  if (const absl::Span<std::byte> host = heap->host(); !host.empty()) {
    rows.data = host.data() + place.offset_bytes;
  } else {
    rows.heap = heap;
    rows.offset_bytes = place.offset_bytes;
  }
  return rows;
}

absl::Status WriteRows(const Rows& from, const Rows& to) {
  if (!to.on_host()) return to.heap->Write(PlaceOf(to), from);
  CopyRows(from, to);
  return absl::OkStatus();
}

absl::Status ReadRows(const Rows& from, const Rows& to) {
  if (!from.on_host()) return from.heap->Read(PlaceOf(from), to);
  CopyRows(from, to);
  return absl::OkStatus();
}

}  // namespace agmm
