// What is behind a Client.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "client/agmm.h"
#include "client/library/core.h"

namespace agmm {

class ClientImpl {
 public:
  // How a tensor of this name and spec is asked for; with a request id of its own.
  absl::StatusOr<v1::CreateTensorRequest> RequestFor(const std::string& name,
                                                     const TensorSpec& spec,
                                                     absl::Duration timeout) const;
  absl::StatusOr<v1::SubmitJobRequest> RequestFor(const JobRequest& given,
                                                  absl::Duration timeout) const;
  // Of a core that has begun a use for it, which ends when the job's outcome has been told.
  void Run(const JobRequest& request, Milliseconds timeout, bool may_run_anywhere,
           std::function<void(const Result<JobInfo>&)> on_end) const;
  JobHandle Handle(const Id& job, absl::Duration job_timeout) const;

  using TakePiece = std::function<Status(const TensorInfo& tensor, int64_t offset_bytes,
                                         const std::byte* from, int64_t size_bytes)>;
  Result<TensorInfo> Download(const std::string& name, const TakePiece& take,
                              const TransferOptions& options) const;

  std::shared_ptr<Core> core;
};

}  // namespace agmm
