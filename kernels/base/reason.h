// absl::Status <-> google.rpc.Status with ErrorInfo: one vocabulary of errors from the device to
// the CLI.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"

namespace agmm {

// Machine-readable reasons, ErrorInfo.reason on the wire.
inline constexpr char kReasonPeerLost[] = "PEER_LOST";
inline constexpr char kReasonWorldIncomplete[] = "WORLD_INCOMPLETE";
inline constexpr char kReasonHeapFull[] = "HEAP_FULL";
inline constexpr char kReasonCancelled[] = "CANCELLED";
inline constexpr char kReasonDeadline[] = "DEADLINE";

// `status` carrying `reason`; OK stays OK.
absl::Status WithReason(absl::Status status, absl::string_view reason);
// The reason it carries, or "".
std::string ReasonOf(const absl::Status& status);

google::rpc::Status ToProto(const absl::Status& status);
absl::Status FromProto(const google::rpc::Status& status);

}  // namespace agmm
