// What agmmctl's exit status means.
//
//   0    done
//   2    usage, or input that means nothing        INVALID_ARGUMENT
//   3    no daemon, the world is not complete, or  UNAVAILABLE
//        it lost a daemon in a put, a get, a fill
//   4    not found                                 NOT_FOUND
//   5    it means something, but not here, now     FAILED_PRECONDITION, ALREADY_EXISTS,
//        or for you: the state, another's rights,  OUT_OF_RANGE, PERMISSION_DENIED,
//        or what this release covers forbid it     UNAUTHENTICATED, UNIMPLEMENTED
//   6    the deadline passed                       DEADLINE_EXCEEDED
//   7    the job failed                            ABORTED, INTERNAL, DATA_LOSS, UNKNOWN
//   8    no space left                             RESOURCE_EXHAUSTED
//   130  cancelled, as by Ctrl-C                   CANCELLED
#pragma once

#include "absl/status/status.h"

namespace agmm {

constexpr int ExitCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk: return 0;
    case absl::StatusCode::kInvalidArgument: return 2;
    case absl::StatusCode::kUnavailable: return 3;
    case absl::StatusCode::kNotFound: return 4;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kUnimplemented: return 5;
    case absl::StatusCode::kDeadlineExceeded: return 6;
    case absl::StatusCode::kResourceExhausted: return 8;
    case absl::StatusCode::kCancelled: return 130;
    default: return 7;
  }
}

}  // namespace agmm
