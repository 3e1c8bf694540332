#include "proto/convert/rpc_status.h"

#include <string>
#include <utility>

#include "google/rpc/error_details.pb.h"
#include "kernels/base/reason.h"

namespace agmm {
namespace {
constexpr char kDomain[] = "agmm";
}  // namespace

google::rpc::Status ToProto(const absl::Status& status) {
  google::rpc::Status proto;
  proto.set_code(static_cast<int>(status.code()));
  proto.set_message(std::string(status.message()));
  if (const std::string reason = ReasonOf(status); !reason.empty()) {
    google::rpc::ErrorInfo info;
    info.set_reason(reason);
    info.set_domain(kDomain);
    proto.add_details()->PackFrom(info);
  }
  return proto;
}

absl::Status FromProto(const google::rpc::Status& proto) {
  absl::Status status(static_cast<absl::StatusCode>(proto.code()), proto.message());
  for (const google::protobuf::Any& detail : proto.details()) {
    google::rpc::ErrorInfo info;
    if (detail.UnpackTo(&info)) status = WithReason(std::move(status), info.reason());
  }
  return status;
}

}  // namespace agmm
