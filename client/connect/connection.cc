#include "client/connect/connection.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "client/connect/program_text.h"
#include "kernels/base/status.h"
#include "kernels/base/utf8.h"
#include "proto/limits.h"

namespace agmm {
namespace {

using Cluster = class v1::ClusterService::Stub::async;
using Tensors = class v1::TensorService::Stub::async;
using Contents = class v1::ContentService::Stub::async;
using Jobs = class v1::JobService::Stub::async;
using Machine = class v1::MachineService::Stub::async;
using Tuning = class v1::TuningService::Stub::async;

// Returns the sequencer's incarnation if the response names it, else "".
template <typename Response>
std::string SequencerIn(const Response& response) {
  if constexpr (requires { response.sequencer(); }) {
    return response.sequencer();
  } else if constexpr (requires { response.sequencer_node(); }) {
    for (const v1::NodeStatus& node : response.nodes())
      if (node.index() == response.sequencer_node()) return node.incarnation();
  }
  return "";
}

// Time for which a call that is left in progress may still reach a daemon that was stopped.
constexpr absl::Duration kLeft = absl::Minutes(1);

absl::Status CheckText(const char* field, const std::string& text) {
  const auto at = NoUtf8From(text);
  if (!at.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is not UTF-8 from byte %d on; encode it as UTF-8", field, *at));
}

}  // namespace

// The stream that keeps a session alive.
class Session final : private grpc::ClientReadReactor<v1::SessionEvent> {
 public:
  // Begins the stream.
  Session(Caller* caller, v1::ClusterService::Stub* stub, std::string program)
      : caller_(caller), call_(caller, Deadline::Infinite()) {
    request_.set_program(std::move(program));
    stub->async()->OpenSession(call_.context(), &request_, this);
    StartRead(&event_);
    StartCall();
  }
  // Ends the session.
  ~Session() override { Close(); }

  // Returns the session's id once it is open. At most once.
  absl::StatusOr<std::string> AwaitId(absl::Duration timeout) {
    bool answered = false;
    {
      std::unique_lock lock(mutex_);
      answered = changed_.wait_for(lock, absl::ToChronoNanoseconds(timeout),
                                   [this] { return phase_ != Phase::kOpening; });
      if (phase_ == Phase::kOpen) return event_.session_id();
    }
    Close();
    if (!answered) {
      return absl::DeadlineExceededError(
          absl::StrFormat("the daemon at %s opened no session within %s; see its log",
                          caller_->endpoint().text, absl::FormatDuration(timeout)));
    }
    const absl::Status status = call_.Convert(end_);
    if (!status.ok()) return status;
    return absl::InternalError(
        absl::StrFormat("the daemon at %s ended a session before it gave its id; see its log",
                        caller_->endpoint().text));
  }

 private:
  enum class Phase { kOpening, kOpen, kDone };

  void OnReadDone(bool ok) override {
    std::lock_guard lock(mutex_);
    if (!ok) return;  // OnDone says why
    if (phase_ == Phase::kOpening) {
      phase_ = Phase::kOpen;
      caller_->SetSession(Caller::SessionState::kOpen);
      changed_.notify_all();
    }
    StartRead(&later_);  // fails when the stream ends
  }
  void OnDone(const grpc::Status& status) override {
    std::lock_guard lock(mutex_);
    if (phase_ == Phase::kOpen) caller_->SetSession(Caller::SessionState::kLost);
    end_ = status;
    phase_ = Phase::kDone;
    // With the lock, because the thread that waits may destroy this object next.
    changed_.notify_all();
  }
  // Cancels the stream and waits for its end: gRPC calls nothing of the reactor after OnDone, and
  // does not touch it once that has begun.
  void Close() {
    call_.context()->TryCancel();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return phase_ == Phase::kDone; });
  }

  Caller* const caller_;
  Caller::Call call_;
  v1::OpenSessionRequest request_;
  v1::SessionEvent event_, later_;
  std::mutex mutex_;  // guards phase_ and end_
  std::condition_variable changed_;
  Phase phase_ = Phase::kOpening;
  grpc::Status end_;
};

Connection::Connection(Endpoint endpoint)
    : Caller(std::move(endpoint)),
      cluster_(v1::ClusterService::NewStub(channel())),
      tensors_(v1::TensorService::NewStub(channel())),
      contents_(v1::ContentService::NewStub(channel())),
      jobs_(v1::JobService::NewStub(channel())),
      machine_(v1::MachineService::NewStub(channel())),
      tuning_(v1::TuningService::NewStub(channel())) {}

Connection::~Connection() = default;

template <typename Stub, typename Service, typename Request, typename Response>
absl::StatusOr<Response> Connection::Run(const Options& options, const std::unique_ptr<Stub>& stub,
                                         Method<Service, Request, Response> method,
                                         const Request& request) {
  struct Messages {
    Request request;
    Response response;
  };
  Retry retry(this, std::min(options.deadline, options.wait), options.sequencer);
  while (true) {
    Call call(this, options.deadline, retry.sequencer(), options.interruptible, options.stop);
    const auto messages = std::make_shared<Messages>(Messages{request, {}});
    (stub->async()->*method)(call.context(), &messages->request, &messages->response,
                             call.OnEnd(messages));
    const absl::Status status = call.Convert(call.Await(options.wait));
    if (status.ok()) {
      Response& response = messages->response;
      Learn(SequencerIn(response));
      return std::move(response);
    }
    if (options.not_found_is_ok && retry.count() > 0 && absl::IsNotFound(status)) return Response();
    if (!options.safe) return status;
    const std::optional<absl::Duration> delay = retry.Next(call);
    if (!delay.has_value() || !WaitToRetry(*delay, options.interruptible, options.stop))
      return status;
  }
}

absl::StatusOr<v1::GetStatusResponse> Connection::GetStatus(absl::Duration timeout,
                                                            std::stop_token stop) {
  return Run({.deadline = Deadline::After(timeout), .stop = std::move(stop)}, cluster_,
             &Cluster::GetStatus, v1::GetStatusRequest());
}

absl::StatusOr<v1::MachineStatus> Connection::GetMachine(absl::Duration timeout) {
  return Run({.deadline = Deadline::After(timeout)}, machine_, &Machine::GetMachine,
             v1::GetMachineRequest());
}

absl::StatusOr<v1::MachineStatus> Connection::MeasureMachine(absl::Duration timeout) {
  return Run({.deadline = Deadline::After(timeout)}, machine_, &Machine::MeasureMachine,
             v1::MeasureMachineRequest());
}

absl::StatusOr<v1::TuningStatus> Connection::GetTuning(absl::Duration timeout) {
  return Run({.deadline = Deadline::After(timeout)}, tuning_, &Tuning::GetTuning,
             v1::GetTuningRequest());
}

absl::StatusOr<v1::TuningStatus> Connection::StoreTuning(const v1::StoreTuningRequest& request,
                                                         absl::Duration timeout) {
  return Run({.deadline = Deadline::After(timeout), .interruptible = false}, tuning_,
             &Tuning::StoreTuning, request);
}

absl::StatusOr<std::string> Connection::OpenSession(absl::string_view program,
                                                    absl::Duration timeout) {
  session_ = std::make_unique<Session>(this, cluster_.get(), ProgramText(program));
  return session_->AwaitId(timeout);
}

absl::StatusOr<v1::ListSessionsResponse> Connection::ListSessions(absl::Duration timeout) {
  const Options options{.deadline = Deadline::After(timeout)};
  v1::ListSessionsResponse all;
  v1::ListSessionsRequest request;
  request.set_page_size(kMaxPage);
  do {
    const auto page = Run(options, cluster_, &Cluster::ListSessions, request);
    if (!page.ok()) return page;
    request.set_after_number(page->next_after_number());
    all.MergeFrom(*page);
  } while (request.after_number() != 0);
  all.clear_next_after_number();
  return all;
}

absl::StatusOr<v1::Tensor> Connection::CreateTensor(const v1::CreateTensorRequest& request,
                                                    absl::Duration timeout) {
  AGMM_RETURN_IF_ERROR(CheckReadable(request));
  return Run({.deadline = Deadline::After(timeout), .safe = !request.request_id().empty()},
             tensors_, &Tensors::CreateTensor, request);
}

absl::StatusOr<v1::Tensor> Connection::FillTensor(const v1::FillTensorRequest& request,
                                                  absl::Duration timeout) {
  AGMM_RETURN_IF_ERROR(CheckReadable(request.put()));
  return Run({.deadline = Deadline::After(timeout), .safe = false}, tensors_, &Tensors::FillTensor,
             request);
}

absl::StatusOr<v1::Tensor> Connection::GetTensor(const v1::TensorRef& tensor,
                                                 absl::Duration timeout,
                                                 const std::string& sequencer,
                                                 std::stop_token stop) {
  AGMM_RETURN_IF_ERROR(CheckReadable(tensor));
  v1::GetTensorRequest request;
  *request.mutable_tensor() = tensor;
  Options options{.deadline = Deadline::After(timeout), .stop = std::move(stop)};
  if (tensor.has_tensor_id()) options.sequencer = sequencer;
  return Run(options, tensors_, &Tensors::GetTensor, request);
}

absl::StatusOr<v1::ListTensorsResponse> Connection::ListTensors(absl::Duration timeout) {
  const Options options{.deadline = Deadline::After(timeout)};
  v1::ListTensorsResponse all;
  v1::ListTensorsRequest request;
  request.set_page_size(kMaxPage);
  do {
    const auto page = Run(options, tensors_, &Tensors::ListTensors, request);
    if (!page.ok()) return page;
    request.set_after_tensor_id(page->next_after_tensor_id());
    all.MergeFrom(*page);
  } while (request.after_tensor_id() != 0);
  all.clear_next_after_tensor_id();
  return all;
}

absl::Status Connection::DeleteTensor(const Id& tensor, absl::Duration timeout) {
  v1::DeleteTensorRequest request;
  request.set_tensor_id(tensor.number);
  return Run({.deadline = Deadline::After(timeout),
              .not_found_is_ok = true,
              .sequencer = tensor.sequencer},
             tensors_, &Tensors::DeleteTensor, request)
      .status();
}

absl::Status Connection::AbortUpload(const std::string& upload_id, absl::Duration timeout) {
  v1::AbortUploadRequest request;
  request.set_upload_id(upload_id);
  return Run({.deadline = Deadline::After(timeout + kLeft),
              .interruptible = false,
              .wait = Deadline::After(timeout)},
             contents_, &Contents::AbortUpload, request)
      .status();
}

absl::StatusOr<v1::Job> Connection::SubmitJob(const v1::SubmitJobRequest& request,
                                              absl::Duration timeout, const std::string& sequencer,
                                              std::stop_token stop) {
  AGMM_RETURN_IF_ERROR(CheckReadable(request));
  return SubmitJob(request, {.deadline = Deadline::After(timeout), .stop = std::move(stop)},
                   sequencer);
}

absl::StatusOr<v1::Job> Connection::SubmitJob(const v1::SubmitJobRequest& request, Options options,
                                              const std::string& sequencer) {
  options.safe = !request.request_id().empty();
  // Names mean the same to every sequencer, but ids do not.
  const bool by_id = absl::c_any_of(request.tensors(),
                                    [](const v1::TensorRef& ref) { return ref.has_tensor_id(); }) ||
                     absl::c_any_of(request.operands(), [](const v1::OperandTensor& operand) {
                       return operand.tensor().has_tensor_id();
                     });
  if (by_id) options.sequencer = sequencer;
  return Run(options, jobs_, &Jobs::SubmitJob, request);
}

absl::Status Connection::CancelRequest(const v1::SubmitJobRequest& request, absl::Duration timeout,
                                       const std::string& sequencer, const std::stop_token& stop) {
  Options options{.deadline = Deadline::After(timeout), .interruptible = false, .stop = stop};
  // Finds the job by its request id, or submits it before the other call does.
  AGMM_ASSIGN_OR_RETURN(const v1::Job job, SubmitJob(request, options, sequencer));
  options.sequencer = job.sequencer();
  v1::CancelJobRequest cancel;
  cancel.set_job_id(job.job_id());
  return Run(options, jobs_, &Jobs::CancelJob, cancel).status();
}

absl::StatusOr<v1::Job> Connection::GetJob(const Id& job, absl::Duration timeout) {
  v1::GetJobRequest request;
  request.set_job_id(job.number);
  return Run({.deadline = Deadline::After(timeout), .sequencer = job.sequencer}, jobs_,
             &Jobs::GetJob, request);
}

absl::StatusOr<v1::Job> Connection::GetEarlierJob(uint64_t number, const std::string& run,
                                                  absl::Duration timeout) {
  v1::GetJobRequest request;
  request.set_job_id(number);
  request.set_sequencer(run);
  return Run({.deadline = Deadline::After(timeout)}, jobs_, &Jobs::GetJob, request);
}

absl::StatusOr<v1::Job> Connection::GetJobProgress(const Id& job, bool step_times,
                                                   absl::Duration timeout) {
  v1::GetJobRequest request;
  request.set_job_id(job.number);
  request.set_progress(true);
  request.set_step_times(step_times);
  return Run({.deadline = Deadline::After(timeout), .sequencer = job.sequencer}, jobs_,
             &Jobs::GetJob, request);
}

absl::Status NotEndedError(uint64_t job, absl::Duration timeout) {
  return absl::DeadlineExceededError(absl::StrFormat(
      "job %d had not ended after a wait of %s, and goes on; wait again, or cancel it", job,
      absl::FormatDuration(absl::Floor(timeout + absl::Microseconds(500), absl::Milliseconds(1)))));
}

absl::StatusOr<v1::Job> Connection::WaitJob(const Id& job, Deadline deadline) {
  v1::WaitJobRequest request;
  request.set_job_id(job.number);
  const absl::Duration timeout = deadline.Left();
  auto ended =
      Run({.deadline = deadline, .sequencer = job.sequencer}, jobs_, &Jobs::WaitJob, request);
  if (absl::IsDeadlineExceeded(ended.status())) return NotEndedError(job.number, timeout);
  return ended;
}

absl::StatusOr<v1::Job> Connection::CancelJob(const Id& job, absl::Duration timeout) {
  v1::CancelJobRequest request;
  request.set_job_id(job.number);
  return Run(
      {.deadline = Deadline::After(timeout), .interruptible = false, .sequencer = job.sequencer},
      jobs_, &Jobs::CancelJob, request);
}

absl::StatusOr<v1::ListJobsResponse> Connection::ListJobs(int limit, absl::Duration timeout) {
  const Options options{.deadline = Deadline::After(timeout)};
  v1::ListJobsResponse all;
  v1::ListJobsRequest request;
  request.set_earlier_runs(true);
  while (all.jobs_size() < limit) {
    request.set_page_size(std::min(limit - all.jobs_size(), kMaxPage));
    const auto page = Run(options, jobs_, &Jobs::ListJobs, request);
    if (!page.ok()) return page;
    all.mutable_jobs()->MergeFrom(page->jobs());
    *all.mutable_earlier_jobs() = page->earlier_jobs();
    all.set_next_before_job_id(page->next_before_job_id());
    if (all.next_before_job_id() == 0) break;
    request.set_before_job_id(all.next_before_job_id());
  }
  return all;
}

absl::Status CheckReadable(const v1::TensorRef& tensor) {
  return CheckText("the name of a tensor", tensor.name());
}

absl::Status CheckReadable(const v1::CreateTensorRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckText("the name of a tensor", request.name()));
  return CheckText("sharding", request.spec().sharding());
}

absl::Status CheckReadable(const v1::SubmitJobRequest& request) {
  AGMM_RETURN_IF_ERROR(CheckText("the id of the request", request.request_id()));
  AGMM_RETURN_IF_ERROR(CheckText("spec", request.spec()));
  AGMM_RETURN_IF_ERROR(CheckText("algorithm", request.options().algorithm()));
  for (const v1::TensorRef& tensor : request.tensors()) AGMM_RETURN_IF_ERROR(CheckReadable(tensor));
  for (const v1::OperandTensor& operand : request.operands()) {
    AGMM_RETURN_IF_ERROR(CheckText("the name of an operand", operand.name()));
    AGMM_RETURN_IF_ERROR(CheckReadable(operand.tensor()));
  }
  if (const size_t bytes = request.ByteSizeLong(); bytes > kMaxJobBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the job's request has %d bytes, the limit is %d; use a shorter spec and "
                        "shorter names",
                        bytes, kMaxJobBytes));
  }
  return absl::OkStatus();
}

}  // namespace agmm
