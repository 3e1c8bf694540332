#include "absl/strings/str_format.h"
#include "daemon/rpc/validate.h"
#include "daemon/rpc/validate_terms.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

constexpr int kMaxRepeat = 1000000;
constexpr int kProductTensors = 3;

}  // namespace

absl::Status Validate(const v1::GetStatusRequest&) { return absl::OkStatus(); }
absl::Status Validate(const v1::OpenSessionRequest&) { return absl::OkStatus(); }

absl::Status Validate(const v1::SubmitJobRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckId("request_id", request.request_id()));
  AGMM_RETURN_IF_ERROR(CheckId("session_id", request.session_id()));
  const int64_t spec_bytes = static_cast<int64_t>(request.spec().size());
  AGMM_RETURN_IF_ERROR(CheckBetween("the length of spec", spec_bytes, 1, kMaxNotationBytes,
                                    "write one such as A[M_x, K] * B[K, N_x] -> C[M, N_x]"));
  AGMM_RETURN_IF_ERROR(CheckMesh("mesh", request.mesh()));
  if (request.tensors_size() != kProductTensors) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tensors has %d entries; a product has %d: give A, B and C",
                        request.tensors_size(), kProductTensors));
  }
  for (int i = 0; i < request.tensors_size(); ++i)
    AGMM_RETURN_IF_ERROR(CheckRef(absl::StrFormat("tensors[%d]", i), request.tensors(i)));
  AGMM_RETURN_IF_ERROR(CheckOptions("options", request.options()));
  AGMM_RETURN_IF_ERROR(CheckBetween("repeat_count", request.repeat_count(), 0, kMaxRepeat,
                                    "submit several jobs for more"));
  return CheckTimeout("timeout", request.timeout());
}

absl::Status Validate(const v1::GetJobRequest& request) {
  return CheckIdGiven("job_id", request.job_id());
}

absl::Status Validate(const v1::WaitJobRequest& request) {
  return CheckIdGiven("job_id", request.job_id());
}

absl::Status Validate(const v1::CancelJobRequest& request) {
  return CheckIdGiven("job_id", request.job_id());
}

absl::Status Validate(const v1::ListJobsRequest& request) {
  return CheckBetween("page_size", request.page_size(), 0, kMaxPage,
                      "ask for the next page for more");
}

absl::Status Validate(const v1::WatchJobRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckIdGiven("job_id", request.job_id()));
  return CheckBetween("after_event", request.after_event(), 0, INT64_MAX,
                      "give the number of the last event that was seen, or 0");
}

}  // namespace agmm
