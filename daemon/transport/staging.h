// Converts between rows of memory and the one contiguous range that a message carries.
//
// A message carries its rows either dense (row_bytes apart) or, if the place is padded to
// kRowAlignBytes, spanned: the padding is sent along and nothing is copied. The receiver tells the
// two apart by the length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/transport/types.h"
#include "kernels/device/rows.h"

namespace agmm::transport {

struct StagingRelease {
  TransportCounters* counters = nullptr;
  int64_t bytes = 0;
  void operator()(std::byte* data) const;
};

// Memory for bytes between two places, counted while it lives.
using Staging = std::unique_ptr<std::byte[], StagingRelease>;

// Errors: INVALID_ARGUMENT for negative sizes, overlapping rows, sizes past 2^62, or null data.
absl::Status CheckRows(const Rows& rows);

// The bytes to send for rows: their own memory, or a packed copy.
struct Outgoing {
  const std::byte* data = nullptr;
  int64_t length = 0;
  Staging staging;
};
// Requires rows that pass CheckRows. Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<Outgoing> Gather(const Rows& rows, TransportCounters* counters);

// Where bytes from the wire are received, and how they then get to their rows.
struct Incoming {
  Rows to;
  Rows wire;        // `to` in the wire's form, at the memory to receive into
  Staging staging;  // empty: received in place

  // Copies received bytes to `to`. No effect when they were received in place.
  void Scatter() const {
    if (staging != nullptr) CopyRows(wire, to);
  }
};
// Without `stage` no staging is made: for bytes that are in memory already. Errors:
// INVALID_ARGUMENT when `to` fails CheckRows, or `length` is neither the dense nor the spanned
// length of `to`; RESOURCE_EXHAUSTED.
absl::StatusOr<Incoming> Place(const Rows& to, int64_t length, bool stage,
                               TransportCounters* counters);

}  // namespace agmm::transport
