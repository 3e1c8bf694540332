#include "client/connect/job_watch.h"

#include <grpcpp/grpcpp.h>

#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/deadline.h"
#include "kernels/base/status.h"
#include "proto/convert/rpc_status.h"

namespace agmm {
namespace {

// Owns itself, until on_end has been called. Runs on its loop, except for what gRPC calls, which
// only posts.
class JobWatch final : private grpc::ClientReadReactor<v1::WatchJobResponse> {
 public:
  JobWatch(Connection* connection, Loop* loop, const Id& job, int64_t after_event,
           Deadline deadline, OnJobEvent on_event, OnJobEnd on_end)
      : connection_(connection),
        loop_(loop),
        timeout_(deadline.Left()),
        deadline_(deadline),
        retry_(connection, deadline, job.sequencer),
        on_event_(std::move(on_event)),
        on_end_(std::move(on_end)) {
    request_.set_job_id(job.number);
    // No job has that many events, so the watch receives the end alone.
    request_.set_after_event(on_event_ ? after_event : std::numeric_limits<int64_t>::max());
  }

  // Begins an attempt; gRPC no longer uses the previous one.
  void Start() {
    call_.emplace(connection_, deadline_, retry_.sequencer());
    connection_->jobs()->async()->WatchJob(call_->context(), &request_, this);
    StartRead(&response_);
    StartCall();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone says why
    loop_->Post([this, response = std::exchange(response_, {})] { OnResponse(response); });
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    loop_->Post([this, status] { OnStreamEnd(status); });
  }

  void OnResponse(const v1::WatchJobResponse& response) {
    // A daemon may send an event twice.
    if (!stopped_ && response.event().number() > request_.after_event()) {
      request_.set_after_event(response.event().number());
      stopped_ = !on_event_(response.event());
      if (stopped_) call_->context()->TryCancel();
    }
    if (HasEnded(response.job())) job_ = response.job();
  }

  void OnStreamEnd(const grpc::Status& answer) {
    const absl::Status status = call_->Convert(answer);
    const std::optional<absl::Duration> delay =
        status.ok() || stopped_ || job_.has_value() ? std::nullopt : retry_.Next(*call_);
    call_.reset();
    if (delay.has_value()) {
      loop_->PostAfter(*delay, [this] { Start(); });
      return;
    }
    const std::unique_ptr<JobWatch> self(this);
    on_event_ = nullptr;
    on_end_(Outcome(status));
  }

  absl::StatusOr<v1::Job> Outcome(const absl::Status& status) {
    const uint64_t id = request_.job_id();
    if (job_.has_value()) return *std::move(job_);
    if (stopped_)
      return absl::CancelledError(absl::StrFormat("the callback ended the watch of job %d", id));
    if (absl::IsDeadlineExceeded(status)) return NotEndedError(id, timeout_);
    if (!status.ok()) return status;
    return absl::InternalError(
        absl::StrFormat("the daemon at %s ended the watch of job %d before the job; see its log",
                        connection_->endpoint().text, id));
  }

  Connection* const connection_;
  Loop* const loop_;
  const absl::Duration timeout_;
  const Deadline deadline_;
  Connection::Retry retry_;
  v1::WatchJobRequest request_;    // after_event: the last one seen
  v1::WatchJobResponse response_;  // gRPC's while it reads
  std::optional<Connection::Call> call_;
  std::optional<v1::Job> job_;
  bool stopped_ = false;  // by on_event_
  OnJobEvent on_event_;
  OnJobEnd on_end_;
};

}  // namespace

void WatchJob(Connection* connection, Loop* loop, const Id& job, int64_t after_event,
              Deadline deadline, OnJobEvent on_event, OnJobEnd on_end) {
  (new JobWatch(connection, loop, job, after_event, deadline, std::move(on_event),
                std::move(on_end)))
      ->Start();
}

absl::StatusOr<v1::Job> WatchJob(Connection* connection, const Id& job, int64_t after_event,
                                 Deadline deadline, OnJobEvent on_event) {
  std::promise<absl::StatusOr<v1::Job>> ended;
  Loop loop("the wait for a job");
  AGMM_RETURN_IF_ERROR(loop.status());
  WatchJob(connection, &loop, job, after_event, deadline, std::move(on_event),
           [&](const absl::StatusOr<v1::Job>& job) { ended.set_value(job); });
  return ended.get_future().get();
}

bool HasEnded(const v1::Job& job) {
  return job.state() == v1::Job::STATE_SUCCEEDED || job.state() == v1::Job::STATE_FAILED ||
         job.state() == v1::Job::STATE_CANCELLED;
}

absl::Status OutcomeOf(const v1::Job& job) {
  if (job.state() == v1::Job::STATE_SUCCEEDED) return absl::OkStatus();
  absl::Status error = FromProto(job.error());
  if (!error.ok()) return error;
  return absl::InternalError(absl::StrFormat(
      "job %d has not succeeded, and the daemon does not say why; see its log", job.job_id()));
}

}  // namespace agmm
