// Jobs: what clients may ask of the sequencer, wherever it is.
#pragma once

#include "agmm/v1/job.grpc.pb.h"
#include "daemon/control.h"

namespace agmm {

class JobService final : public v1::JobService::CallbackService {
 public:
  // `control` outlives the server.
  explicit JobService(Control* control) : control_(control) {}

  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext* context,
                                      const v1::SubmitJobRequest* request,
                                      v1::Job* response) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request, v1::Job* response) override;
  grpc::ServerUnaryReactor* WaitJob(grpc::CallbackServerContext* context,
                                    const v1::WaitJobRequest* request, v1::Job* response) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context,
                                      const v1::CancelJobRequest* request,
                                      v1::Job* response) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override;
  grpc::ServerBidiReactor<v1::RunJobsRequest, v1::RunJobsResponse>* RunJobs(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(
      grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) override;

 private:
  Control* const control_;
};

}  // namespace agmm
