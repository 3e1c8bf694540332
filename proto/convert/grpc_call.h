// The status, the deadline and the metadata of a gRPC call.
#pragma once

#include <grpc/support/time.h>
#include <grpcpp/support/status.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "kernels/base/deadline.h"

namespace agmm {

// Code, message and reason travel as google.rpc.Status in grpc-status-details-bin. Messages are cut
// at 2 KiB, because they travel in headers, which are bounded.
grpc::Status ToGrpc(const absl::Status& status);
// A status without details comes from gRPC itself; its message is replaced by that of ExplainGrpc.
absl::Status FromGrpc(const grpc::Status& status);
// Returns the error in the details; absent for OK and for a status of gRPC itself.
std::optional<absl::Status> SentError(const grpc::Status& status);

// Returns true for a status of gRPC itself whose message only repeats its code, such as
// "CANCELLED".
bool IsBare(const grpc::Status& status);
// Returns a clause for people about a status of gRPC itself: its message or, for a bare one, the
// meaning of its code.
std::string ExplainGrpc(const grpc::Status& status);

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

// ---- Keys of metadata ----

// Names the request in logs.
inline constexpr char kRequestIdKey[] = "x-request-id";
// W3C trace context, forwarded unchanged.
inline constexpr char kTraceparentKey[] = "traceparent";
// The caller's session.
inline constexpr char kSessionKey[] = "x-agmm-session";
// The sequencer that assigned the ids in the request, as in Job and Tensor. Another sequencer
// refuses the request.
inline constexpr char kSequencerKey[] = "x-agmm-sequencer";
// Shows that the call comes from a daemon of the world. A server changes any other value into
// kFormerMember, and then removes kPrincipalKey (daemon/rpc/caller_check.h).
inline constexpr char kMemberKey[] = "x-agmm-member";
inline constexpr char kFormerMember[] = "former";
// The caller at the node that relays the call. Ignored over a unix socket, where the kernel knows
// the caller.
inline constexpr char kPrincipalKey[] = "x-agmm-principal";

}  // namespace agmm
