#include "daemon/rpc/run_jobs.h"

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "daemon/rpc/status.h"
#include "daemon/rpc/validate.h"
#include "daemon/world/job_outcomes.h"

namespace agmm {
namespace {

// Of jobs that have been read and whose outcomes have not been sent: further ones are left in the
// stream. And of those in one message.
constexpr int kMaxUnanswered = 4096;
// Of one job, so that it fits the daemons' streams; and of outcomes that travel together.
constexpr size_t kMaxJobBytes = 1 << 20, kMergedBytes = 1 << 20;

// Held until the call is done, and by the jobs under way.
class RunJobsReactor final
    : public grpc::ServerBidiReactor<v1::RunJobsRequest, v1::RunJobsResponse>,
      public JobOutcomes,
      public std::enable_shared_from_this<RunJobsReactor> {
 public:
  RunJobsReactor(Control* control, CallContext call) : control_(control), call_(std::move(call)) {}

  void Begin() {
    self_ = shared_from_this();
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      std::lock_guard lock(mutex_);
      all_read_ = true;
      return GoOn();
    }
    Take();
    std::lock_guard lock(mutex_);
    reads_ = false;
    GoOn();
  }
  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    if (!ok && end_ == std::nullopt) end_ = absl::CancelledError("the client is gone");
    GoOn();
  }
  void OnCancel() override {
    const absl::Status gone = absl::CancelledError("the caller is gone, or the daemon is stopping");
    call_.cancel->Cancel(gone);
    std::lock_guard lock(mutex_);
    if (end_ == std::nullopt) end_ = gone;
    GoOn();
  }
  void OnDone() override { const std::shared_ptr<RunJobsReactor> last = std::move(self_); }

  void Add(v1::JobOutcome outcome) override {
    std::lock_guard lock(mutex_);
    if (end_ == std::nullopt) outcomes_.push_back(std::move(outcome));
  }
  void Flush() override {
    std::lock_guard lock(mutex_);
    GoOn();
  }

 private:
  // Gives what was read to the scheduler, without the lock: outcomes may come before this returns.
  void Take() {
    std::vector<v1::SubmitJobRequest> jobs;
    std::vector<v1::JobOutcome> refused;
    absl::Status broken;
    if (request_.jobs_size() > kMaxUnanswered) {
      broken = absl::InvalidArgumentError(absl::StrFormat(
          "a message of RunJobs has %d jobs; at most %d are taken; send them in several",
          request_.jobs_size(), kMaxUnanswered));
      request_.clear_jobs();
    }
    for (v1::SubmitJobRequest& job : *request_.mutable_jobs()) {
      absl::Status valid = Validate(job);
      const size_t bytes = job.ByteSizeLong();
      if (valid.ok() && bytes > kMaxJobBytes) {
        valid = absl::InvalidArgumentError(absl::StrFormat(
            "a job of %d bytes is too long for RunJobs, which takes %d; use SubmitJob", bytes,
            kMaxJobBytes));
      }
      if (job.request_id().empty()) {
        broken = absl::InvalidArgumentError(
            "a job of RunJobs has no request_id, by which its outcome would be told; give one");
      } else if (!valid.ok()) {
        refused.push_back(ErrorOutcome(job.request_id(), valid));
      } else {
        jobs.emplace_back().Swap(&job);
      }
    }
    {
      std::lock_guard lock(mutex_);
      unanswered_ += static_cast<int>(jobs.size() + refused.size());
      for (v1::JobOutcome& outcome : refused) outcomes_.push_back(std::move(outcome));
      if (!broken.ok() && end_ == std::nullopt) end_ = broken;
    }
    if (broken.ok() && !jobs.empty()) control_->RunJobs(call_, std::move(jobs), shared_from_this());
  }

  // With the lock, when something has changed.
  void GoOn() {
    if (finished_) return;
    if (end_ == std::nullopt && !reads_ && !all_read_ && unanswered_ < kMaxUnanswered) {
      reads_ = true;
      StartRead(&request_);
    }
    if (writing_) return;
    if (end_ != std::nullopt || (all_read_ && unanswered_ == 0)) {
      finished_ = true;
      return Finish(ToGrpc(end_.value_or(absl::OkStatus())));
    }
    if (outcomes_.empty()) return;
    response_.Clear();
    for (size_t bytes = 0; !outcomes_.empty() && bytes < kMergedBytes; outcomes_.pop_front()) {
      bytes += outcomes_.front().ByteSizeLong();
      response_.add_outcomes()->Swap(&outcomes_.front());
    }
    unanswered_ -= response_.outcomes_size();
    writing_ = true;
    StartWrite(&response_);
  }

  Control* const control_;
  const CallContext call_;
  v1::RunJobsRequest request_;
  std::shared_ptr<RunJobsReactor> self_;  // until done
  std::mutex mutex_;
  bool reads_ = true, all_read_ = false;
  int unanswered_ = 0;
  std::deque<v1::JobOutcome> outcomes_;
  v1::RunJobsResponse response_;
  bool writing_ = false, finished_ = false;
  std::optional<absl::Status> end_;
};

}  // namespace

grpc::ServerBidiReactor<v1::RunJobsRequest, v1::RunJobsResponse>* StartRunJobs(Control* control,
                                                                               CallContext call) {
  const auto reactor = std::make_shared<RunJobsReactor>(control, std::move(call));
  reactor->Begin();
  return reactor.get();
}

}  // namespace agmm
