#include "client/job_outcome.h"

#include "absl/strings/str_format.h"
#include "proto/convert/status.h"

namespace agmm {

absl::Status OutcomeOf(const v1::Job& job) {
  if (job.state() == v1::Job::STATE_SUCCEEDED) return absl::OkStatus();
  absl::Status error = FromProto(job.error());
  if (!error.ok()) return error;
  return absl::InternalError(absl::StrFormat(
      "job %d has not succeeded, and the daemon does not say why; see its log", job.job_id()));
}

}  // namespace agmm
