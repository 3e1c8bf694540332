// Machine-readable reasons of errors. They travel as ErrorInfo.reason on the wire.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace agmm {

inline constexpr char kReasonPeerLost[] = "PEER_LOST";
inline constexpr char kReasonWorldIncomplete[] = "WORLD_INCOMPLETE";
inline constexpr char kReasonHeapFull[] = "HEAP_FULL";
inline constexpr char kReasonTransfersFull[] = "TRANSFERS_FULL";
inline constexpr char kReasonQuotaFull[] = "QUOTA_FULL";
inline constexpr char kReasonCancelled[] = "CANCELLED";
inline constexpr char kReasonDeadline[] = "DEADLINE";
inline constexpr char kReasonFileNotFound[] = "FILE_NOT_FOUND";

// Returns `status` with `reason` attached; OK stays OK.
absl::Status WithReason(absl::Status status, absl::string_view reason);
// Returns the reason attached to `status`, or "".
std::string ReasonOf(const absl::Status& status);

}  // namespace agmm
