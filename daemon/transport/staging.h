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
#include "kernels/device/heap.h"

namespace agmm::transport {

struct StagingRelease {
  TransportCounters* counters = nullptr;
  int64_t bytes = 0;
  void operator()(std::byte* data) const;
};

// Memory for bytes between two places, counted while it lives.
using Staging = std::unique_ptr<std::byte[], StagingRelease>;

// Errors: INVALID_ARGUMENT for negative sizes, overlapping rows, sizes past 2^62, or rows without
// memory.
absl::Status CheckRows(const Rows& rows);

// The bytes to send for rows: their own memory on the host, or a packed copy.
struct Outgoing {
  const std::byte* data = nullptr;
  int64_t length = 0;
  Staging staging;
};
// Requires rows that pass CheckRows. Errors: RESOURCE_EXHAUSTED, and those of Heap::Read.
absl::StatusOr<Outgoing> Gather(const Rows& rows, TransportCounters* counters);

// The memory that receives bytes from the wire, and the rows to which they are then moved.
struct Incoming {
  Rows to;
  Rows wire;        // `to` in the wire's form, at the memory to receive into
  Staging staging;  // empty: received in place

  // Copies received bytes to `to`. Has no effect if they were received in place. Errors: those of
  // Heap::Write.
  absl::Status Scatter() const {
    return staging == nullptr ? absl::OkStatus() : WriteRows(wire, to);
  }
};
// Without `stage` no staging is made: for bytes that are in memory already. Errors:
// INVALID_ARGUMENT when `to` fails CheckRows, or `length` is neither the dense nor the spanned
// length of `to`; RESOURCE_EXHAUSTED.
absl::StatusOr<Incoming> Place(const Rows& to, int64_t length, bool stage,
                               TransportCounters* counters);

}  // namespace agmm::transport
