// The sequencer's service for jobs.
#include <algorithm>
#include <deque>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "daemon/link/stream.h"
#include "daemon/rpc/method_service.h"
#include "daemon/rpc/services.h"
#include "daemon/rpc/validate.h"
#include "proto/convert/rpc_status.h"
#include "proto/limits.h"

namespace agmm {
namespace {

// Bound on the outcomes in one message, in addition to kMergedBytes.
constexpr int kMergedOutcomes = 256;
// Interval at which a stream without running jobs checks for room in the queue.
constexpr absl::Duration kLookAgain = absl::Milliseconds(50);

absl::Status CheckJob(const v1::SubmitJobRequest& job) {
  const size_t bytes = job.ByteSizeLong();
  if (bytes <= kMaxJobBytes) return Validate(job);
  return absl::InvalidArgumentError(
      absl::StrFormat("a job of %d bytes is too long for RunJobs, which takes %d; use SubmitJob",
                      bytes, kMaxJobBytes));
}

class RunJobsStream final : public BidiStream<v1::RunJobsRequest, v1::RunJobsResponse> {
 public:
  RunJobsStream(const SequencerParts& parts, grpc::CallbackServerContext* context)
      : BidiStream(context), parts_(parts) {}

 private:
  void OnStart() override { Proceed(); }

  void OnMessage(v1::RunJobsRequest* request) override {
    if (absl::Status valid = Validate(*request); !valid.ok()) return End(std::move(valid));
    const int count = request->jobs_size();
    std::vector<v1::SubmitJobRequest> jobs(count);
    for (int i = 0; i < count; ++i) jobs[i].Swap(request->mutable_jobs(i));
    parts_.loop->Post([self = Self<RunJobsStream>(), jobs = std::move(jobs)]() mutable {
      std::move(jobs.begin(), jobs.end(), std::back_inserter(self->waiting_));
      self->RunWaiting();
    });
    std::unique_lock lock(mutex_);
    unanswered_ += count;
    reading_ = false;
    lock.unlock();
    Proceed();
  }
  void OnHalfClose() override {
    std::unique_lock lock(mutex_);
    half_closed_ = true;
    lock.unlock();
    Proceed();
  }
  void OnSent(v1::RunJobsResponse sent) override {
    std::unique_lock lock(mutex_);
    unanswered_ -= sent.outcomes_size();
    lock.unlock();
    Proceed();
  }
  bool Merge(v1::RunJobsResponse* last, v1::RunJobsResponse* message) override {
    if (last->outcomes_size() + message->outcomes_size() > kMergedOutcomes) return false;
    for (v1::JobOutcome& outcome : *message->mutable_outcomes())
      last->add_outcomes()->Swap(&outcome);
    return true;
  }

  // Continues reading, or ends the call once all outcomes have been sent.
  void Proceed() {
    bool end = false;
    {
      std::lock_guard lock(mutex_);
      end = half_closed_ && unanswered_ == 0;
      if (!end && (half_closed_ || reading_ || full_ || unanswered_ >= kMaxUnansweredJobs)) return;
      reading_ = true;
    }
    end ? End(absl::OkStatus()) : Read();
  }

  // This and the rest run on the loop. Runs the jobs that were read, in order, as far as their
  // owner's share of the queue has room. The stream is not read while its jobs wait for room.
  void RunWaiting() {
    if (!open()) waiting_.clear();
    if (!waiting_.empty() && !MayUseDevices(parts_))
      return parts_.measurer->Await([self = Self<RunJobsStream>()] { self->RunWaiting(); });
    for (; !waiting_.empty(); waiting_.pop_front()) {
      const v1::SubmitJobRequest& job = waiting_.front();
      if (!parts_.scheduler->HasRoom(call_, job.request_id())) break;
      Run(job);
    }
    SetFull(!waiting_.empty());
    // The end of each job of this stream checks again. If no such job runs, jobs of other calls
    // fill the share.
    if (waiting_.empty() || running_ > 0 || std::exchange(look_again_, true)) return;
    parts_.loop->PostAfter(kLookAgain, [self = Self<RunJobsStream>()] {
      self->look_again_ = false;
      self->RunWaiting();
    });
  }
  void SetFull(bool full) {
    {
      std::lock_guard lock(mutex_);
      if (std::exchange(full_, full) == full) return;
    }
    Proceed();
  }
  void Run(const v1::SubmitJobRequest& job) {
    ++running_;
    Reply<v1::Job> reply = [self = Self<RunJobsStream>(), id = job.request_id()](
                               absl::StatusOr<v1::Job> ended) { self->Add(id, std::move(ended)); };
    absl::Status refused = CheckJob(job);
    if (refused.ok()) refused = CheckCaller(parts_, call_, job);
    if (!refused.ok()) return reply(std::move(refused));
    parts_.scheduler->RunJob(call_, job, std::move(reply));
  }
  void Add(const std::string& request_id, absl::StatusOr<v1::Job> job) {
    --running_;
    if (outcomes_.outcomes().empty()) {
      parts_.loop->PostLast([self = Self<RunJobsStream>()] {
        self->SendOutcomes();
        if (!self->waiting_.empty()) self->RunWaiting();
      });
    }
    v1::JobOutcome* outcome = outcomes_.add_outcomes();
    outcome->set_request_id(request_id);
    if (job.ok()) {
      outcome->mutable_job()->Swap(&*job);
    } else {
      *outcome->mutable_error() = ToProto(job.status());
    }
    bytes_ += outcome->ByteSizeLong();
    if (bytes_ >= kMergedBytes || outcomes_.outcomes_size() >= kMergedOutcomes) SendOutcomes();
  }
  void SendOutcomes() {
    if (outcomes_.outcomes().empty()) return;
    bytes_ = 0;
    Send(std::exchange(outcomes_, {}));
  }

  const SequencerParts parts_;
  // On the loop.
  std::deque<v1::SubmitJobRequest> waiting_;  // jobs that were read and have not been run
  int running_ = 0;                           // jobs that were run and have no outcome
  bool look_again_ = false;                   // a timer looks for room
  v1::RunJobsResponse outcomes_;              // of about the same time, for one message
  size_t bytes_ = 0;

  std::mutex mutex_;  // guards what follows
  bool reading_ = false, half_closed_ = false;
  bool full_ = false;   // jobs wait for room in the queue
  int unanswered_ = 0;  // jobs that were read and whose outcomes have not been sent
};

class WatchJobStream final : public WriteStream<v1::WatchJobResponse> {
 public:
  WatchJobStream(const SequencerParts& parts, grpc::CallbackServerContext* context,
                 const v1::WatchJobRequest& request)
      : ServerStream(context), parts_(parts), request_(request) {}

 private:
  void OnStart() override {
    const absl::Status valid = Validate(request_);
    valid.ok() ? Poll() : End(valid);
  }

  void Poll() {
    OnLoop(parts_, parts_.scheduler, &Scheduler::PollJob)(
        call_, request_,
        [self = Self<WatchJobStream>()](auto polled) { self->OnPolled(std::move(polled)); });
  }

  // On the loop.
  void OnPolled(absl::StatusOr<std::vector<v1::WatchJobResponse>> polled) {
    if (!polled.ok()) return End(polled.status());
    const bool ended = polled->back().has_job();
    request_.set_after_event(std::max(request_.after_event(), polled->back().event().number()));
    for (v1::WatchJobResponse& response : *polled) Send(std::move(response));
    if (ended) return End(absl::OkStatus());
    if (open()) Poll();
  }

  const SequencerParts parts_;
  v1::WatchJobRequest request_;  // of the next poll
};

}  // namespace

std::unique_ptr<grpc::Service> MakeJobService(const SequencerParts& parts) {
  auto service = std::make_unique<MethodService>("agmm.v1.JobService");
  service->AddUnary(OnLoop(parts, parts.scheduler, &Scheduler::SubmitJob));
  service->AddUnary(OnLoop(parts, parts.scheduler, &Scheduler::GetJob));
  service->AddUnary(OnLoop(parts, parts.scheduler, &Scheduler::WaitJob));
  service->AddUnary(OnLoop(parts, parts.scheduler, &Scheduler::CancelJob));
  service->AddUnary(OnLoop<v1::ListJobsRequest, v1::ListJobsResponse>(
      parts, [scheduler = parts.scheduler](const auto&, const auto& request, auto reply) {
        reply(scheduler->history().List(request));
      }));
  service->AddBidiStream<v1::RunJobsRequest, v1::RunJobsResponse>(
      [parts](auto* context) { return StartStream<RunJobsStream>(parts, context); });
  service->AddWriteStream<v1::WatchJobRequest, v1::WatchJobResponse>(
      [parts](auto* context, auto* request) {
        return StartStream<WatchJobStream>(parts, context, *request);
      });
  return service;
}

}  // namespace agmm
