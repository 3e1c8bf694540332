// Requests of daemons were checked where they entered the world; here it is only made sure that a
// broken one does no harm.
#include "daemon/rpc/validate.h"
#include "daemon/rpc/validate_terms.h"
#include "kernels/base/status.h"

namespace agmm {

absl::Status Validate(const v1::BeginAccessRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckBetween("node", request.node(), 0, INT32_MAX, "give the daemon's own"));
  switch (request.target_case()) {
    case v1::BeginAccessRequest::kTensorId: return CheckIdGiven("tensor_id", request.tensor_id());
    case v1::BeginAccessRequest::kName: return CheckName("name", request.name());
    case v1::BeginAccessRequest::kPut: return Validate(request.put());
    case v1::BeginAccessRequest::TARGET_NOT_SET: break;
  }
  return absl::InvalidArgumentError("an access has no target; set tensor_id, name or put");
}

absl::Status Validate(const v1::EndAccessRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckBetween("node", request.node(), 0, INT32_MAX, "give the daemon's own"));
  return CheckIdGiven("access_id", request.access_id());
}

absl::Status Validate(const v1::OpenedSessionRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckBetween("node", request.node(), 0, INT32_MAX, "give the daemon's own"));
  return CheckIdGiven("session_id", request.session_id());
}

absl::Status Validate(const v1::CloseSessionRequest& request) {
  return CheckIdGiven("session_id", request.session_id());
}

absl::Status Validate(const v1::PollJobRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckIdGiven("job_id", request.job_id()));
  return CheckBetween("after_event", request.after_event(), 0, INT64_MAX,
                      "give the number of the last event that was seen, or 0");
}

}  // namespace agmm
