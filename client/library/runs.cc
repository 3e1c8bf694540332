#include "client/library/runs.h"

#include <grpcpp/grpcpp.h>

#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/library/core.h"
#include "proto/convert/status.h"

namespace agmm {
namespace {
// Of jobs that travel together; the daemon takes 4096 in a message.
constexpr size_t kMergedBytes = 1 << 20;
constexpr int kMergedJobs = 1024;
}  // namespace

// One attempt. Holds a use of the core until its end has been seen to.
class Runs::Stream final : public grpc::ClientBidiReactor<v1::RunJobsRequest, v1::RunJobsResponse> {
 public:
  explicit Stream(std::shared_ptr<Runs> runs)
      : runs_(std::move(runs)), call_(runs_->core_->connection(), absl::InfiniteFuture()) {}

  void Begin() {
    runs_->core_->connection()->jobs()->async()->RunJobs(call_.context(), this);
    AddHold();  // for the writes, which begin on any thread
    StartRead(&response_);
    StartCall();
  }
  v1::RunJobsRequest* request() { return &request_; }
  void Write() { StartWrite(&request_); }
  Connection::Call* call() { return &call_; }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      runs_->OnBroken();
      return RemoveHold();  // OnDone says why
    }
    runs_->OnOutcomes(&response_);
    StartRead(&response_);
  }
  void OnWriteDone(bool) override { runs_->OnWritten(); }
  void OnDone(const grpc::Status& status) override {
    runs_->core_->loop()->Post([runs = runs_, status] { runs->OnStreamEnd(status); });
  }

  const std::shared_ptr<Runs> runs_;
  Connection::Call call_;
  v1::RunJobsRequest request_;
  v1::RunJobsResponse response_;
};

void Runs::Run(v1::SubmitJobRequest request, absl::Time deadline, bool may_run_anywhere,
               OnEnd on_end) {
  std::lock_guard lock(mutex_);
  const std::string id = request.request_id();
  const auto timer = deadlines_.emplace(deadline, id);
  pending_.emplace(
      id, Pending{next_++, std::move(request), timer, may_run_anywhere, std::move(on_end)});
  waiting_.push_back(id);
  AwaitDeadline();
  if (!core_->loop()->OnThisThread()) return Send();
  // Behind the callbacks that are due, so that what they run goes along.
  if (!std::exchange(send_posted_, true))
    core_->loop()->Post([self = shared_from_this()] { self->SendOnLoop(); });
}

void Runs::SendOnLoop() {
  std::lock_guard lock(mutex_);
  send_posted_ = false;
  Send();
}

void Runs::Send() {
  if (waiting_.empty() || writing_ || broken_ || resting_) return;
  if (stream_ == nullptr) Open();
  if (stream_ == nullptr) return;
  v1::RunJobsRequest* const request = stream_->request();
  request->Clear();
  for (size_t bytes = 0;
       !waiting_.empty() && bytes < kMergedBytes && request->jobs_size() < kMergedJobs;
       waiting_.pop_front()) {
    const auto pending = pending_.find(waiting_.front());
    if (pending == pending_.end()) continue;
    *request->add_jobs() = pending->second.request;
    bytes += pending->second.request.ByteSizeLong();
  }
  if (request->jobs_size() == 0) return;
  writing_ = true;
  stream_->Write();
}

void Runs::Open() {
  if (!core_->Begin()) {
    return core_->loop()->Post([self = shared_from_this()] {
      self->EndAll(absl::CancelledError("the client is being destroyed; end its calls first"));
    });
  }
  stream_ = std::make_shared<Stream>(shared_from_this());
  stream_->Begin();
}

std::optional<Runs::Pending> Runs::Take(const std::string& request_id) {
  auto node = pending_.extract(request_id);
  if (node.empty()) return std::nullopt;
  deadlines_.erase(node.mapped().deadline);
  return std::move(node.mapped());
}

std::map<std::string, Runs::Pending> Runs::TakeAll() {
  deadlines_.clear();
  waiting_.clear();
  retry_.reset();
  return std::exchange(pending_, {});
}

void Runs::OnOutcomes(v1::RunJobsResponse* response) {
  struct Ended {
    OnEnd on_end;
    absl::StatusOr<v1::Job> job;
  };
  std::vector<Ended> here;
  auto on_loop = std::make_shared<std::vector<Ended>>();
  {
    std::lock_guard lock(mutex_);
    retry_.reset();
    for (v1::JobOutcome& outcome : *response->mutable_outcomes()) {
      std::optional<Pending> pending = Take(outcome.request_id());
      if (!pending.has_value()) continue;
      absl::StatusOr<v1::Job> job = absl::InternalError(
          "the daemon has given an outcome that is none; install one build everywhere");
      if (outcome.has_job()) {
        job.emplace().Swap(outcome.mutable_job());
      } else if (const absl::Status error = FromProto(outcome.error()); !error.ok()) {
        job = error;
      }
      (pending->anywhere ? here : *on_loop).push_back({std::move(pending->on_end), std::move(job)});
    }
  }
  if (!on_loop->empty()) {
    core_->loop()->Post([on_loop] {
      for (Ended& ended : *on_loop) ended.on_end(ended.job);
    });
  }
  for (Ended& ended : here) ended.on_end(ended.job);
}

void Runs::OnWritten() {
  std::lock_guard lock(mutex_);
  writing_ = false;
  Send();
}

void Runs::OnBroken() {
  std::lock_guard lock(mutex_);
  broken_ = true;
}

void Runs::OnStreamEnd(const grpc::Status& status) {
  std::shared_ptr<Stream> stream;
  absl::Status why;
  std::map<std::string, Pending> given_up;
  {
    std::lock_guard lock(mutex_);
    stream = std::exchange(stream_, nullptr);
    writing_ = broken_ = false;
    // A daemon that ends the stream in good order owes what is pending all the same.
    const bool early = status.ok() && !pending_.empty();
    why = stream->call()->Convert(
        early ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the daemon has ended the stream")
              : status);
    if (pending_.empty()) {
      retry_.reset();
    } else {
      if (!retry_.has_value()) retry_.emplace(core_->connection(), absl::InfiniteFuture());
      if (const auto delay = retry_->Next(*stream->call()); delay.has_value()) {
        resting_ = true;
        core_->loop()->PostIn(*delay, [self = shared_from_this()] { self->SendAgain(); });
      } else {
        given_up = TakeAll();
      }
    }
  }
  for (auto& [id, pending] : given_up) pending.on_end(why);
  stream.reset();
  core_->End();
}

void Runs::SendAgain() {
  std::lock_guard lock(mutex_);
  resting_ = false;
  if (pending_.empty()) retry_.reset();
  waiting_.clear();
  std::map<uint64_t, std::string> in_order;
  for (const auto& [id, pending] : pending_) in_order.emplace(pending.number, id);
  for (auto& [number, id] : in_order) waiting_.push_back(std::move(id));
  Send();
}

// One task for all deadlines behind it: few of them ever pass.
void Runs::AwaitDeadline() {
  if (deadlines_.empty()) return;
  const absl::Time first = deadlines_.begin()->first;
  if (!armed_.empty() && *armed_.begin() <= first) return;
  armed_.insert(first);
  core_->loop()->PostIn(first - absl::Now(),
                        [self = shared_from_this(), first] { self->EndLate(first); });
}

void Runs::EndLate(absl::Time armed_for) {
  std::vector<Pending> late;
  {
    std::lock_guard lock(mutex_);
    const absl::Time now = absl::Now();
    while (!deadlines_.empty() && deadlines_.begin()->first <= now)
      late.push_back(*Take(deadlines_.begin()->second));
    armed_.erase(armed_for);
    // Early only where the client is being destroyed, which ends all that is pending.
    if (now >= armed_for) AwaitDeadline();
  }
  for (Pending& pending : late) {
    pending.on_end(absl::DeadlineExceededError(
        absl::StrFormat("the job of request %s had not ended in time, and goes on; list the jobs, "
                        "or give it a timeout",
                        pending.request.request_id())));
  }
}

void Runs::EndAll(const absl::Status& why) {
  std::map<std::string, Pending> all;
  {
    std::lock_guard lock(mutex_);
    all = TakeAll();
  }
  for (auto& [id, pending] : all) pending.on_end(why);
}

}  // namespace agmm
