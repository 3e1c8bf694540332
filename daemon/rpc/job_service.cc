#include "daemon/rpc/job_service.h"

#include <utility>

#include "daemon/rpc/reply.h"
#include "daemon/rpc/run_jobs.h"
#include "daemon/rpc/watch_job.h"

namespace agmm {

grpc::ServerUnaryReactor* JobService::SubmitJob(grpc::CallbackServerContext* context,
                                                const v1::SubmitJobRequest* request,
                                                v1::Job* response) {
  return AnswerUnary(context, request, response, [&](const CallContext& call, auto reply) {
    control_->SubmitJob(call, *request, std::move(reply));
  });
}

grpc::ServerUnaryReactor* JobService::GetJob(grpc::CallbackServerContext* context,
                                             const v1::GetJobRequest* request, v1::Job* response) {
  return AnswerUnary(context, request, response, [&](const CallContext& call, auto reply) {
    control_->GetJob(call, *request, std::move(reply));
  });
}

grpc::ServerUnaryReactor* JobService::WaitJob(grpc::CallbackServerContext* context,
                                              const v1::WaitJobRequest* request,
                                              v1::Job* response) {
  return AnswerUnary(context, request, response, [&](const CallContext& call, auto reply) {
    control_->WaitJob(call, *request, std::move(reply));
  });
}

grpc::ServerUnaryReactor* JobService::CancelJob(grpc::CallbackServerContext* context,
                                                const v1::CancelJobRequest* request,
                                                v1::Job* response) {
  return AnswerUnary(context, request, response, [&](const CallContext& call, auto reply) {
    control_->CancelJob(call, *request, std::move(reply));
  });
}

grpc::ServerUnaryReactor* JobService::ListJobs(grpc::CallbackServerContext* context,
                                               const v1::ListJobsRequest* request,
                                               v1::ListJobsResponse* response) {
  return AnswerUnary(context, request, response, [&](const CallContext& call, auto reply) {
    control_->ListJobs(call, *request, std::move(reply));
  });
}

grpc::ServerBidiReactor<v1::RunJobsRequest, v1::RunJobsResponse>* JobService::RunJobs(
    grpc::CallbackServerContext* context) {
  return StartRunJobs(control_, CallContextOf(context));
}

grpc::ServerWriteReactor<v1::WatchJobResponse>* JobService::WatchJob(
    grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) {
  return StartWatchJob(control_, CallContextOf(context), *request);
}

}  // namespace agmm
