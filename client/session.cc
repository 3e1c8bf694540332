#include "client/session.h"

#include "absl/strings/str_format.h"

namespace agmm {

Connection::Session::~Session() {
  if (!started_) return;
  call_.context()->TryCancel();
  AwaitDone();
}

absl::StatusOr<std::string> Connection::Session::Open(v1::ClusterService::Stub* stub,
                                                      absl::Duration timeout) {
  started_ = true;
  static const v1::OpenSessionRequest* const kRequest = new v1::OpenSessionRequest;
  stub->async()->OpenSession(call_.context(), kRequest, this);
  StartRead(&event_);
  StartCall();
  bool answered = false;
  {
    std::unique_lock lock(mutex_);
    answered = changed_.wait_for(lock, absl::ToChronoNanoseconds(timeout),
                                 [this] { return state_ != State::kOpening; });
    if (state_ == State::kOpen) return event_.session_id();
  }
  call_.context()->TryCancel();
  AwaitDone();
  if (!answered) {
    return absl::DeadlineExceededError(absl::StrFormat(
        "the daemon at %s opened no session within %s; see `agmmctl status` and its log",
        connection_->endpoint(), absl::FormatDuration(timeout)));
  }
  const absl::Status status = call_.Convert(end_);
  if (!status.ok()) return status;
  return absl::InternalError(absl::StrFormat(
      "the daemon at %s ended a session before it had a name", connection_->endpoint()));
}

bool Connection::Session::lost() {
  std::lock_guard lock(mutex_);
  return state_ == State::kDone;
}

void Connection::Session::OnReadDone(bool ok) {
  std::lock_guard lock(mutex_);
  if (!ok) return;  // OnDone says why
  if (state_ == State::kOpening) state_ = State::kOpen;
  changed_.notify_all();
  StartRead(&later_);  // ends with the stream
}

void Connection::Session::OnDone(const grpc::Status& status) {
  std::lock_guard lock(mutex_);
  end_ = status;
  state_ = State::kDone;
  // Under the lock: whoever waits may destroy this object next.
  changed_.notify_all();
}

// gRPC does not touch the reactor once OnDone has begun, and calls nothing of it after.
void Connection::Session::AwaitDone() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return state_ == State::kDone; });
}

}  // namespace agmm
