// absl::Status <-> grpc::Status. The whole of it (code, message, reason) travels as
// google.rpc.Status in grpc-status-details-bin.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace agmm {

// Messages are cut at 2 KiB: they travel in headers, which are bounded.
grpc::Status ToGrpc(const absl::Status& status);

// A status without details is one of gRPC itself, and its message is ExplainGrpc's.
absl::Status FromGrpc(const grpc::Status& status);

// True for a status of gRPC itself whose message says no more than its code, such as "CANCELLED".
bool IsBare(const grpc::Status& status);
// A clause for people about a status of gRPC itself: its message, or for a bare one what its code
// means.
std::string ExplainGrpc(const grpc::Status& status);

}  // namespace agmm
