#include "daemon/rpc/watch_job.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/rpc/status.h"
#include "daemon/rpc/validate.h"
#include "proto/convert/status.h"

namespace agmm {
namespace {

// A poll of a caller who is gone is forgotten after so long at the latest.
constexpr absl::Duration kPollTime = absl::Seconds(30);

// Held until the call is done, and by a poll under way.
class WatchJobReactor final : public grpc::ServerWriteReactor<v1::WatchJobResponse>,
                              public std::enable_shared_from_this<WatchJobReactor> {
 public:
  WatchJobReactor(Control* control, CallContext call, const v1::WatchJobRequest& request)
      : control_(control), call_(std::move(call)) {
    poll_.set_job_id(request.job_id());
    poll_.set_after_event(request.after_event());
  }

  void Begin(const absl::Status& valid) {
    self_ = shared_from_this();
    if (!valid.ok()) return End(valid);
    Poll();
  }

  void OnWriteDone(bool ok) override {
    bool poll = false;
    {
      std::lock_guard lock(mutex_);
      writing_ = false;
      if (!ok && end_ == std::nullopt) end_ = absl::CancelledError("the client is gone");
      poll = GoOn();
    }
    if (poll) Poll();
  }
  void OnCancel() override {
    const absl::Status gone = absl::CancelledError("the caller is gone, or the daemon is stopping");
    call_.cancel->Cancel(gone);
    End(gone);
  }
  void OnDone() override { const std::shared_ptr<WatchJobReactor> last = std::move(self_); }

 private:
  // Without the lock: the answer may come before this returns.
  void Poll() {
    CallContext call = call_;
    call.deadline = std::min(call.deadline, absl::Now() + kPollTime);
    control_->PollJob(call, poll_, [self = shared_from_this()](auto polled) {
      self->OnPolled(std::move(polled));
    });
  }

  void OnPolled(absl::StatusOr<v1::PollJobResponse> polled) {
    bool poll = false;
    {
      std::lock_guard lock(mutex_);
      if (polled.ok()) {
        begun_ = true;
        polled_ = *std::move(polled);
        // From here on it is this job, whatever has its id later.
        call_.sequencer = polled_.sequencer();
        next_ = 0;
      } else if (!absl::IsDeadlineExceeded(polled.status()) || absl::Now() >= call_.deadline) {
        if (end_ == std::nullopt) end_ = begun_ ? AsLoss(polled.status()) : polled.status();
      }
      poll = GoOn();
    }
    if (poll) Poll();
  }

  void End(const absl::Status& status) {
    std::lock_guard lock(mutex_);
    if (end_ == std::nullopt) end_ = status;
    GoOn();
  }

  // Once a watch has begun, there is a sequencer: one that cannot be asked any more, or that ends
  // its calls because it stops, is lost.
  static absl::Status AsLoss(const absl::Status& status) {
    if (!absl::IsUnavailable(status) && !absl::IsCancelled(status)) return status;
    return WithReason(absl::AbortedError(absl::StrCat("the watch has ended: ", status.message())),
                      kReasonPeerLost);
  }

  // With the lock, when something has changed. True: the caller is to poll, without the lock.
  bool GoOn() {
    if (finished_ || writing_) return false;
    if (end_ != std::nullopt) {
      finished_ = true;
      Finish(ToGrpc(*end_));
      return false;
    }
    const bool last = next_ + 1 >= polled_.events_size();
    if (next_ < polled_.events_size() || polled_.has_job()) {
      response_.Clear();
      if (next_ < polled_.events_size()) {
        *response_.mutable_event() = polled_.events(next_++);
        poll_.set_after_event(response_.event().number());
      }
      if (last && polled_.has_job()) {
        response_.mutable_job()->Swap(polled_.mutable_job());
        polled_.clear_job();
        end_ = absl::OkStatus();
      }
      writing_ = true;
      StartWrite(&response_);
      return false;
    }
    return true;
  }

  Control* const control_;
  CallContext call_;  // as poll_: of whoever polls
  v1::PollJobRequest poll_;
  std::shared_ptr<WatchJobReactor> self_;  // until done
  std::mutex mutex_;
  v1::PollJobResponse polled_;
  int next_ = 0;  // of its events
  bool begun_ = false;
  v1::WatchJobResponse response_;
  bool writing_ = false, finished_ = false;
  std::optional<absl::Status> end_;  // OK: behind the last event
};

}  // namespace

grpc::ServerWriteReactor<v1::WatchJobResponse>* StartWatchJob(Control* control, CallContext call,
                                                              const v1::WatchJobRequest& request) {
  const auto reactor = std::make_shared<WatchJobReactor>(control, std::move(call), request);
  reactor->Begin(Validate(request));
  return reactor.get();
}

}  // namespace agmm
