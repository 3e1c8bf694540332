#include "daemon/transport/rows.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_format.h"

namespace agmm::transport {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 62;
constexpr int64_t kRowAlignment = 128;

int64_t PaddedPitch(int64_t row_bytes) {
  return (row_bytes + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
}
int64_t Span(int64_t rows, int64_t row_bytes, int64_t pitch) {
  return rows == 0 ? 0 : (rows - 1) * pitch + row_bytes;
}
bool Contiguous(const Rows& rows) { return rows.rows <= 1 || rows.pitch_bytes == rows.row_bytes; }
bool Spannable(const Rows& rows) {
  return rows.padded && rows.pitch_bytes == PaddedPitch(rows.row_bytes);
}

void CopyRows(const std::byte* from, int64_t from_pitch, std::byte* to, int64_t to_pitch,
              int64_t rows, int64_t row_bytes) {
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(to + row * to_pitch, from + row * from_pitch, row_bytes);
  }
}

}  // namespace

absl::StatusOr<Staging> Staging::Allocate(int64_t bytes, Stats* stats) {
  Staging made;
  made.bytes_ = {new (std::nothrow) std::byte[bytes], StagingRelease{stats, bytes}};
  if (made.bytes_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("no memory for %d bytes of staging; send fewer rows at a time, or rows "
                        "that lie contiguously",
                        bytes));
  }
  const int64_t now = stats->staging_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t peak = stats->staging_bytes_peak.load(std::memory_order_relaxed);
  while (now > peak && !stats->staging_bytes_peak.compare_exchange_weak(peak, now)) {
  }
  return made;
}

void StagingRelease::operator()(std::byte* data) const {
  delete[] data;
  stats->staging_bytes.fetch_sub(bytes, std::memory_order_relaxed);
}

absl::Status CheckRows(const Rows& rows) {
  // The widest form a message of these rows can have, with room for the padding of a row.
  int64_t span = 0;
  const int64_t widest = std::max(rows.pitch_bytes, rows.row_bytes);
  const bool sizes =
      rows.rows >= 0 && rows.row_bytes >= 0 && rows.pitch_bytes >= 0 &&
      (rows.rows <= 1 || rows.pitch_bytes >= rows.row_bytes) && widest <= kMaxBytes &&
      !__builtin_mul_overflow(rows.rows, widest + kRowAlignment, &span) && span <= kMaxBytes;
  if (!sizes || (rows.data == nullptr && rows.bytes() > 0)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d rows of %d bytes, %d apart, at %s are no memory; rows must not overlap, and all sizes "
        "be in "
        "[0, 2^62)",
        rows.rows, rows.row_bytes, rows.pitch_bytes, rows.data == nullptr ? "null" : "an address"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Outgoing> Gather(const Rows& rows, Stats* stats) {
  Outgoing out;
  out.data = rows.data;
  if (rows.bytes() == 0) return out;
  if (Contiguous(rows)) {
    out.length = rows.bytes();
    return out;
  }
  if (Spannable(rows)) {
    out.length = Span(rows.rows, rows.row_bytes, rows.pitch_bytes);
    return out;
  }
  absl::StatusOr<Staging> staging = Staging::Allocate(rows.bytes(), stats);
  if (!staging.ok()) return staging.status();
  out.staging = *std::move(staging);
  CopyRows(rows.data, rows.pitch_bytes, out.staging.data(), rows.row_bytes, rows.rows,
           rows.row_bytes);
  out.data = out.staging.data();
  out.length = rows.bytes();
  return out;
}

absl::StatusOr<Incoming> Place(const Rows& to, int64_t length, bool stage, Stats* stats) {
  if (absl::Status status = CheckRows(to); !status.ok()) return status;
  Incoming in;
  in.to = to;
  const int64_t spanned = Span(to.rows, to.row_bytes, PaddedPitch(to.row_bytes));
  if (length == to.bytes()) {
    in.wire_pitch = to.row_bytes;
  } else if (to.bytes() > 0 && length == spanned) {
    in.wire_pitch = PaddedPitch(to.row_bytes);
  } else {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d bytes came for %d rows of %d bytes, which are %d or %d with padding; "
                        "both ends must have the "
                        "same schedule",
                        length, to.rows, to.row_bytes, to.bytes(), spanned));
  }
  const bool in_place = to.rows <= 1 || (in.wire_pitch == to.pitch_bytes &&
                                         (to.pitch_bytes == to.row_bytes || to.padded));
  if (in_place || length == 0) {
    in.data = to.data;
  } else if (stage) {
    absl::StatusOr<Staging> staging = Staging::Allocate(length, stats);
    if (!staging.ok()) return staging.status();
    in.staging = *std::move(staging);
    in.data = in.staging.data();
  }
  return in;
}

void Incoming::ScatterFrom(const std::byte* from) const {
  if (from == nullptr || to.bytes() == 0) return;
  if (wire_pitch == to.pitch_bytes && wire_pitch == to.row_bytes) {
    std::memcpy(to.data, from, to.bytes());
    return;
  }
  CopyRows(from, wire_pitch, to.data, to.pitch_bytes, to.rows, to.row_bytes);
}

}  // namespace agmm::transport
