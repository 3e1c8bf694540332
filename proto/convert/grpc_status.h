// absl::Status <-> grpc::Status. The whole of it (code, message, reason) travels as
// google.rpc.Status in grpc-status-details-bin.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace agmm {

// Messages are cut at 2 KiB: they travel in headers, which are bounded.
grpc::Status ToGrpc(const absl::Status& status);

absl::Status FromGrpc(const grpc::Status& status);

}  // namespace agmm
