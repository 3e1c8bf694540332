// The wire's messages and errors as the public header's structs.
#pragma once

#include "absl/status/status.h"
#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "client/agmm.h"

namespace agmm {

Status ToPublic(const absl::Status& status);
absl::Status FromPublic(const Status& status);

TensorInfo ToPublic(const v1::Tensor& tensor);
JobInfo ToPublic(const v1::Job& job);
JobEvent ToPublic(const v1::JobEvent& event);
WorldInfo ToPublic(const v1::GetStatusResponse& status);
v1::DType ToWire(ElementType type);

// What a Wait for a job that has ended returns: the job, or its error.
Result<JobInfo> JobResult(const v1::Job& job);

}  // namespace agmm
