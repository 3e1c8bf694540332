#include "daemon/node/join.h"

#include <spdlog/spdlog.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/link/join_merge.h"
#include "daemon/link/join_proof.h"
#include "daemon/link/link.h"
#include "daemon/link/protocol.h"
#include "daemon/link/stream.h"
#include "kernels/base/clock.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/keyed_hash.h"
#include "proto/channel/channel.h"
#include "proto/convert/grpc_call.h"

namespace agmm {
namespace {

// Time without an answer before it is logged, once for each stream.
constexpr absl::Duration kAnswerPatience = absl::Seconds(5);

}  // namespace

std::shared_ptr<grpc::Channel> PeerChannel(const std::string& address) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // The timeout of one attempt, which takes two round trips.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 250);
  args.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 500);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // Disabled, because its pings wake both ends of an idle stream, and large data does not use this
  // channel.
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  return OpenChannel(address, std::move(args));
}

// The member's end of a Join call. One attempt: waits for the connection, then lives as long as the
// call and its owners.
class JoinStream::MemberEnd final
    : public Stream<grpc::ClientBidiReactor<v1::MemberMessage, v1::SequencerMessage>,
                    v1::MemberMessage>,
      public SequencerLink,
      public HeartbeatStream {
 public:
  // `join` must wait for OnEnded, but not for the last heartbeat.
  explicit MemberEnd(JoinStream* join)
      : join_(join), udp_heartbeats_(join->udp_heartbeats_), view_(join->view_) {}

  void Start() {
    Own();
    context_.set_wait_for_ready(true);
    join_->stub_->async()->Join(&context_, this);
    AddHold();  // for the writes, which may start on any thread
    StartRead(&in_);
    StartCall();
    join_->heartbeats_->Watch(Self<MemberEnd>());
  }
  void Send(v1::MemberMessage message) override {
    if (message.has_hello()) {
      v1::Hello* const hello = message.mutable_hello();
      hello->set_nonce(proof_.nonce);
      hello->set_proof(proof_.OfMember(*hello));
    }
    Stream::Send(std::move(message));
  }
  void Close() { Break(absl::CancelledError("it was closed")); }
  void EndIfSilent(int64_t now_ns) override {
    const int64_t received_ns = received_ns_;
    if (received_ns == 0) return;
    const int64_t heartbeat_ns = proven_ ? udp_heartbeats_->heard_ns(heartbeat_key_) : 0;
    if (IsSilent(now_ns, received_ns, heartbeat_ns))
      Break(absl::DeadlineExceededError(SilenceOf(now_ns, received_ns)));
  }
  void SendHeartbeat(bool due) override {
    if (!proven_) return;  // the hello is the first message
    v1::MemberMessage message;
    v1::Heartbeat* const heartbeat = message.mutable_heartbeat();
    v1::NodeUsage usage = view_->Usage();
    if (std::string now = usage.SerializeAsString();
        !sent_usage_.has_value() || now != *sent_usage_) {
      sent_usage_ = std::move(now);
      *heartbeat->mutable_usage() = std::move(usage);
    } else if (!due) {
      return;
    }
    Send(std::move(message));
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return OnBroken(absl::OkStatus());
    received_ns_ = MonotonicNanos();
    if (proven_) {
      OnCommands();
    } else if (!OnHandshake()) {
      return;
    }
    in_.Clear();
    StartRead(&in_);
  }
  void OnCommands() {
    const bool first = !std::exchange(any_, true);
    // Later messages may contain only a heartbeat.
    if (first || in_.has_refusal() || in_.commands_size() > 0) {
      join_->loop_->Post(
          [member = join_->member_, message = std::move(in_)] { member->OnMessage(message); });
    }
  }
  // Handles a challenge, which the hello answers, and then a proof. Returns false to end the
  // stream.
  bool OnHandshake() {
    if (proof_.challenge.empty() && !in_.challenge().empty()) {
      proof_.challenge = in_.challenge();
      join_->loop_->Post([join = join_, self = Self<MemberEnd>()] {
        join->loop_->Cancel(join->patience_);
        if (AGMM_FAILPOINT("join.late_hello")) absl::SleepFor(2 * kHeartbeatPeriod);
        join->member_->OnStream(self);
      });
      return true;
    }
    if (!proof_.challenge.empty() && SameHash(in_.proof(), proof_.OfSequencer())) {
      token_ = proof_.CallToken();
      heartbeat_key_ = proof_.HeartbeatKey();
      udp_heartbeats_->Begin(heartbeat_key_);
      proven_ = true;
      join_->loop_->Post([join = join_, token = token_] { join->token_ = token; });
      return true;
    }
    Break(absl::PermissionDeniedError(
        in_.refusal().field() == kSecretField
            ? "its secret differs; copy its local.secret file to this host"
            : "it does not know this world's secret, or is an agmmd of another version"));
    return false;
  }
  // The call's own status, which is more specific, follows.
  void OnBroken(absl::Status) override { End(absl::UnknownError("its stream broke")); }
  bool Merge(v1::MemberMessage* last, v1::MemberMessage* message) override {
    return MergeInto(last, message);
  }
  void LetGo(const absl::Status&) override { RemoveHold(); }
  void Break(absl::Status why) {
    End(std::move(why));
    context_.TryCancel();
  }
  void OnDone(const grpc::Status& status) override {
    const auto self = Release();
    if (proven_) udp_heartbeats_->End(heartbeat_key_);
    absl::Status end;
    {
      std::lock_guard lock(mutex_);
      end = status_;
    }
    // The sequencer gives details when it ends a stream; gRPC itself gives none.
    const bool given_up = absl::IsUnknown(end) && !status.error_details().empty() &&
                          status.error_code() == grpc::StatusCode::CANCELLED;
    if (given_up) {
      end = absl::UnknownError(status.error_message());
    }
    join_->loop_->Post(
        [join = join_, end, given_up, detail = IsBare(status) ? "" : status.error_message()] {
          join->OnEnded(end, given_up, detail);
        });
  }

  JoinStream* const join_;
  UdpHeartbeats* const udp_heartbeats_;
  const StatusView* const view_;
  grpc::ClientContext context_;
  v1::SequencerMessage in_;
  std::atomic<int64_t> received_ns_{0};  // 0: not connected yet
  // Used on the reading thread, except proof_, which does not change once the hello is sent.
  JoinProof proof_{.secret = join_->secret_, .nonce = JoinNonce()};
  std::string token_, heartbeat_key_;  // set once proven_
  std::atomic<bool> proven_{false};
  bool any_ = false;  // a message has followed the handshake
  // The usage in the last heartbeat that had one; used on the heartbeat thread.
  std::optional<std::string> sent_usage_;
};

JoinStream::JoinStream(std::string address, std::shared_ptr<grpc::Channel> channel,
                       std::string secret, Loop* loop, HeartbeatThread* heartbeats,
                       UdpHeartbeats* udp_heartbeats, Member* member, const StatusView* view)
    : address_(std::move(address)),
      stub_(v1::PeerService::NewStub(std::move(channel))),
      secret_(std::move(secret)),
      loop_(loop),
      heartbeats_(heartbeats),
      udp_heartbeats_(udp_heartbeats),
      member_(member),
      view_(view) {}

void JoinStream::Start() {
  if (closed_ != nullptr) return;
  stream_ = std::make_shared<MemberEnd>(this);
  stream_->Start();
  patience_ = loop_->PostAfter(kAnswerPatience, [this] {
    dialer_.Try(address_,
                [sequencer = member_->sequencer(), address = address_](const std::string& answers) {
                  spdlog::warn("{} has not answered at {} for {}: {}", sequencer, address,
                               absl::FormatDuration(kAnswerPatience), answers);
                });
  });
}

void JoinStream::OnEnded(const absl::Status& end, bool given_up, const std::string& detail) {
  stream_ = nullptr;
  loop_->Cancel(patience_);
  const std::string how(end.message());
  const std::string line =
      absl::StrCat("the stream to the sequencer ended: ", how,
                   detail.empty() || detail == how ? "" : absl::StrCat(" (", detail, ")"));
  if (std::exchange(last_end_, line) != line)
    spdlog::log(token_.empty() ? spdlog::level::debug : spdlog::level::info, "{}", line);
  if (absl::IsPermissionDenied(end)) member_->OnDenied(how);
  member_->OnStreamEnded(how, given_up);
  if (const auto closed = closed_; closed != nullptr) return closed->set_value();
  const absl::Duration retry = member_->retry();
  if (retry < absl::InfiniteDuration()) retry_ = loop_->PostAfter(retry, [this] { Start(); });
}

void JoinStream::Stop() {
  if (std::exchange(stopped_, true)) return;
  const auto closed = std::make_shared<std::promise<void>>();
  loop_->Post([this, closed] {
    closed_ = closed;
    loop_->Cancel(retry_);
    if (stream_ != nullptr) return stream_->Close();
    closed->set_value();
  });
  closed->get_future().wait();
}

}  // namespace agmm
