// JobOutcome messages from what Control's calls answer.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "agmm/v1/job.pb.h"
#include "proto/convert/status.h"

namespace agmm {

// `error` is not OK.
inline v1::JobOutcome ErrorOutcome(const std::string& request_id, const absl::Status& error) {
  v1::JobOutcome outcome;
  outcome.set_request_id(request_id);
  *outcome.mutable_error() = ToProto(error);
  return outcome;
}

inline v1::JobOutcome ToOutcome(const std::string& request_id, absl::StatusOr<v1::Job> job) {
  if (!job.ok()) return ErrorOutcome(request_id, job.status());
  v1::JobOutcome outcome;
  outcome.set_request_id(request_id);
  outcome.mutable_job()->Swap(&*job);
  return outcome;
}

}  // namespace agmm
