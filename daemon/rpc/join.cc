#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "daemon/link/join_merge.h"
#include "daemon/link/link.h"
#include "daemon/link/protocol.h"
#include "daemon/link/stream.h"
#include "daemon/rpc/services.h"
#include "kernels/base/clock.h"

namespace agmm {
namespace {

// The sequencer's end of a Join call. Lives as long as the call and its owners.
class SequencerEnd final : public BidiStream<v1::MemberMessage, v1::SequencerMessage>,
                           public MemberLink,
                           public Pulse {
 public:
  SequencerEnd(const SequencerParts& parts, Heartbeat* heartbeat,
               grpc::CallbackServerContext* context)
      : BidiStream(context), parts_(parts), heartbeat_(heartbeat) {}

  void Send(v1::SequencerMessage message) override {
    Queue(std::move(message));
    if (flushes_.exchange(true)) return;
    // After the tasks that are due, so that all they send travels in one message.
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
  void Judge(int64_t now_ns) override {
    if (now_ns - received_ns_ > absl::ToInt64Nanoseconds(kSilenceLimit))
      Break(absl::StrFormat("no message for %s", absl::FormatDuration(kSilenceLimit)));
  }
  void Beat(bool due) override {
    if (!due) return;
    v1::SequencerMessage message;
    message.mutable_heartbeat();
    BidiStream::Send(std::move(message));
  }

 private:
  void OnStart() override {
    heartbeat_->Watch(Self<SequencerEnd>());
    Read();
  }
  void OnMessage(v1::MemberMessage* message) override {
    received_ns_ = MonotonicNanos();
    if (message->has_hello() || message->reports_size() > 0 || message->heartbeat().has_usage()) {
      parts_.loop->Post([sequencer = parts_.sequencer, self = Self<SequencerEnd>(),
                         message = std::move(*message)] { sequencer->OnMessage(self, message); });
      // The stream may have ended meanwhile, and its loss been reported before this message.
      if (!open()) ReportLoss("its stream broke");
    }
    Read();
  }
  void OnHalfClose() override { Break("its stream broke"); }
  void OnBroken(absl::Status) override { Break("its stream broke"); }
  bool Merge(v1::SequencerMessage* last, v1::SequencerMessage* message) override {
    return MergeInto(last, message);
  }

  // Also cancels the call, because the peer may have stopped reading, and a regular end would wait
  // for it.
  void Break(const std::string& how) {
    const auto self = Self<SequencerEnd>();
    if (open()) {
      End(absl::CancelledError(how));
      ReportLoss(how);
    }
    TryCancel();
  }
  // At least once, and behind the last message.
  void ReportLoss(const std::string& how) {
    parts_.loop->Post([sequencer = parts_.sequencer, self = Self<SequencerEnd>(), how] {
      sequencer->OnLost(self.get(), how);
    });
  }

  const SequencerParts parts_;
  Heartbeat* const heartbeat_;
  std::atomic<int64_t> received_ns_{MonotonicNanos()};
  std::atomic<bool> flushes_{false};  // a flush is on its way
};

}  // namespace

grpc::ServerBidiReactor<v1::MemberMessage, v1::SequencerMessage>* StartJoin(
    const SequencerParts& parts, Heartbeat* heartbeat, grpc::CallbackServerContext* context) {
  return StartStream<SequencerEnd>(parts, heartbeat, context);
}

}  // namespace agmm
