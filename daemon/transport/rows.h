// How rows of memory become the one contiguous range that a message carries, and back.
//
// A message carries its rows either dense (row_bytes apart) or, where the place is padded to 128
// bytes a row, spanned: the padding travels along and nothing is copied. The receiver tells the two
// by the length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/transport/stats.h"
#include "kernels/device/transport.h"

namespace agmm::transport {

struct StagingRelease {
  Stats* stats = nullptr;
  int64_t bytes = 0;
  void operator()(std::byte* data) const;
};

// Bytes between two places, accounted for while they live.
class Staging {
 public:
  // Errors: RESOURCE_EXHAUSTED.
  static absl::StatusOr<Staging> Allocate(int64_t bytes, Stats* stats);
  std::byte* data() const { return bytes_.get(); }

 private:
  std::unique_ptr<std::byte[], StagingRelease> bytes_;
};

// Errors: INVALID_ARGUMENT for negative sizes, overlapping rows, sizes past 2^62, or no memory
// behind them.
absl::Status CheckRows(const Rows& rows);

// What is sent for rows: their own memory, or a packed copy.
struct Outgoing {
  const std::byte* data = nullptr;
  int64_t length = 0;
  Staging staging;
};
// `rows` pass CheckRows. Errors: RESOURCE_EXHAUSTED.
absl::StatusOr<Outgoing> Gather(const Rows& rows, Stats* stats);

// Where `length` bytes from the wire are received, and what then is left to do.
struct Incoming {
  Rows to;
  std::byte* data = nullptr;  // `length` bytes fit here
  int64_t wire_pitch = 0;
  Staging staging;  // empty: received in place

  // The bytes are at `data`: brings them to `to`. Nothing to do when received in place.
  void Scatter() const { ScatterFrom(staging.data()); }
  // Brings `length` bytes at `from`, in the wire's form, to `to`.
  void ScatterFrom(const std::byte* from) const;
};
// Errors: INVALID_ARGUMENT when `to` is no memory for rows, or `length` is neither their dense nor
// their spanned length; RESOURCE_EXHAUSTED. Without `stage` no staging is made: for bytes that
// already are here.
absl::StatusOr<Incoming> Place(const Rows& to, int64_t length, bool stage, Stats* stats);

}  // namespace agmm::transport
