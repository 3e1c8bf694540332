// The sequencer's service for the other nodes.
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "daemon/link/join_merge.h"
#include "daemon/link/join_proof.h"
#include "daemon/link/link.h"
#include "daemon/link/protocol.h"
#include "daemon/link/stream.h"
#include "daemon/rpc/method_service.h"
#include "daemon/rpc/services.h"
#include "kernels/base/clock.h"
#include "kernels/base/keyed_hash.h"

namespace agmm {
namespace {

constexpr absl::Duration kWarningPeriod = absl::Seconds(2);

// The sequencer's end of a Join call. Lives as long as the call and its owners.
class SequencerEnd final : public BidiStream<v1::MemberMessage, v1::SequencerMessage>,
                           public MemberLink,
                           public HeartbeatStream {
 public:
  SequencerEnd(const SequencerParts& parts, const JoinParts& join,
               grpc::CallbackServerContext* context)
      : BidiStream(context),
        parts_(parts),
        join_(join),
        peer_(context->peer()),
        proof_{.secret = join.secret, .challenge = JoinNonce()} {}

  void Send(v1::SequencerMessage message) override {
    Queue(std::move(message));
    if (flushes_.exchange(true)) return;
    // Runs after the tasks that are due, so that everything they send travels in one message.
    parts_.loop->PostLast([self = Self<SequencerEnd>()] {
      self->flushes_ = false;
      self->Flush();
    });
  }
  void Refuse(v1::Refusal refusal) override {
    v1::SequencerMessage message;
    *message.mutable_refusal() = std::move(refusal);
    BidiStream::Send(std::move(message));
    End(absl::OkStatus());
    ReportLoss("it was refused");
  }
  void Close() override { Break("it was closed"); }
  void EndIfSilent(int64_t now_ns) override {
    const int64_t received_ns = received_ns_;
    const int64_t heartbeat_ns = admitted_ ? join_.udp_heartbeats->heard_ns(heartbeat_key_) : 0;
    if (IsSilent(now_ns, received_ns, heartbeat_ns)) Break(SilenceOf(now_ns, received_ns));
  }
  void SendHeartbeat(bool due) override {
    // The proof is the first message after the challenge.
    if (!due || !admitted_) return;
    v1::SequencerMessage message;
    message.mutable_heartbeat();
    BidiStream::Send(std::move(message));
  }

 private:
  void OnStart() override {
    v1::SequencerMessage challenge;
    challenge.set_challenge(proof_.challenge);
    BidiStream::Send(std::move(challenge));
    join_.heartbeats->Watch(Self<SequencerEnd>());
    Read();
  }
  void OnOver() override {
    if (!admitted_) return;
    join_.members->Remove(token_);
    join_.udp_heartbeats->End(heartbeat_key_);
  }
  void OnMessage(v1::MemberMessage* message) override {
    received_ns_ = MonotonicNanos();
    if (!admitted_ && !Admit(message->hello())) return;
    if (message->has_hello() || message->reports_size() > 0 || message->heartbeat().has_usage()) {
      parts_.loop->Post([sequencer = parts_.sequencer, self = Self<SequencerEnd>(),
                         message = std::move(*message)] { sequencer->OnMessage(self, message); });
      // The stream may have ended in the meantime, and its loss may have been reported before this
      // message.
      if (!open()) ReportLoss("its stream broke");
    }
    Read();
  }
  void OnHalfClose() override { Break("its stream broke"); }
  void OnBroken(absl::Status) override { Break("its stream broke"); }
  bool Merge(v1::SequencerMessage* last, v1::SequencerMessage* message) override {
    return MergeInto(last, message);
  }

  // The stream's first message proves that its sender knows the secret; nothing else is accepted.
  bool Admit(const v1::Hello& hello) {
    proof_.nonce = hello.nonce();
    if (!SameHash(hello.proof(), proof_.OfMember(hello))) {
      v1::SequencerMessage message;
      message.mutable_refusal()->set_field(kSecretField);
      BidiStream::Send(std::move(message));
      End(absl::OkStatus());
      // Limited, because anyone can cause this warning.
      static std::atomic<int64_t> next_warning_ns = 0;
      const int64_t now_ns = MonotonicNanos();
      if (now_ns < next_warning_ns.exchange(now_ns + absl::ToInt64Nanoseconds(kWarningPeriod)))
        return false;
      spdlog::warn(
          "refused a daemon at {} that calls itself node {} \"{}\": it does not know this world's "
          "secret; copy this daemon's local.secret file to that host",
          call_.principal, hello.node(), absl::CHexEscape(hello.node_name()));
      return false;
    }
    token_ = proof_.CallToken();
    join_.members->Add(token_);
    heartbeat_key_ = proof_.HeartbeatKey();
    join_.udp_heartbeats->Begin(heartbeat_key_);
    join_.trust(peer_);
    v1::SequencerMessage message;
    message.set_proof(proof_.OfSequencer());
    BidiStream::Send(std::move(message));
    admitted_ = true;
    return true;
  }
  // Also cancels the call, because the peer may have stopped reading, and a normal end would wait
  // for it.
  void Break(const std::string& how) {
    const auto self = Self<SequencerEnd>();
    if (open()) {
      End(absl::CancelledError(how));
      ReportLoss(how);
    }
    TryCancel();
  }
  // Reported at least once, and after the last message.
  void ReportLoss(const std::string& how) {
    parts_.loop->Post([sequencer = parts_.sequencer, self = Self<SequencerEnd>(), how] {
      sequencer->OnLost(self.get(), how);
    });
  }

  const SequencerParts parts_;
  const JoinParts join_;
  const std::string peer_;
  JoinProof proof_;                    // used on the reading thread until admitted_
  std::string token_, heartbeat_key_;  // used like proof_
  std::atomic<bool> admitted_{false};
  std::atomic<int64_t> received_ns_{MonotonicNanos()};
  std::atomic<bool> flushes_{false};  // a flush has been posted
};

template <typename Request, typename Response>
Handler<Request, Response> OfMembers(Handler<Request, Response> handler) {
  return [handler = std::move(handler)](const CallContext& context, const Request& request,
                                        Reply<Response> reply) {
    if (absl::Status refused = CheckMember(context); !refused.ok())
      return reply(std::move(refused));
    handler(context, request, std::move(reply));
  };
}

}  // namespace

std::unique_ptr<grpc::Service> MakePeerService(const SequencerParts& parts,
                                               const SequencerCalls& calls, const JoinParts& join) {
  auto service = std::make_unique<MethodService>("agmm.v1.PeerService");
  service->AddBidiStream<v1::MemberMessage, v1::SequencerMessage>(
      [parts, join](auto* context) { return StartStream<SequencerEnd>(parts, join, context); });
  service->AddUnary(OfMembers(calls.begin_lease));
  service->AddUnary(OfMembers(calls.end_lease));
  service->AddUnary(OfMembers(calls.opened_session));
  service->AddUnary(OfMembers(calls.close_session));
  return service;
}

}  // namespace agmm
