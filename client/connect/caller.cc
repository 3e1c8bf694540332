#include "client/connect/caller.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/reason.h"
#include "proto/channel/channel.h"
#include "proto/convert/grpc_call.h"

namespace agmm {
namespace {

constexpr int kKeepaliveMs = 10'000, kKeepaliveTimeoutMs = 5'000;
static_assert(absl::Milliseconds(kKeepaliveMs + kKeepaliveTimeoutMs) == kNoticeBound);
constexpr int kMaxMessageBytes = 64 << 20;
// Bytes that a stream may receive ahead of its reader. gRPC's own estimate grows to tens of MiB
// with a fast daemon and a slow disk.
constexpr int kWindowBytes = 4 << 20;
constexpr int kConnectMs = 5'000;
// Delays between the attempts to find a lost daemon.
constexpr absl::Duration kFirstDelay = absl::Milliseconds(50), kMaxDelay = absl::Seconds(1);
// gRPC before 1.61 sometimes reports a TCP connection that is still being opened as failed, with an
// unrelated error (grpc/grpc#35064; seen with 1.51: "No such file or directory"). Until this long
// after its call began, a first failure that is not a network error is therefore retried. The bound
// is a time and not a number of attempts, because gRPC repeats the old failure until it has
// reconnected, which may take long on a busy host.
constexpr absl::Duration kDoubt = absl::Seconds(2);
constexpr const char* kAnswersOfNetwork[] = {"Connection refused", "No route to host",
                                             "Network is unreachable"};
// A connection was opened, but no bytes arrived: the daemon is stopped, or too busy.
constexpr char kSilent[] = "before receiving SETTINGS frame";

std::shared_ptr<grpc::Channel> MakeChannel(const Endpoint& endpoint) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  // gRPC refuses calls until it dials again, so its delays must not be longer than Retry's.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(kFirstDelay)));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(kMaxDelay)));
  // Bounds one attempt to connect; long enough for a busy host.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  // Jobs of many steps and lists of many tensors are long; the daemon bounds them.
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
  return OpenChannel(endpoint.target, std::move(arguments));
}

// True for a failure that no agmmd causes: an unknown method, or a server without gRPC or HTTP/2.
// The phrases are gRPC's; tests/client/other_servers_test.cc checks them against the installed
// version.
bool IsForeign(const grpc::Status& status) {
  const std::string& message = status.error_message();
  return status.error_code() == grpc::StatusCode::UNIMPLEMENTED ||
         absl::StrContains(message, "Received http2 header with status") ||
         absl::StrContains(message, "http1.x server") ||
         absl::StrContains(message, "Failed parsing HTTP/2");
}

}  // namespace

absl::Status StoppedError() { return absl::CancelledError("stopped at the caller's request"); }

Caller::Caller(Endpoint endpoint)
    : endpoint_(std::move(endpoint)), channel_(MakeChannel(endpoint_)) {}

std::string Caller::known_sequencer() {
  std::lock_guard lock(mutex_);
  return sequencer_;
}

void Caller::Learn(std::string sequencer) {
  if (sequencer.empty()) return;
  std::lock_guard lock(mutex_);
  sequencer_ = std::move(sequencer);
}

void Caller::SetSession(SessionState state) {
  std::lock_guard lock(mutex_);
  session_ = state;
}

bool Caller::SessionLost() {
  std::lock_guard lock(mutex_);
  return session_ == SessionState::kLost;
}

void Caller::Interrupt() {
  std::lock_guard lock(mutex_);
  interrupted_ = true;
  for (OpenCall* context : active_) context->Cancel();
  interruption_.notify_all();
}

bool Caller::WaitToRetry(absl::Duration delay, bool interruptible, std::stop_token stop) {
  std::unique_lock lock(mutex_);
  interruption_.wait_for(lock, std::move(stop), absl::ToChronoNanoseconds(delay),
                         [&] { return interruptible && interrupted_; });
  return session_ != SessionState::kLost;
}

std::optional<absl::Duration> Caller::Retry::Next(const Call& call) {
  const int64_t now_ns = MonotonicNanos();
  const absl::Duration lived = absl::Nanoseconds(now_ns - call.start_ns_);
  if (call.doubtful_) {
    if (!std::exchange(doubted_, true)) {
      give_up_ = std::min(deadline_, Deadline::After(kDoubt, call.start_ns_));
      delay_ = kFirstDelay;
    }
    if (give_up_.Left(now_ns) <= delay_) return std::nullopt;
    return std::exchange(delay_, 2 * delay_);
  }
  if ((!call.lost() && !call.busy()) || caller_->SessionLost()) return std::nullopt;
  // An attempt that lasted longer than the bound had reached the daemon, so a new retry period
  // begins.
  if (count_ == 0 || lived >= kRetryBound) {
    give_up_ = std::min(deadline_, Deadline::After(kRetryBound, now_ns));
    delay_ = kFirstDelay;
  }
  if (give_up_.Left(now_ns) <= delay_) return std::nullopt;
  if (call.lost() && known_.has_value()) {
    // The sequencer that gave the id is unknown, and the next one may mean something else by it.
    if (known_->empty()) return std::nullopt;
    sequencer_ = *known_;
  }
  ++count_;
  return std::exchange(delay_, std::min(2 * delay_, kMaxDelay));
}

Caller::Call::Call(Caller* caller, Deadline deadline, const std::string& sequencer,
                   bool interruptible, std::stop_token stop)
    : caller_(caller), shared_(std::make_shared<OpenCall>(deadline)), stop_(std::move(stop)) {
  if (!sequencer.empty()) context()->AddMetadata(kSequencerKey, sequencer);
  if (!interruptible) return;
  std::lock_guard lock(caller_->mutex_);
  caller_->active_.insert(shared_.get());
  if (caller_->interrupted_) shared_->Cancel();
}

Caller::Call::~Call() {
  std::lock_guard lock(caller_->mutex_);
  caller_->active_.erase(shared_.get());
}

std::function<void(grpc::Status)> Caller::Call::OnEnd(std::shared_ptr<void> messages) {
  return [shared = shared_, messages = std::move(messages)](const grpc::Status& status) {
    shared->End(status);
  };
}

absl::Status Caller::Call::Convert(const grpc::Status& status) {
  std::lock_guard lock(caller_->mutex_);
  std::optional<absl::Status> error = SentError(status);
  const bool answered_before =
      std::exchange(caller_->answered_, caller_->answered_ || status.ok() || error.has_value());
  if (status.ok()) return absl::OkStatus();
  if (!error.has_value()) return NoAnswer(status, answered_before);
  busy_ = ReasonOf(*error) == kReasonTransfersFull;
  return *std::move(error);
}

absl::Status Caller::Call::NoAnswer(const grpc::Status& status, bool answered_before) {
  const std::string& endpoint = caller_->endpoint_.text;
  const Wording& wording = caller_->endpoint_.wording;
  const std::string& socket = caller_->endpoint_.socket_path;
  const grpc::StatusCode code = status.error_code();
  if (!answered_before && IsForeign(status)) {
    return absl::UnavailableError(
        absl::StrFormat("something that is not agmmd answers at %s; give the endpoint of a "
                        "daemon%s: host:port or unix:/path",
                        endpoint, wording.endpoint));
  }
  if (code == grpc::StatusCode::CANCELLED && caller_->interrupted_)
    return absl::CancelledError("cancelled");
  if (code == grpc::StatusCode::CANCELLED && stop_.stop_requested()) return StoppedError();
  if (code == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::DeadlineExceededError(absl::StrFormat(
        "the daemon at %s did not answer in time: a tensor of the call may be in use, "
        "for example by a mapping of this program, or the daemon may hang; see its log",
        endpoint));
  }
  if (code == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::UnimplementedError(absl::StrFormat(
        "the daemon at %s does not know this call; install the same version everywhere", endpoint));
  }
  if (code != grpc::StatusCode::UNAVAILABLE) {
    return absl::Status(static_cast<absl::StatusCode>(code),
                        absl::StrFormat("the call to %s failed: %s; see the daemon's log", endpoint,
                                        ExplainGrpc(status)));
  }
  if (answered_before) {
    lost_ = true;
    return absl::UnavailableError(
        absl::StrCat("the daemon at ", endpoint, " was lost; ",
                     caller_->session_ != SessionState::kNone
                         ? "this client's jobs and tensors ended there"
                         : absl::StrFormat("see its log, or ask another daemon of its world%s",
                                           wording.endpoint)));
  }
  if (!socket.empty() && access(socket.c_str(), W_OK) != 0 && errno == EACCES) {
    return absl::PermissionDeniedError(
        absl::StrFormat("no permission to use %s; ask as the user who runs its daemon", endpoint));
  }
  if (absl::StrContains(status.error_message(), "DNS resolution failed")) {
    return absl::UnavailableError(absl::StrFormat(
        "the host of %s cannot be found; check its name, or give its address", endpoint));
  }
  if (absl::StrContains(status.error_message(), kSilent)) {
    return absl::UnavailableError(absl::StrFormat(
        "something listens at %s, but says nothing; if it is agmmd, it is stopped or too busy: see "
        "its log, or start it again",
        endpoint));
  }
  const bool answered = absl::c_any_of(kAnswersOfNetwork, [&](const char* one) {
    return absl::StrContains(status.error_message(), one);
  });
  doubtful_ = socket.empty() && !answered;
  return absl::UnavailableError(absl::StrFormat(
      "no daemon answers at %s; start one with `agmmd`, or give the endpoint of one%s: "
      "host:port or unix:/path",
      endpoint, wording.endpoint));
}

}  // namespace agmm
