// A fake job service of the sequencer, for tests of the code between it and its callers.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <map>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "agmm/v1/job.grpc.pb.h"
#include "kernels/base/deadline.h"
#include "proto/convert/grpc_call.h"
#include "tests/support/notification.h"

namespace agmm {

// Answers GetJob as set by the test, WaitJob never, WatchJob with three events, and RunJobs with
// one message of outcomes for each message of jobs. The mutex also orders the test and its calls
// for the thread sanitizer, which does not see that a socket orders them.
class FakeJobs final : public v1::JobService::CallbackService {
 public:
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request, v1::Job* response) override {
    {
      absl::MutexLock lock(&mutex_);
      metadata_.clear();
      for (const auto& [key, value] : context->client_metadata())
        metadata_[std::string(key.data(), key.size())] = std::string(value.data(), value.size());
      deadline_ = FromGrpc(context->raw_deadline());
    }
    response->set_job_id(request->job_id());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const absl::Status given = answer();
    reactor->Finish(without_details ? grpc::Status(static_cast<grpc::StatusCode>(given.code()),
                                                   std::string(given.message()))
                                    : ToGrpc(given));
    return reactor;
  }
  grpc::ServerUnaryReactor* WaitJob(grpc::CallbackServerContext* context, const v1::WaitJobRequest*,
                                    v1::Job*) override {
    struct Waiting : grpc::ServerUnaryReactor {
      explicit Waiting(FakeJobs* jobs) : jobs(jobs) {}
      void OnCancel() override {
        jobs->cancelled.Notify();
        Finish(grpc::Status(grpc::StatusCode::CANCELLED, ""));
      }
      void OnDone() override { delete this; }
      FakeJobs* const jobs;
    };
    waiting.Notify();
    return new Waiting(this);
  }
  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(
      grpc::CallbackServerContext*, const v1::WatchJobRequest* request) override {
    struct Watch : grpc::ServerWriteReactor<v1::WatchJobResponse> {
      void OnWriteDone(bool) override { Next(); }
      void OnDone() override { delete this; }
      void Next() {
        if (++number > 3) return Finish(ToGrpc(end));
        response.mutable_event()->set_number(number);
        StartWrite(&response);
      }
      int number = 0;
      absl::Status end;
      v1::WatchJobResponse response;
    };
    auto* watch = new Watch;
    watch->number = static_cast<int>(request->after_event());
    watch->end = answer();
    watch->Next();
    return watch;
  }
  grpc::ServerBidiReactor<v1::RunJobsRequest, v1::RunJobsResponse>* RunJobs(
      grpc::CallbackServerContext*) override {
    struct Run : grpc::ServerBidiReactor<v1::RunJobsRequest, v1::RunJobsResponse> {
      explicit Run(FakeJobs* jobs) : jobs(jobs) { StartRead(&request); }
      void OnReadDone(bool ok) override {
        // A caller that leaves may look like one that has sent everything.
        if (!ok && jobs->ends_by_cancel) return;
        const absl::Status answer = jobs->answer();
        if (!ok || !answer.ok()) return Finish(ToGrpc(answer));
        response.Clear();
        for (const v1::SubmitJobRequest& job : request.jobs())
          response.add_outcomes()->set_request_id(job.request_id());
        StartWrite(&response);
      }
      void OnWriteDone(bool) override { StartRead(&request); }
      void OnCancel() override {
        jobs->cancelled.Notify();
        if (jobs->ends_by_cancel) Finish(grpc::Status(grpc::StatusCode::CANCELLED, ""));
      }
      void OnDone() override { delete this; }
      FakeJobs* const jobs;
      v1::RunJobsRequest request;
      v1::RunJobsResponse response;
    };
    return new Run(this);
  }

  void Answer(absl::Status answer) {
    absl::MutexLock lock(&mutex_);
    answer_ = std::move(answer);
  }
  absl::Status answer() const {
    absl::MutexLock lock(&mutex_);
    return answer_;
  }
  // The metadata and the deadline of the last GetJob.
  std::map<std::string, std::string> metadata() const {
    absl::MutexLock lock(&mutex_);
    return metadata_;
  }
  Deadline deadline() const {
    absl::MutexLock lock(&mutex_);
    return deadline_;
  }

  std::atomic<bool> without_details = false;  // GetJob answers as gRPC itself does
  std::atomic<bool> ends_by_cancel = false;   // RunJobs ends only when its caller has left
  Notification waiting, cancelled;

 private:
  mutable absl::Mutex mutex_;
  absl::Status answer_;
  std::map<std::string, std::string> metadata_;
  Deadline deadline_;
};

}  // namespace agmm
