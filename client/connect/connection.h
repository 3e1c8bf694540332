// A client's connection to one daemon, which passes calls on to the others where needed. Every call
// blocks, has a deadline, and fails with the daemon's own error: code, message and reason.
//
// UNAVAILABLE without a reason means that no daemon answers at the endpoint, or that it was lost
// during the call. Before such a failure, calls that are safe to repeat are repeated: for about
// kRetryBound if a daemon has answered before, else for 2 s unless the network itself refuses the
// connection. A call that the daemon itself refused is never repeated here.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agmm/v1/cluster.grpc.pb.h"
#include "agmm/v1/job.grpc.pb.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/machine.grpc.pb.h"
#include "agmm/v1/tensor.grpc.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "agmm/v1/tuning.grpc.pb.h"
#include "client/connect/caller.h"
#include "kernels/base/deadline.h"

namespace agmm {

// Timeout of calls that only exchange small messages.
inline constexpr absl::Duration kShortCall = absl::Seconds(10);
// Timeout of calls that wait for every node of a mesh, to make a tensor or a plan.
inline constexpr absl::Duration kPlacingCall = absl::Seconds(30);
// Timeout of fills, which also wait for the jobs before them.
inline constexpr absl::Duration kFillingCall = absl::Minutes(10);

inline Id IdOf(const v1::Job& job) { return Id(job.job_id(), job.sequencer()); }
inline Id IdOf(const v1::Tensor& tensor) { return Id(tensor.tensor_id(), tensor.sequencer()); }

// Thread-safe. A `timeout` bounds a call with all its attempts.
class Connection : public Caller {
 public:
  explicit Connection(Endpoint endpoint);
  // Ends the session. No call may be in progress.
  ~Connection();

  // A request to `stop` ends the call with CANCELLED.
  absl::StatusOr<v1::GetStatusResponse> GetStatus(absl::Duration timeout = kShortCall,
                                                  std::stop_token stop = {});

  // Opens a session and returns its id. It ends with this object or with the process, even if that
  // is killed; its jobs are then cancelled and its tensors deleted. May be called once. Once the
  // session is lost, no call is repeated. Lists show `program`; see ProgramText.
  absl::StatusOr<std::string> OpenSession(absl::string_view program = "",
                                          absl::Duration timeout = kShortCall);
  // Returns all pages as one response.
  absl::StatusOr<v1::ListSessionsResponse> ListSessions(absl::Duration timeout = kShortCall);

  // Repeated if the request has a request id.
  absl::StatusOr<v1::Tensor> CreateTensor(const v1::CreateTensorRequest& request,
                                          absl::Duration timeout = kPlacingCall);
  // Waits for the jobs admitted before it that use the tensor. Never repeated, because another
  // client may have written in between.
  absl::StatusOr<v1::Tensor> FillTensor(const v1::FillTensorRequest& request,
                                        absl::Duration timeout = kFillingCall);
  // `sequencer` assigned the tensor id in `tensor`, if any. Errors: NOT_FOUND.
  absl::StatusOr<v1::Tensor> GetTensor(const v1::TensorRef& tensor,
                                       absl::Duration timeout = kShortCall,
                                       const std::string& sequencer = "",
                                       std::stop_token stop = {});
  // Returns all pages as one response.
  absl::StatusOr<v1::ListTensorsResponse> ListTensors(absl::Duration timeout = kShortCall);
  // Errors: NOT_FOUND, except where an earlier attempt of this call may have deleted it.
  absl::Status DeleteTensor(const Id& tensor, absl::Duration timeout = kShortCall);

  // Sent even after an Interrupt. After `timeout`, the call is left in progress, so that a daemon
  // that was stopped may still receive it.
  absl::Status AbortUpload(const std::string& upload_id, absl::Duration timeout = kShortCall);

  // Repeated if the request has a request id, which makes it one job of one sequencer. If that
  // sequencer and the job are lost, the job is submitted to the next sequencer, but only if all
  // tensors are given by name. Otherwise `sequencer` is the one that assigned the tensors' ids.
  // After a request to `stop`, which ends the call with CANCELLED, the job may exist.
  absl::StatusOr<v1::Job> SubmitJob(const v1::SubmitJobRequest& request,
                                    absl::Duration timeout = kPlacingCall,
                                    const std::string& sequencer = "", std::stop_token stop = {});
  // Returns the job in its current state. Errors: NOT_FOUND.
  absl::StatusOr<v1::Job> GetJob(const Id& job, absl::Duration timeout = kShortCall);
  // Like GetJob, with the fields that GetJobRequest.progress adds and, if `step_times`, the fields
  // of GetJobRequest.step_times.
  absl::StatusOr<v1::Job> GetJobProgress(const Id& job, bool step_times = false,
                                         absl::Duration timeout = kShortCall);
  // Returns the job once it has ended in any state. Errors: NOT_FOUND; DEADLINE_EXCEEDED if it is
  // still queued or running at `deadline`. For its events, and to wait in the background, see
  // job_watch.h.
  absl::StatusOr<v1::Job> WaitJob(const Id& job, Deadline deadline);
  // Sent even after an Interrupt.
  absl::StatusOr<v1::Job> CancelJob(const Id& job, absl::Duration timeout = kShortCall);
  // Cancels the job of `request`, whether or not the daemon has received it. Sent even after an
  // Interrupt. `sequencer` as in SubmitJob.
  absl::Status CancelRequest(const v1::SubmitJobRequest& request, absl::Duration timeout,
                             const std::string& sequencer, const std::stop_token& stop);
  // Returns the job `number` of an earlier run of node 0's daemon, whose sequencer begins with
  // `run`. Errors: NOT_FOUND.
  absl::StatusOr<v1::Job> GetEarlierJob(uint64_t number, const std::string& run,
                                        absl::Duration timeout = kShortCall);
  // Returns at most `limit` jobs, from as many pages as it takes, as one response; the last ones
  // may be of earlier runs.
  absl::StatusOr<v1::ListJobsResponse> ListJobs(int limit, absl::Duration timeout = kShortCall);

  absl::StatusOr<v1::MachineStatus> GetMachine(absl::Duration timeout = kShortCall);
  // Makes a measurement of the world due, and does not wait for it.
  absl::StatusOr<v1::MachineStatus> MeasureMachine(absl::Duration timeout = kShortCall);

  absl::StatusOr<v1::TuningStatus> GetTuning(absl::Duration timeout = kShortCall);
  // Sent even after an Interrupt, because the plans took long to measure.
  absl::StatusOr<v1::TuningStatus> StoreTuning(const v1::StoreTuningRequest& request,
                                               absl::Duration timeout = kShortCall);

  v1::TensorService::Stub* tensors() { return tensors_.get(); }
  v1::ContentService::Stub* contents() { return contents_.get(); }
  v1::JobService::Stub* jobs() { return jobs_.get(); }

 private:
  struct Options {
    Deadline deadline;
    bool safe = true;  // to repeat
    bool interruptible = true;
    bool not_found_is_ok = false;                         // after the first attempt
    std::optional<std::string> sequencer = std::nullopt;  // for a call about an id
    std::stop_token stop = {};
    // Ends the wait. If it is before `deadline`, the call is then left in progress.
    Deadline wait = Deadline::Infinite();
  };
  absl::StatusOr<v1::Job> SubmitJob(const v1::SubmitJobRequest& request, Options options,
                                    const std::string& sequencer);
  // A method of a stub's `async`.
  template <typename Service, typename Request, typename Response>
  using Method = void (Service::*)(grpc::ClientContext*, const Request*, Response*,
                                   std::function<void(grpc::Status)>);
  // Calls `method`, as often as `options` allow.
  template <typename Stub, typename Service, typename Request, typename Response>
  absl::StatusOr<Response> Run(const Options& options, const std::unique_ptr<Stub>& stub,
                               Method<Service, Request, Response> method, const Request& request);

  const std::unique_ptr<v1::ClusterService::Stub> cluster_;
  const std::unique_ptr<v1::TensorService::Stub> tensors_;
  const std::unique_ptr<v1::ContentService::Stub> contents_;
  const std::unique_ptr<v1::JobService::Stub> jobs_;
  const std::unique_ptr<v1::MachineService::Stub> machine_;
  const std::unique_ptr<v1::TuningService::Stub> tuning_;
  std::unique_ptr<Session> session_;
};

// The error of a wait of `timeout` for a job that is still queued or running.
absl::Status NotEndedError(uint64_t job, absl::Duration timeout);

// Refuses requests whose texts are not UTF-8, because a daemon cannot parse them and its error
// would not say why. Errors: INVALID_ARGUMENT, which names the field and the byte.
absl::Status CheckReadable(const v1::TensorRef& tensor);
absl::Status CheckReadable(const v1::CreateTensorRequest& request);
// Also checks the size, because a larger request would end the stream that it shares with others.
absl::Status CheckReadable(const v1::SubmitJobRequest& request);

}  // namespace agmm
