#include "proto/convert/grpc_status.h"

#include <string>

#include "proto/convert/rpc_status.h"

namespace agmm {
namespace {
constexpr size_t kMaxMessageBytes = 2048;
}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status details = ToProto(status);
  if (details.message().size() > kMaxMessageBytes)
    details.mutable_message()->resize(kMaxMessageBytes);
  return grpc::Status(static_cast<grpc::StatusCode>(details.code()), details.message(),
                      details.SerializeAsString());
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  google::rpc::Status details;
  if (!status.error_details().empty() && details.ParseFromString(status.error_details()) &&
      details.code() == static_cast<int>(status.error_code())) {
    return FromProto(details);
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace agmm
