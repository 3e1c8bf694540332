#include "client/library/pending.h"

#include <grpcpp/grpcpp.h>

#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/library/to_public.h"

namespace agmm {
namespace {

// Everything of these two happens on the core's loop, but for what gRPC calls, which only posts.
class PendingWait : public std::enable_shared_from_this<PendingWait> {
 public:
  PendingWait(std::shared_ptr<Core> core, const Id& job, absl::Time deadline, OnOutcome callback)
      : core_(std::move(core)),
        deadline_(deadline),
        retry_(core_->connection(), deadline, job.sequencer),
        callback_(std::move(callback)) {
    request_.set_job_id(job.number);
  }

  void Start() {
    call_.emplace(core_->connection(), deadline_, retry_.sequencer());
    core_->connection()->jobs()->async()->WaitJob(
        call_->context(), &request_, &job_,
        [self = shared_from_this()](const grpc::Status& status) {
          Core* const core = self->core_.get();
          core->loop()->Post([self, status] { self->OnAnswer(status); });
        });
  }

 private:
  void OnAnswer(const grpc::Status& answer) {
    const absl::Status status = call_->Convert(answer);
    if (const auto delay = status.ok() ? std::nullopt : retry_.Next(*call_); delay.has_value()) {
      return core_->loop()->PostIn(*delay, [self = shared_from_this()] { self->Start(); });
    }
    call_.reset();
    callback_(status.ok() ? JobResult(job_) : Result<JobInfo>(ToPublic(status)));
    callback_ = nullptr;
    core_->End();
  }

  const std::shared_ptr<Core> core_;
  const absl::Time deadline_;
  Connection::Retry retry_;
  v1::WaitJobRequest request_;
  v1::Job job_;
  std::optional<Connection::Call> call_;
  OnOutcome callback_;
};

class PendingWatch : public std::enable_shared_from_this<PendingWatch> {
 public:
  PendingWatch(std::shared_ptr<Core> core, const Id& job, int64_t after_event, absl::Time deadline,
               std::function<bool(const JobEvent&)> on_event, OnOutcome on_end)
      : core_(std::move(core)),
        deadline_(deadline),
        retry_(core_->connection(), deadline, job.sequencer),
        on_event_(std::move(on_event)),
        on_end_(std::move(on_end)),
        after_event_(after_event) {
    request_.set_job_id(job.number);
  }

  void Start() {
    request_.set_after_event(after_event_);
    stream_ = std::make_unique<Stream>(shared_from_this());
    stream_->Begin();
  }

 private:
  // One attempt. gRPC holds on to it until OnDone, which lets go of the watch.
  class Stream final : public grpc::ClientReadReactor<v1::WatchJobResponse> {
   public:
    explicit Stream(std::shared_ptr<PendingWatch> watch)
        : watch_(std::move(watch)),
          call_(watch_->core_->connection(), watch_->deadline_, watch_->retry_.sequencer()) {}

    void Begin() {
      watch_->core_->connection()->jobs()->async()->WatchJob(call_.context(), &watch_->request_,
                                                             this);
      // Reads begin on the loop: OnDone waits until there will be no more.
      AddHold();
      StartRead(&response_);
      StartCall();
    }
    void Next() { StartRead(&response_); }
    Connection::Call* call() { return &call_; }
    const v1::WatchJobResponse& response() const { return response_; }

   private:
    void OnReadDone(bool ok) override {
      if (!ok) return RemoveHold();  // OnDone says why
      watch_->core_->loop()->Post([watch = watch_] { watch->OnResponse(); });
    }
    void OnDone(const grpc::Status& status) override {
      const std::shared_ptr<PendingWatch> watch = std::move(watch_);
      watch->core_->loop()->Post([watch, status] { watch->OnStreamEnd(status); });
    }

    std::shared_ptr<PendingWatch> watch_;
    Connection::Call call_;
    v1::WatchJobResponse response_;
  };

  void OnResponse() {
    const v1::WatchJobResponse& response = stream_->response();
    if (response.has_job()) job_ = response.job();
    // A daemon that sends an event twice is forgiven.
    if (response.event().number() > after_event_) {
      after_event_ = response.event().number();
      if (!stopped_ && !on_event_(ToPublic(response.event()))) {
        stopped_ = true;
        stream_->call()->context()->TryCancel();
      }
    }
    stream_->Next();
  }

  void OnStreamEnd(const grpc::Status& answer) {
    const absl::Status status = stream_->call()->Convert(answer);
    const auto delay =
        status.ok() || stopped_ || job_.has_value() ? std::nullopt : retry_.Next(*stream_->call());
    stream_.reset();
    if (delay.has_value()) {
      return core_->loop()->PostIn(*delay, [self = shared_from_this()] { self->Start(); });
    }
    on_event_ = nullptr;
    if (status.ok() && !stopped_ && !job_.has_value()) {
      // There was nothing behind after_event: the job has ended.
      return StartWait(core_, {request_.job_id(), retry_.sequencer()}, deadline_,
                       std::move(on_end_));
    }
    on_end_(Outcome(status));
    on_end_ = nullptr;
    core_->End();
  }

  Result<JobInfo> Outcome(const absl::Status& status) const {
    if (job_.has_value()) return JobResult(*job_);
    if (!stopped_) return ToPublic(status);
    return Status(
        StatusCode::kCancelled,
        absl::StrFormat("the watch of job %d was ended by its callback", request_.job_id()));
  }

  const std::shared_ptr<Core> core_;
  const absl::Time deadline_;
  Connection::Retry retry_;
  v1::WatchJobRequest request_;
  std::optional<v1::Job> job_;
  bool stopped_ = false;
  std::unique_ptr<Stream> stream_;
  std::function<bool(const JobEvent&)> on_event_;
  OnOutcome on_end_;
  int64_t after_event_;  // the last one that was seen
};

}  // namespace

void StartWait(std::shared_ptr<Core> core, const Id& job, absl::Time deadline, OnOutcome callback) {
  std::make_shared<PendingWait>(std::move(core), job, deadline, std::move(callback))->Start();
}

void StartWatch(std::shared_ptr<Core> core, const Id& job, int64_t after_event, absl::Time deadline,
                std::function<bool(const JobEvent&)> on_event, OnOutcome on_end) {
  std::make_shared<PendingWatch>(std::move(core), job, after_event, deadline, std::move(on_event),
                                 std::move(on_end))
      ->Start();
}

}  // namespace agmm
