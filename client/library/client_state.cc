#include "client/library/client_state.h"

#include <unistd.h>

#include <grpc/grpc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/connect/tensor_handle.h"
#include "kernels/base/random.h"
#include "kernels/base/reason.h"
#include "kernels/base/status.h"
#include "proto/convert/plan_inputs.h"
#include "proto/convert/time.h"

namespace agmm {
namespace {

// Longest timeout, because later times would overflow.
constexpr absl::Duration kLongest = absl::Hours(24 * 365);

// Time that a closing client has for cancellations that were requested before.
constexpr std::chrono::seconds kCancelsAtClose{5};

std::atomic<pid_t> starter = 0;  // the process that has started gRPC; 0 if none has

// Starts gRPC, for the life of the process. Must not be called where Forked.
void StartGrpc() {
  // Never shut down, because gRPC's shutdown may wait 10 s for one of its own threads.
  if (starter.exchange(getpid()) == 0) grpc_init();
}

// Converts a duration of the public header; zero means `otherwise`.
absl::Duration ToTimeout(Milliseconds given, Milliseconds otherwise) {
  const Milliseconds chosen = given == Milliseconds::zero() ? otherwise : given;
  return std::clamp(absl::FromChrono(chosen), -kLongest, kLongest);
}

std::string NewRequestId() { return RandomHex(kIdBytes); }

// Sets a tensor of the job by its name or handle.
absl::Status SetTensor(const std::string& text, v1::TensorRef* ref, JobCall* call) {
  AGMM_ASSIGN_OR_RETURN(const NamedTensor named, ParseTensor(text));
  *ref = named.ref;
  if (!call->sequencer.empty() && !named.sequencer.empty() && call->sequencer != named.sequencer) {
    return WithReason(
        absl::AbortedError("the handles of the job are from before and after a restart of node 0's "
                           "daemon, where all tensors were lost; put the tensors again"),
        kReasonPeerLost);
  }
  if (!named.sequencer.empty()) call->sequencer = named.sequencer;
  return absl::OkStatus();
}

}  // namespace

Status Refusal(Status closed) { return Forked() ? ForkedError() : closed; }

absl::Duration JobTimeout(const JobRequest& request) {
  return ToTimeout(request.timeout, absl::ToChronoMilliseconds(kDefaultJobTimeout));
}

ClientState::ClientState(Endpoint endpoint, ClientOptions options)
    : endpoint_(endpoint.text), options_(std::move(options)) {
  StartGrpc();
  connection_.emplace(std::move(endpoint));
  loop_.emplace("the client's callbacks");
}

absl::Status ClientState::Open() {
  AGMM_RETURN_IF_ERROR(loop_->status());
  const Deadline deadline = Deadline::After(CallTimeout({}));
  AGMM_RETURN_IF_ERROR(GetStatus(deadline.Left()).status());
  if (options_.session) {
    AGMM_ASSIGN_OR_RETURN(session_, connection_->OpenSession(options_.program, deadline.Left()));
  }
  return absl::OkStatus();
}

void ClientState::Close() {
  if (Forked()) {
    kept_ = shared_from_this();
    return;
  }
  {
    std::unique_lock lock(mutex_);
    if (std::exchange(closed_, true)) {
      // The loop lasts until there is no use, and each callback holds one. A callback cannot wait,
      // because the first call waits for it.
      const bool in_callback = uses_ > 0 && loop_->OnLoop();
      if (!in_callback) unused_.wait(lock, [this] { return close_ended_; });
      return;
    }
  }
  if (loop_->OnLoop()) {
    FailWith(Status(StatusCode::kFailedPrecondition,
                    "an agmm::Client was closed in one of its own callbacks; close it on another "
                    "thread"));
  }
  connection_->Interrupt();
  transfers_.Close();
  loop_->RunTimersNow();
  {
    std::unique_lock lock(mutex_);
    const auto unused = [this] { return uses_ == 0; };
    if (!unused_.wait_for(lock, kCancelsAtClose, unused)) {
      lock.unlock();
      cancels_late_.request_stop();
      lock.lock();
      unused_.wait(lock, unused);
    }
  }
  background_.Join();
  loop_.reset();
  runs_.clear();
  connection_.reset();
  std::lock_guard lock(mutex_);
  close_ended_ = true;
  unused_.notify_all();
}

ClientState::Use ClientState::Begin() {
  if (Forked()) return nullptr;
  std::lock_guard lock(mutex_);
  return closed_ ? nullptr : MakeUse();
}

ClientState::Use ClientState::MakeUse() {
  ++uses_;
  return Use(this, [self = shared_from_this()](ClientState*) {
    std::lock_guard lock(self->mutex_);
    if (--self->uses_ == 0) self->unused_.notify_all();
  });
}

absl::Duration ClientState::CallTimeout(Milliseconds given) const {
  return ToTimeout(given, options_.call_timeout);
}

absl::Duration ClientState::TransferTimeout(Milliseconds given) const {
  return ToTimeout(given, options_.transfer_timeout);
}

Deadline ClientState::WaitDeadline(Milliseconds given, absl::Duration job_timeout) const {
  const bool is_given = given != Milliseconds::zero();
  return Deadline::After(is_given ? ToTimeout(given, {}) : job_timeout + CallTimeout({}));
}

absl::StatusOr<v1::GetStatusResponse> ClientState::GetStatus(absl::Duration timeout,
                                                             const std::stop_token& stop) {
  AGMM_ASSIGN_OR_RETURN(v1::GetStatusResponse status, connection_->GetStatus(timeout, stop));
  if (!status.ready()) return status;
  std::lock_guard lock(mutex_);
  device_count_ = 0;
  for (const v1::NodeStatus& node : status.nodes()) device_count_ += node.devices_size();
  return status;
}

absl::StatusOr<v1::CreateTensorRequest> ClientState::RequestFor(const std::string& name,
                                                                const TensorSpec& spec,
                                                                Deadline deadline,
                                                                const std::stop_token& stop) {
  if (spec.type != ElementType::kF32 && spec.type != ElementType::kBF16 &&
      spec.type != ElementType::kF16) {
    return absl::InvalidArgumentError(
        absl::StrFormat("TensorSpec::type is %d; use kF32, kBF16 or kF16", spec.type));
  }
  v1::CreateTensorRequest request;
  request.set_name(name);
  request.mutable_spec()->set_rows(spec.rows);
  request.mutable_spec()->set_cols(spec.cols);
  request.mutable_spec()->set_dtype(ToWire(spec.type));
  request.mutable_spec()->set_sharding(spec.sharding);
  AGMM_ASSIGN_OR_RETURN(*request.mutable_spec()->mutable_mesh(),
                        MeshOf(spec.mesh, spec.ranks, deadline, stop));
  request.set_session_id(session_);
  request.set_request_id(NewRequestId());
  return request;
}

absl::StatusOr<JobCall> ClientState::RequestFor(const JobRequest& given, Deadline deadline,
                                                const std::stop_token& stop) {
  JobCall call;
  v1::SubmitJobRequest& request = call.request;
  request.set_request_id(NewRequestId());
  request.set_spec(given.spec);
  AGMM_ASSIGN_OR_RETURN(*request.mutable_mesh(), MeshOf(given.mesh, given.ranks, deadline, stop));
  if (!given.tensors.empty() && !(given.a + given.b + given.c).empty()) {
    return absl::InvalidArgumentError(
        "the job names tensors both by operand (tensors) and in a, b and c; give one of the "
        "two");
  }
  for (const auto& [operand, tensor] : given.tensors) {
    request.add_operands()->set_name(operand);
    AGMM_RETURN_IF_ERROR(
        SetTensor(tensor, request.mutable_operands()->rbegin()->mutable_tensor(), &call));
  }
  if (given.tensors.empty()) {
    for (const std::string* name : {&given.a, &given.b, &given.c}) {
      if (name != &given.c || !name->empty() || absl::StrContains(given.spec, '*'))
        AGMM_RETURN_IF_ERROR(SetTensor(*name, request.add_tensors(), &call));
    }
  }
  request.mutable_options()->set_algorithm(given.algorithm);
  request.mutable_options()->set_chunk_count(given.chunk_count);
  request.mutable_options()->set_k_chunk_count(given.k_chunk_count);
  request.mutable_options()->set_split(given.split);
  request.mutable_options()->set_workspace_shard_count(given.workspace_shard_count);
  request.mutable_options()->set_carried(given.carried);
  request.mutable_options()->set_partials(ToWire(given.partials));
  request.set_repeat_count(given.repeat_count);
  if (given.timeout != Milliseconds::zero())
    *request.mutable_timeout() = ToProto(absl::FromChrono(given.timeout));
  request.set_ignore_tuning(given.ignore_tuning);
  request.set_session_id(session_);
  return call;
}

absl::StatusOr<v1::Tensor> ClientState::Find(const std::string& name, Deadline deadline,
                                             const std::stop_token& stop) {
  AGMM_ASSIGN_OR_RETURN(const NamedTensor named, ParseTensor(name));
  return connection_->GetTensor(named.ref, deadline.Left(), named.sequencer, stop);
}

absl::StatusOr<v1::Job> ClientState::Submit(const JobRequest& given, Deadline deadline,
                                            const std::stop_token& stop) {
  AGMM_ASSIGN_OR_RETURN(JobCall call, RequestFor(given, deadline, stop));
  absl::StatusOr<v1::Job> job =
      connection_->SubmitJob(call.request, deadline.Left(), call.sequencer, stop);
  // A call that was stopped may have reached the daemon, or may still reach it.
  if (stop.stop_requested() && (job.ok() || absl::IsCancelled(job.status()))) {
    CancelRun(std::move(call));
    return StoppedError();
  }
  return job;
}

void ClientState::Run(const JobRequest& given, Milliseconds timeout, const std::stop_token& stop,
                      Runs::OnEnd on_end) {
  WaitingRun run{given, WaitDeadline(timeout, JobTimeout(given)), stop, std::move(on_end)};
  bool asks = false;
  {
    std::lock_guard lock(mutex_);
    asks = device_count_ == 0 && given.mesh.empty() && given.ranks.empty();
    if (starting_ || asks) waiting_runs_.push_back(std::move(run));
    if (starting_) return;
    starting_ = asks;
  }
  if (!asks) return StartRun(std::move(run));
  // The caller of an asynchronous run must not wait for the daemon. Without a thread it does.
  if (!background_.Start("starts runs", [this] { StartRuns(); }).ok()) StartRuns();
}

void ClientState::StartRun(WaitingRun run) {
  auto call = RequestFor(run.given, run.deadline, run.stop);
  const absl::Status status = call.ok() ? CheckReadable(call->request) : call.status();
  if (!status.ok()) return run.on_end(status);
  RunsOf(call->sequencer)
      ->Run(std::move(call->request), run.deadline, run.stop, std::move(run.on_end));
}

void ClientState::StartRuns() {
  while (true) {
    WaitingRun run;
    {
      std::lock_guard lock(mutex_);
      starting_ = !waiting_runs_.empty();
      if (!starting_) return;
      run = std::move(waiting_runs_.front());
      waiting_runs_.pop_front();
    }
    StartRun(std::move(run));
  }
}

Runs* ClientState::RunsOf(const std::string& sequencer) {
  std::lock_guard lock(mutex_);
  const auto cancel = [this, sequencer](const v1::SubmitJobRequest& request) {
    CancelRun({request, sequencer});
  };
  return &runs_.try_emplace(sequencer, &*connection_, &*loop_, sequencer, cancel).first->second;
}

void ClientState::CancelRun(JobCall call) {
  std::unique_lock lock(mutex_);
  // Then the run has ended meanwhile.
  if (closed_ && uses_ == 0) return;
  cancels_.push_back(std::move(call));
  if (std::exchange(cancelling_, true)) return;
  // Even while the client closes: it waits for the run, and so for this use.
  const auto cancel = [this, use = MakeUse()] { CancelRuns(); };
  lock.unlock();
  // Without a thread, callbacks wait for the cancellation, but no job goes on unnoticed.
  if (!background_.Start("cancels jobs", cancel).ok()) loop_->Post(cancel);
}

void ClientState::CancelRuns() {
  while (true) {
    JobCall call;
    {
      std::lock_guard lock(mutex_);
      cancelling_ = !cancels_.empty();
      if (!cancelling_) return;
      call = std::move(cancels_.front());
      cancels_.pop_front();
    }
    connection_
        ->CancelRequest(call.request, CallTimeout({}), call.sequencer, cancels_late_.get_token())
        .IgnoreError();
  }
}

std::future<Result<TensorInfo>> ClientState::Start(
    absl::string_view purpose, TransferOptions options,
    std::function<Result<TensorInfo>(const TransferOptions&)> move) {
  auto promise = std::make_shared<std::promise<Result<TensorInfo>>>();
  std::future<Result<TensorInfo>> future = promise->get_future();
  const Use use = Begin();
  if (use == nullptr) {
    promise->set_value(Refusal());
    return future;
  }
  const std::stop_token stop = options.stop;
  options.progress = [this, progress = std::move(options.progress)](int64_t moved, int64_t total) {
    transfers_.NoteProgress();
    if (progress) progress(moved, total);
  };
  const absl::Status added = transfers_.Add(
      purpose, stop,
      [promise, use, options = std::move(options), move = std::move(move)] {
        promise->set_value(move(options));
      },
      [promise, use](const absl::Status& why) { promise->set_value(ToPublic(why)); });
  if (!added.ok()) promise->set_value(ToPublic(added));
  return future;
}

absl::StatusOr<v1::Mesh> ClientState::MeshOf(const std::string& mesh, const std::vector<int>& ranks,
                                             Deadline deadline, const std::stop_token& stop) {
  if (!mesh.empty()) return MeshFromText(mesh, ranks);
  if (!ranks.empty()) return MeshFromText(absl::StrCat("x=", ranks.size()), ranks);
  AGMM_ASSIGN_OR_RETURN(const int count, DeviceCount(deadline, stop));
  return MeshFromText(absl::StrCat("x=", count), {});
}

absl::StatusOr<int> ClientState::DeviceCount(Deadline deadline, const std::stop_token& stop) {
  {
    std::lock_guard lock(mutex_);
    if (device_count_ > 0) return device_count_;
  }
  const absl::Duration timeout = std::min(deadline.Left(), CallTimeout({}));
  AGMM_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, GetStatus(timeout, stop));
  if (!status.ready())
    return WithReason(absl::UnavailableError(status.reason()), kReasonWorldIncomplete);
  std::lock_guard lock(mutex_);
  return device_count_;
}

bool Forked() {
  const pid_t process = starter;
  return process != 0 && process != getpid();
}

Status ForkedError() {
  return Status(StatusCode::kFailedPrecondition,
                absl::StrFormat("process %d was forked from process %d, and a connection does not "
                                "survive a fork; fork before the first connection, or exec a "
                                "program that connects",
                                getpid(), starter.load()));
}

}  // namespace agmm
