// What a request must be before anybody looks at it: sizes, counts, names, numbers that multiply
// without overflow. One overload a message; AnswerUnary and the streams call it, nobody else needs
// to. Whether a thing exists, fits or is allowed is decided by whoever holds it.
//
// Errors: INVALID_ARGUMENT, one line with the field, its value, the bound and what to do (three
// lines, with a caret, where the notation of a spec or sharding is wrong). What has passed converts
// with FromProto.
#pragma once

#include "absl/status/status.h"
#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/peer.pb.h"
#include "agmm/v1/tensor.pb.h"

namespace agmm {

absl::Status Validate(const v1::GetStatusRequest& request);
absl::Status Validate(const v1::OpenSessionRequest& request);

absl::Status Validate(const v1::CreateTensorRequest& request);
absl::Status Validate(const v1::DeleteTensorRequest& request);
absl::Status Validate(const v1::ListTensorsRequest& request);
absl::Status Validate(const v1::GetTensorRequest& request);
absl::Status Validate(const v1::FillTensorRequest& request);
absl::Status Validate(const v1::GetUploadRequest& request);
absl::Status Validate(const v1::AbortUploadRequest& request);
absl::Status Validate(const v1::ReadTensorRequest& request);
// Messages of streams, each by itself; their order is the stream's to check.
absl::Status Validate(const v1::UploadRequest& request);
absl::Status Validate(const v1::MapTensorRequest& request);

absl::Status Validate(const v1::SubmitJobRequest& request);
absl::Status Validate(const v1::GetJobRequest& request);
absl::Status Validate(const v1::WaitJobRequest& request);
absl::Status Validate(const v1::CancelJobRequest& request);
absl::Status Validate(const v1::ListJobsRequest& request);
absl::Status Validate(const v1::WatchJobRequest& request);

// Of daemons.
absl::Status Validate(const v1::BeginAccessRequest& request);
absl::Status Validate(const v1::EndAccessRequest& request);
absl::Status Validate(const v1::OpenedSessionRequest& request);
absl::Status Validate(const v1::CloseSessionRequest& request);
absl::Status Validate(const v1::PollJobRequest& request);

}  // namespace agmm
