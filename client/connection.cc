#include "client/connection.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "client/session.h"
#include "proto/channel/channel.h"
#include "proto/convert/metadata.h"
#include "proto/convert/status.h"

namespace agmm {
namespace {

// A stopped daemon, or a host that went away, is noticed in their sum.
constexpr int kKeepaliveMs = 20'000, kKeepaliveTimeoutMs = 10'000;
constexpr int kMaxMessageBytes = 64 << 20;
// What a stream may have received that its reader has not taken. gRPC's own guess grows to tens of
// MiB with a fast daemon and a slow disk.
constexpr int kWindowBytes = 4 << 20;
constexpr int kConnectMs = 5'000;
constexpr int kPage = 1000;  // as many as a daemon sends at once
// A daemon that was lost is looked for so often.
constexpr absl::Duration kFirstDelay = absl::Milliseconds(50), kMaxDelay = absl::Seconds(1);
// gRPC before 1.61 now and then takes a TCP connection that is being made for one that failed, with
// an error that is somebody else's (grpc/grpc#35064; seen with 1.51: "No such file or directory").
// A first failure that came at once, and is not the other host's refusal, is therefore not believed
// until it has come so often.
constexpr int kDials = 4;
constexpr absl::Duration kAtOnce = absl::Seconds(1);
constexpr char kRefused[] = "Connection refused";

std::shared_ptr<grpc::Channel> MakeChannel(const Endpoint& endpoint) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  // No longer than ours: gRPC refuses calls while it waits to dial again.
  const int first_ms = static_cast<int>(absl::ToInt64Milliseconds(kFirstDelay));
  // How long one attempt may take: a host that is busy is not one where nobody listens.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, first_ms);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(kMaxDelay)));
  // Jobs of many steps and lists of many tensors are long; the daemon bounds them.
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
  return OpenChannel(endpoint.target, std::move(arguments));
}

}  // namespace

Connection::Connection(Endpoint endpoint) : endpoint_(std::move(endpoint)) {
  const std::shared_ptr<grpc::Channel> channel = MakeChannel(endpoint_);
  cluster_ = v1::ClusterService::NewStub(channel);
  tensors_ = v1::TensorService::NewStub(channel);
  jobs_ = v1::JobService::NewStub(channel);
}

Connection::~Connection() = default;

template <typename Response, typename Send>
absl::StatusOr<Response> Connection::Run(const Options& options, Send send) {
  Retry retry = options.sequencer.has_value() ? Retry(this, options.deadline, *options.sequencer)
                                              : Retry(this, options.deadline);
  while (true) {
    Call call(this, options.deadline, retry.sequencer(), options.interruptible);
    Response response;
    const absl::Status status = call.Convert(send(call.context(), &response));
    if (status.ok()) {
      Learn(response);
      return response;
    }
    if (options.gone_is_done && retry.count() > 0 && absl::IsNotFound(status)) return response;
    if (!options.safe) return status;
    const std::optional<absl::Duration> delay = retry.Next(call);
    if (!delay.has_value() || !WaitToRetry(*delay, options.interruptible)) return status;
  }
}

template <typename Response>
void Connection::Learn(const Response& response) {
  std::string sequencer;
  if constexpr (requires { response.sequencer(); }) {
    sequencer = response.sequencer();
  } else if constexpr (requires { response.sequencer_node(); }) {
    for (const v1::NodeStatus& node : response.nodes())
      if (node.index() == response.sequencer_node()) sequencer = node.incarnation();
  }
  if (sequencer.empty()) return;
  std::lock_guard lock(mutex_);
  sequencer_ = std::move(sequencer);
}

std::string Connection::known_sequencer() {
  std::lock_guard lock(mutex_);
  return sequencer_;
}

absl::StatusOr<v1::GetStatusResponse> Connection::GetStatus(absl::Duration timeout) {
  return Run<v1::GetStatusResponse>({absl::Now() + timeout}, [&](auto* context, auto* response) {
    return cluster_->GetStatus(context, {}, response);
  });
}

absl::StatusOr<std::string> Connection::OpenSession(absl::Duration timeout) {
  auto session = std::make_unique<Session>(this);
  absl::StatusOr<std::string> id = session->Open(cluster_.get(), timeout);
  if (!id.ok()) return id;
  std::lock_guard lock(mutex_);
  session_ = std::move(session);
  return id;
}

absl::StatusOr<v1::Tensor> Connection::CreateTensor(const v1::CreateTensorRequest& request,
                                                    absl::Duration timeout) {
  return Run<v1::Tensor>({absl::Now() + timeout, !request.request_id().empty()},
                         [&](auto* context, auto* response) {
                           return tensors_->CreateTensor(context, request, response);
                         });
}

absl::StatusOr<v1::Tensor> Connection::FillTensor(const v1::FillTensorRequest& request,
                                                  absl::Duration timeout) {
  return Run<v1::Tensor>({absl::Now() + timeout, /*safe=*/false},
                         [&](auto* context, auto* response) {
                           return tensors_->FillTensor(context, request, response);
                         });
}

absl::StatusOr<v1::Tensor> Connection::GetTensor(const v1::TensorRef& tensor,
                                                 absl::Duration timeout) {
  v1::GetTensorRequest request;
  *request.mutable_tensor() = tensor;
  Options options{absl::Now() + timeout};
  if (tensor.has_tensor_id()) options.sequencer = "";
  return Run<v1::Tensor>(options, [&](auto* context, auto* response) {
    return tensors_->GetTensor(context, request, response);
  });
}

absl::StatusOr<v1::ListTensorsResponse> Connection::ListTensors(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  v1::ListTensorsResponse all;
  v1::ListTensorsRequest request;
  request.set_page_size(kPage);
  do {
    auto page = Run<v1::ListTensorsResponse>({deadline}, [&](auto* context, auto* response) {
      return tensors_->ListTensors(context, request, response);
    });
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
  Options options{absl::Now() + timeout};
  options.sequencer = tensor.sequencer;
  options.gone_is_done = true;
  return Run<v1::DeleteTensorResponse>(options,
                                       [&](auto* context, auto* response) {
                                         return tensors_->DeleteTensor(context, request, response);
                                       })
      .status();
}

absl::StatusOr<v1::Upload> Connection::GetUpload(const std::string& upload_id,
                                                 absl::Duration timeout) {
  v1::GetUploadRequest request;
  request.set_upload_id(upload_id);
  return Run<v1::Upload>({absl::Now() + timeout}, [&](auto* context, auto* response) {
    return tensors_->GetUpload(context, request, response);
  });
}

absl::Status Connection::AbortUpload(const std::string& upload_id, absl::Duration timeout) {
  v1::AbortUploadRequest request;
  request.set_upload_id(upload_id);
  return Run<v1::AbortUploadResponse>({absl::Now() + timeout, true, /*interruptible=*/false},
                                      [&](auto* context, auto* response) {
                                        return tensors_->AbortUpload(context, request, response);
                                      })
      .status();
}

absl::StatusOr<v1::Job> Connection::SubmitJob(const v1::SubmitJobRequest& request,
                                              absl::Duration timeout,
                                              const std::string& sequencer) {
  Options options{absl::Now() + timeout, !request.request_id().empty()};
  const bool by_id = std::any_of(request.tensors().begin(), request.tensors().end(),
                                 [](const v1::TensorRef& ref) { return ref.has_tensor_id(); });
  // Names mean something to every sequencer.
  if (by_id) options.sequencer = sequencer;
  return Run<v1::Job>(options, [&](auto* context, auto* response) {
    return jobs_->SubmitJob(context, request, response);
  });
}

absl::StatusOr<v1::Job> Connection::GetJob(const Id& job, absl::Duration timeout) {
  v1::GetJobRequest request;
  request.set_job_id(job.number);
  Options options{absl::Now() + timeout};
  options.sequencer = job.sequencer;
  return Run<v1::Job>(options, [&](auto* context, auto* response) {
    return jobs_->GetJob(context, request, response);
  });
}

absl::StatusOr<v1::Job> Connection::WaitJob(const Id& job, absl::Time deadline) {
  v1::WaitJobRequest request;
  request.set_job_id(job.number);
  Options options{deadline};
  options.sequencer = job.sequencer;
  return Run<v1::Job>(options, [&](auto* context, auto* response) {
    return jobs_->WaitJob(context, request, response);
  });
}

absl::StatusOr<v1::Job> Connection::CancelJob(const Id& job, absl::Duration timeout) {
  v1::CancelJobRequest request;
  request.set_job_id(job.number);
  Options options{absl::Now() + timeout, true, /*interruptible=*/false};
  options.sequencer = job.sequencer;
  return Run<v1::Job>(options, [&](auto* context, auto* response) {
    return jobs_->CancelJob(context, request, response);
  });
}

absl::StatusOr<v1::ListJobsResponse> Connection::ListJobs(const v1::ListJobsRequest& request,
                                                          absl::Duration timeout) {
  return Run<v1::ListJobsResponse>({absl::Now() + timeout}, [&](auto* context, auto* response) {
    return jobs_->ListJobs(context, request, response);
  });
}

void Connection::Interrupt() {
  std::lock_guard lock(mutex_);
  interrupted_ = true;
  for (grpc::ClientContext* context : active_) context->TryCancel();
  interruption_.notify_all();
}

bool Connection::SessionLost() {
  std::lock_guard lock(mutex_);
  return session_ != nullptr && session_->lost();
}

std::optional<absl::Duration> Connection::Retry::Next(const Call& call) {
  const absl::Time now = absl::Now();
  if (call.doubtful_) {
    const absl::Duration delay = kFirstDelay * (1 << dials_);
    if (++dials_ == kDials || now - call.start_ > kAtOnce || now + delay >= deadline_)
      return std::nullopt;
    return delay;
  }
  if (!call.lost() || connection_->SessionLost()) return std::nullopt;
  // An attempt that lived longer than the bound was a connection; the search begins anew.
  if (count_ == 0 || now - call.start_ >= kRetryBound) {
    give_up_ = std::min(deadline_, now + kRetryBound);
    delay_ = kFirstDelay;
  }
  if (now + delay_ >= give_up_) return std::nullopt;
  if (about_id_ && sequencer_.empty()) {
    // Whose id it was nobody can say.
    if (known_.empty()) return std::nullopt;
    sequencer_ = known_;
  }
  ++count_;
  return std::exchange(delay_, std::min(2 * delay_, kMaxDelay));
}

bool Connection::WaitToRetry(absl::Duration delay, bool interruptible) {
  {
    std::unique_lock lock(mutex_);
    interruption_.wait_for(lock, absl::ToChronoNanoseconds(delay),
                           [&] { return interruptible && interrupted_; });
  }
  return !SessionLost();
}

Connection::Call::Call(Connection* connection, absl::Time deadline, const std::string& sequencer,
                       bool interruptible)
    : connection_(connection) {
  if (!sequencer.empty()) context_.AddMetadata(kSequencerKey, sequencer);
  if (deadline != absl::InfiniteFuture()) context_.set_deadline(absl::ToChronoTime(deadline));
  if (!interruptible) return;
  std::lock_guard lock(connection_->mutex_);
  connection_->active_.insert(&context_);
  if (connection_->interrupted_) context_.TryCancel();
}

Connection::Call::~Call() {
  std::lock_guard lock(connection_->mutex_);
  connection_->active_.erase(&context_);
}

absl::Status Connection::Call::Convert(const grpc::Status& status) {
  std::lock_guard lock(connection_->mutex_);
  const std::string& endpoint = connection_->endpoint_.text;
  const std::string& socket = connection_->endpoint_.socket_path;
  google::rpc::Status details;
  const bool from_daemon = !status.error_details().empty() &&
                           details.ParseFromString(status.error_details()) &&
                           details.code() == static_cast<int>(status.error_code());
  const bool answered_before = connection_->answered_;
  connection_->answered_ |= status.ok() || from_daemon;
  if (status.ok()) return absl::OkStatus();
  if (from_daemon) return FromProto(details);
  switch (status.error_code()) {
    case grpc::StatusCode::CANCELLED:
      if (connection_->interrupted_) return absl::CancelledError("cancelled");
      break;
    case grpc::StatusCode::UNAVAILABLE:
      if (answered_before) {
        lost_ = true;
        return absl::UnavailableError(absl::StrFormat(
            connection_->session_ != nullptr
                ? "the daemon at %s was lost in mid-call; what this client had there is gone"
                : "the daemon at %s was lost in mid-call; see its log, and `agmmctl status`",
            endpoint));
      }
      if (!socket.empty() && access(socket.c_str(), W_OK) != 0 && errno == EACCES) {
        return absl::PermissionDeniedError(absl::StrFormat(
            "no permission to use %s; ask as the user who runs its daemon", endpoint));
      }
      // What gRPC says of a name that it cannot find.
      if (absl::StrContains(status.error_message(), "DNS resolution failed")) {
        return absl::UnavailableError(absl::StrFormat(
            "the host of %s cannot be found; check its name, or give its address", endpoint));
      }
      doubtful_ = socket.empty() && !absl::StrContains(status.error_message(), kRefused);
      return absl::UnavailableError(absl::StrFormat(
          "no daemon answers at %s; start one with `agmmd`, or give the endpoint of one: host:port "
          "or unix:/path (agmmctl: --endpoint)",
          endpoint));
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return absl::DeadlineExceededError(absl::StrFormat(
          "the daemon at %s did not answer in time; see `agmmctl status` and its log", endpoint));
    default: break;
  }
  return absl::Status(
      static_cast<absl::StatusCode>(status.error_code()),
      absl::StrFormat("the call to %s failed: %s", endpoint, status.error_message()));
}

}  // namespace agmm
