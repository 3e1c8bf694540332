// Deadlines of gRPC calls.
#pragma once

#include <grpc/support/time.h>

#include "kernels/base/deadline.h"

namespace agmm {

// Returns the remaining time as a span, because gRPC counts a span on its own monotonic clock from
// the start of the call, but converts absolute times with the wall clock. Must be set right before
// the call.
inline gpr_timespec ToGrpc(const Deadline& deadline) {
  return gpr_time_from_nanos(absl::ToInt64Nanoseconds(deadline.Left()), GPR_TIMESPAN);
}

inline Deadline FromGrpc(const gpr_timespec& deadline) {
  // gRPC's infinite deadline may be a date far ahead.
  constexpr absl::Duration kLongest = absl::Hours(24 * 365);
  const gpr_timespec span = gpr_convert_clock_type(deadline, GPR_TIMESPAN);
  const absl::Duration left = absl::Seconds(span.tv_sec) + absl::Nanoseconds(span.tv_nsec);
  return left > kLongest ? Deadline::Infinite() : Deadline::After(left);
}

}  // namespace agmm
