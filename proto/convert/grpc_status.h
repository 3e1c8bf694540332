// absl::Status <-> grpc::Status. Code, message and reason travel as google.rpc.Status in
// grpc-status-details-bin.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace agmm {

// Messages are cut at 2 KiB: they travel in headers, which are bounded.
grpc::Status ToGrpc(const absl::Status& status);

// A status without details comes from gRPC itself; its message is replaced by that of ExplainGrpc.
absl::Status FromGrpc(const grpc::Status& status);

// Returns true for a status of gRPC itself whose message only repeats its code, such as
// "CANCELLED".
bool IsBare(const grpc::Status& status);
// Returns a clause for people about a status of gRPC itself: its message or, for a bare one, the
// meaning of its code.
std::string ExplainGrpc(const grpc::Status& status);

}  // namespace agmm
