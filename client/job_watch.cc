#include "client/job_watch.h"

namespace agmm {

JobWatch::~JobWatch() {
  if (stream_ == nullptr) return;
  call_->context()->TryCancel();
  stream_->Finish();  // CANCELLED, by the line above
}

absl::StatusOr<std::optional<v1::WatchJobResponse>> JobWatch::Next() {
  while (!over_) {
    if (stream_ == nullptr) {
      call_ = std::make_unique<Connection::Call>(connection_, deadline_, retry_.sequencer());
      stream_ = connection_->jobs()->WatchJob(call_->context(), request_);
    }
    v1::WatchJobResponse response;
    while (stream_->Read(&response)) {
      // A daemon that sends an event twice is forgiven.
      if (response.event().number() <= request_.after_event() && !response.has_job()) continue;
      if (response.has_event()) request_.set_after_event(response.event().number());
      return response;
    }
    const absl::Status status = call_->Convert(stream_->Finish());
    stream_.reset();
    over_ = true;
    if (status.ok()) break;
    const std::optional<absl::Duration> delay = retry_.Next(*call_);
    if (!delay.has_value() || !connection_->WaitToRetry(*delay)) return status;
    over_ = false;
  }
  return std::nullopt;
}

}  // namespace agmm
