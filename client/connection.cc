#include "client/connection.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/convert/status.h"

namespace agmm {
namespace {

// For calls that only exchange a few words.
constexpr absl::Duration kShortCall = absl::Seconds(10);
// Making a tensor waits for every node of its mesh.
constexpr absl::Duration kPlacingCall = absl::Seconds(30);
// A stopped daemon, or a host that went away, is noticed in their sum.
constexpr int kKeepaliveMs = 20'000, kKeepaliveTimeoutMs = 10'000;

std::shared_ptr<grpc::Channel> MakeChannel(const Endpoint& endpoint) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  // A connection of its own: with a shared one, a new attempt would wait out the back-off of an old
  // one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Daemons are reached directly, whatever the environment says of the web.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(endpoint.target, grpc::InsecureChannelCredentials(), arguments);
}

template <typename T>
absl::StatusOr<T> Result(const absl::Status& status, T&& value) {
  if (!status.ok()) return status;
  return std::forward<T>(value);
}

}  // namespace

Connection::Connection(Endpoint endpoint) : endpoint_(std::move(endpoint)) {
  const std::shared_ptr<grpc::Channel> channel = MakeChannel(endpoint_);
  cluster_ = v1::ClusterService::NewStub(channel);
  tensors_ = v1::TensorService::NewStub(channel);
  jobs_ = v1::JobService::NewStub(channel);
}

Connection::~Connection() {
  if (session_ == nullptr) return;
  session_->context()->TryCancel();
  session_stream_->Finish();  // CANCELLED, by the line above
}

absl::StatusOr<v1::GetStatusResponse> Connection::GetStatus() {
  Call call(this, absl::Now() + kShortCall);
  v1::GetStatusResponse response;
  const absl::Status status = call.Convert(cluster_->GetStatus(call.context(), {}, &response));
  return Result(status, std::move(response));
}

absl::StatusOr<std::string> Connection::OpenSession() {
  session_ = std::make_unique<Call>(this, absl::InfiniteFuture());
  session_stream_ = cluster_->OpenSession(session_->context(), {});
  v1::SessionEvent event;
  if (session_stream_->Read(&event)) return event.session_id();
  const absl::Status status = session_->Convert(session_stream_->Finish());
  session_stream_.reset();
  session_.reset();
  if (!status.ok()) return status;
  return absl::InternalError(
      absl::StrFormat("the daemon at %s ended a session before it had a name", endpoint()));
}

absl::StatusOr<v1::Tensor> Connection::CreateTensor(const v1::CreateTensorRequest& request) {
  Call call(this, absl::Now() + kPlacingCall);
  v1::Tensor response;
  const absl::Status status =
      call.Convert(tensors_->CreateTensor(call.context(), request, &response));
  return Result(status, std::move(response));
}

absl::StatusOr<v1::Job> Connection::SubmitJob(const v1::SubmitJobRequest& request) {
  Call call(this, absl::Now() + kPlacingCall);
  v1::Job response;
  const absl::Status status = call.Convert(jobs_->SubmitJob(call.context(), request, &response));
  return Result(status, std::move(response));
}

absl::StatusOr<v1::Job> Connection::WaitJob(uint64_t job_id, absl::Time deadline) {
  Call call(this, deadline);
  v1::WaitJobRequest request;
  request.set_job_id(job_id);
  v1::Job response;
  const absl::Status status = call.Convert(jobs_->WaitJob(call.context(), request, &response));
  return Result(status, std::move(response));
}

absl::StatusOr<v1::Job> Connection::CancelJob(uint64_t job_id) {
  Call call(this, absl::Now() + kShortCall, /*interruptible=*/false);
  v1::CancelJobRequest request;
  request.set_job_id(job_id);
  v1::Job response;
  const absl::Status status = call.Convert(jobs_->CancelJob(call.context(), request, &response));
  return Result(status, std::move(response));
}

void Connection::Interrupt() {
  std::lock_guard lock(mutex_);
  interrupted_ = true;
  for (grpc::ClientContext* context : active_) context->TryCancel();
}

Connection::Call::Call(Connection* connection, absl::Time deadline, bool interruptible)
    : connection_(connection) {
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
        return absl::UnavailableError(absl::StrFormat(
            "the daemon at %s was lost in mid-call; what this client had there is gone", endpoint));
      }
      if (!socket.empty() && access(socket.c_str(), W_OK) != 0 && errno == EACCES) {
        return absl::PermissionDeniedError(absl::StrFormat(
            "no permission to use %s; ask as the user who runs its daemon", endpoint));
      }
      return absl::UnavailableError(absl::StrFormat(
          "no daemon answers at %s; start one with `agmmd`, or name one with --endpoint",
          endpoint));
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return absl::DeadlineExceededError(absl::StrFormat(
          "the daemon at %s did not answer in time; see `agmmctl status` and its log", endpoint));
    default:
      break;
  }
  return absl::Status(
      static_cast<absl::StatusCode>(status.error_code()),
      absl::StrFormat("the call to %s failed: %s", endpoint, status.error_message()));
}

}  // namespace agmm
