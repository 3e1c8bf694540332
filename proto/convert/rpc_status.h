// absl::Status <-> google.rpc.Status with ErrorInfo: one vocabulary of errors from the device to
// the CLI.
#pragma once

#include "absl/status/status.h"
#include "google/rpc/status.pb.h"

namespace agmm {

google::rpc::Status ToProto(const absl::Status& status);
absl::Status FromProto(const google::rpc::Status& status);

}  // namespace agmm
