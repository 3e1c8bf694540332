#include "daemon/world/join_stream.h"

#include "absl/strings/str_format.h"
#include "daemon/rpc/status.h"
#include "daemon/world/protocol.h"
#include "kernels/base/clock.h"

namespace agmm {

std::shared_ptr<JoinStream> JoinStream::Start(v1::PeerService::Stub* stub, Heartbeat* heartbeat,
                                              Handlers handlers) {
  std::shared_ptr<JoinStream> stream(new JoinStream(std::move(handlers)));
  stream->self_ = stream;
  stream->context_.set_wait_for_ready(true);
  stub->async()->Join(&stream->context_, stream.get());
  stream->AddHold();  // for the writes, which start on any thread
  stream->StartRead(&stream->in_);
  stream->StartCall();
  heartbeat->Watch(stream);
  return stream;
}

void JoinStream::Judge(int64_t now_ns) {
  const int64_t heard_ns = heard_ns_;
  if (heard_ns != 0 && now_ns - heard_ns > absl::ToInt64Nanoseconds(kSilenceLimit))
    End(absl::StrFormat("no message for %s", absl::FormatDuration(kSilenceLimit)));
}

void JoinStream::Beat(bool due) {
  if (heard_ns_ == 0) return;
  v1::Heartbeat heartbeat;
  v1::NodeUsage usage = handlers_.usage();
  if (std::string now = usage.SerializeAsString(); !told_.has_value() || now != *told_) {
    told_ = std::move(now);
    *heartbeat.mutable_usage() = std::move(usage);
  } else if (!due) {
    return;
  }
  Write(queue_.PushHeartbeat(std::move(heartbeat)));
}

void JoinStream::OnReadDone(bool ok) {
  if (!ok) return End("");
  const bool first = heard_ns_.exchange(MonotonicNanos()) == 0;
  if (in_.outcomes_size() > 0) handlers_.outcomes(in_.mutable_outcomes());
  if (first || in_.has_refusal() || in_.commands_size() > 0) handlers_.message(std::move(in_));
  in_.Clear();
  StartRead(&in_);
}

void JoinStream::OnWriteDone(bool ok) {
  if (!ok) End("");
  Write(queue_.Next());
  LetGoIfQuiet();
}

void JoinStream::End(const std::string& how) {
  if (!queue_.Close()) return;
  {
    std::lock_guard lock(mutex_);
    how_ = how;
  }
  // A read that failed has the call's own status coming, which says more than CANCELLED.
  if (!how.empty()) context_.TryCancel();
  queue_.Closed();
  LetGoIfQuiet();
}

void JoinStream::LetGoIfQuiet() {
  if (queue_.TakeEnd()) RemoveHold();
}

void JoinStream::OnDone(const grpc::Status& status) {
  const std::shared_ptr<JoinStream> self = std::move(self_);
  std::string how;
  {
    std::lock_guard lock(mutex_);
    how = how_;
  }
  if (how.empty()) {
    how = "its stream broke";
    if (!status.ok()) absl::StrAppendFormat(&how, " (%s)", FromGrpc(status).ToString());
  }
  handlers_.ended(std::move(how));
}

}  // namespace agmm
