// The exit codes of agmmctl.
#pragma once

#include "absl/status/status.h"

namespace agmm {

constexpr int ExitCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk: return 0;
    case absl::StatusCode::kInvalidArgument:
      return 2;  // usage, or an input file
    // No daemon answers, the world is not ready, or a GPU was lost, or a daemon in a transfer.
    case absl::StatusCode::kUnavailable: return 3;
    case absl::StatusCode::kNotFound:
      return 4;  // also a tensor lost with a daemon
    // Refused in this state or for this user, or not supported by this release.
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kUnimplemented: return 5;
    case absl::StatusCode::kDeadlineExceeded: return 6;
    case absl::StatusCode::kResourceExhausted: return 8;  // out of memory or disk space
    case absl::StatusCode::kCancelled: return 130;        // for example by Ctrl-C
    default: return 7;  // ABORTED (a job lost with a daemon), INTERNAL, DATA_LOSS, UNKNOWN
  }
}

}  // namespace agmm
