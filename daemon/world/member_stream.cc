#include "daemon/world/member_stream.h"

#include "absl/strings/str_format.h"
#include "daemon/world/protocol.h"
#include "kernels/base/clock.h"

namespace agmm {

grpc::ServerBidiReactor<v1::MemberMessage, v1::SequencerMessage>* MemberStream::Start(
    grpc::CallbackServerContext* context, Heartbeat* heartbeat, Handlers handlers) {
  std::shared_ptr<MemberStream> stream(new MemberStream(context, std::move(handlers)));
  stream->self_ = stream;
  heartbeat->Watch(stream);
  stream->StartRead(&stream->in_);
  return stream.get();
}

MemberStream::MemberStream(grpc::CallbackServerContext* context, Handlers handlers)
    : handlers_(std::move(handlers)), heard_ns_(MonotonicNanos()), context_(context) {}

void MemberStream::Send(v1::SequencerMessage message) {
  queue_.Add(std::move(message));
  if (flushes_.exchange(true)) return;
  handlers_.later([self = shared_from_this()] {
    self->flushes_ = false;
    self->Write(self->queue_.Flush());
  });
}

void MemberStream::Refuse(v1::Refusal refusal) {
  v1::SequencerMessage message;
  *message.mutable_refusal() = std::move(refusal);
  Write(queue_.Push(std::move(message)));
}

void MemberStream::Judge(int64_t now_ns) {
  if (now_ns - heard_ns_ > absl::ToInt64Nanoseconds(kSilenceLimit))
    End(absl::StrFormat("no message for %s", absl::FormatDuration(kSilenceLimit)), /*cancel=*/true);
}

void MemberStream::Beat(bool due) {
  if (due) Write(queue_.PushHeartbeat({}));
}

void MemberStream::OnReadDone(bool ok) {
  if (!ok) return End("its stream broke", /*cancel=*/true);
  heard_ns_ = MonotonicNanos();
  if (in_.has_hello() || in_.reports_size() > 0 || in_.heartbeat().has_usage() ||
      in_.jobs_size() > 0) {
    handlers_.message(shared_from_this(), std::move(in_));
    // The stream may have ended beside this, and its loss been told before the message that joins
    // it.
    if (queue_.closed()) handlers_.lost(shared_from_this(), "its stream broke");
  }
  in_.Clear();
  StartRead(&in_);
}

void MemberStream::OnWriteDone(bool ok) {
  if (!ok) End("its stream broke", /*cancel=*/true);
  if (queue_.current().has_refusal()) End("it was refused", /*cancel=*/false);
  Write(queue_.Next());
  FinishIfQuiet();
}

void MemberStream::End(const std::string& how, bool cancel) {
  if (!queue_.Close()) return;
  if (cancel) context_->TryCancel();
  handlers_.lost(shared_from_this(), how);
  queue_.Closed();
  FinishIfQuiet();
}

void MemberStream::FinishIfQuiet() {
  if (queue_.TakeEnd()) Finish(grpc::Status::OK);
}

void MemberStream::OnDone() { const std::shared_ptr<MemberStream> self = std::move(self_); }

}  // namespace agmm
