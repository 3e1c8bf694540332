// Conversion of messages and errors to the public header's structs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "client/agmm.h"

namespace agmm {

Status ToPublic(const absl::Status& status);
absl::Status FromPublic(const Status& status);

// The sessions, with the status that names their nodes.
struct OpenSessions {
  std::string own_id;  // of this client's own session; empty: it has none
  v1::ListSessionsResponse list;
  v1::GetStatusResponse status;
};

std::vector<SessionInfo> ToPublic(const OpenSessions& sessions);
TensorInfo ToPublic(const v1::Tensor& tensor);
JobInfo ToPublic(const v1::Job& job);
inline JobHandle ToPublic(const JobHandle& job) { return job; }
JobEvent ToPublic(const v1::JobEvent& event);
WorldInfo ToPublic(const v1::GetStatusResponse& status);
std::vector<TensorInfo> ToPublic(const v1::ListTensorsResponse& list);
std::vector<JobInfo> ToPublic(const v1::ListJobsResponse& list);
v1::DType ToWire(ElementType type);

template <typename T>
auto ToPublic(const absl::StatusOr<T>& result) -> Result<decltype(ToPublic(*result))> {
  if (!result.ok()) return ToPublic(result.status());
  return ToPublic(*result);
}

// The result of a wait: the job if it has succeeded, else its error or that of the wait.
Result<JobInfo> JobResult(const absl::StatusOr<v1::Job>& job);

}  // namespace agmm
