#include "daemon/transport/staging.h"

#include <algorithm>
#include <new>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/schedule/problem.h"

namespace agmm::transport {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 62;

int64_t PaddedPitch(const Rows& rows) { return RoundUp(rows.row_bytes, kRowAlignBytes); }

// Returns the bytes from the first byte of the first row to the last byte of the last row.
int64_t Span(const Rows& rows, int64_t pitch) {
  return rows.rows == 0 ? 0 : (rows.rows - 1) * pitch + rows.row_bytes;
}

// Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<Staging> Allocate(int64_t bytes, TransportCounters* counters) {
  Staging made(new (std::nothrow) std::byte[bytes], StagingRelease{counters, bytes});
  if (made == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("no memory for %d bytes of staging; send fewer rows at a time, or rows "
                        "that are contiguous",
                        bytes));
  }
  counters->staging_bytes_peak.RaiseTo(counters->staging_bytes.Add(bytes));
  return made;
}

}  // namespace

void StagingRelease::operator()(std::byte* data) const {
  delete[] data;
  counters->staging_bytes.Add(-bytes);
}

absl::Status CheckRows(const Rows& rows) {
  // The widest form of a message with these rows, including the padding of a row.
  int64_t span = 0;
  const int64_t widest = std::max(rows.pitch_bytes, rows.row_bytes);
  const bool sizes =
      rows.rows >= 0 && rows.row_bytes >= 0 && rows.pitch_bytes >= 0 &&
      (rows.rows <= 1 || rows.pitch_bytes >= rows.row_bytes) && widest <= kMaxBytes &&
      !__builtin_mul_overflow(rows.rows, widest + kRowAlignBytes, &span) && span <= kMaxBytes;
  const bool nowhere = rows.data == nullptr && rows.heap == nullptr;
  if (!sizes || (nowhere && rows.bytes() > 0)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "invalid rows: %d rows of %d bytes, pitch %d, at %s; rows must not overlap, and all sizes "
        "must be in [0, 2^62)",
        rows.rows, rows.row_bytes, rows.pitch_bytes, nowhere ? "null" : "an address"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Outgoing> Gather(const Rows& rows, TransportCounters* counters) {
  Outgoing out;
  out.data = rows.data;
  if (rows.bytes() == 0) return out;
  if (rows.on_host() && (rows.dense() || (rows.padded && rows.pitch_bytes == PaddedPitch(rows)))) {
    out.length = Span(rows, rows.pitch_bytes);
    return out;
  }
  out.length = rows.bytes();
  AGMM_ASSIGN_OR_RETURN(out.staging, Allocate(out.length, counters));
  AGMM_RETURN_IF_ERROR(
      ReadRows(rows, {out.staging.get(), rows.rows, rows.row_bytes, rows.row_bytes}));
  out.data = out.staging.get();
  return out;
}

absl::StatusOr<Incoming> Place(const Rows& to, int64_t length, bool stage,
                               TransportCounters* counters) {
  AGMM_RETURN_IF_ERROR(CheckRows(to));
  Incoming in;
  in.to = to;
  in.wire = {to.data, to.rows, to.row_bytes, to.pitch_bytes};
  const int64_t spanned = Span(to, PaddedPitch(to));
  if (length == to.bytes()) {
    in.wire.pitch_bytes = to.row_bytes;
  } else if (to.bytes() > 0 && length == spanned) {
    in.wire.pitch_bytes = PaddedPitch(to);
  } else {
    return absl::InvalidArgumentError(
        absl::StrFormat("received %d bytes for %d rows of %d bytes, which are %d bytes, or %d with "
                        "padding; both ends must have the same schedule",
                        length, to.rows, to.row_bytes, to.bytes(), spanned));
  }
  const bool in_place =
      to.on_host() && (to.rows <= 1 || (in.wire.pitch_bytes == to.pitch_bytes &&
                                        (to.pitch_bytes == to.row_bytes || to.padded)));
  if (in_place || length == 0 || !stage) return in;
  AGMM_ASSIGN_OR_RETURN(in.staging, Allocate(length, counters));
  in.wire.data = in.staging.get();
  return in;
}

}  // namespace agmm::transport
