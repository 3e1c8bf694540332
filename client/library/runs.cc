#include "client/library/runs.h"

#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/base/clock.h"
#include "kernels/base/deadline.h"
#include "kernels/base/random.h"
#include "proto/convert/rpc_status.h"
#include "proto/limits.h"

namespace agmm {
namespace {

// Limits of one message; the daemon accepts kMaxUnansweredJobs.
constexpr size_t kMergedBytes = 1 << 20;
constexpr int kMergedJobs = 1024;

absl::StatusOr<v1::Job> JobOf(v1::JobOutcome* outcome) {
  if (outcome->has_job()) return std::move(*outcome->mutable_job());
  const absl::Status error = FromProto(outcome->error());
  if (!error.ok()) return error;
  return absl::InternalError(
      "the daemon's reply has neither a job nor an error; client and daemon versions differ");
}

}  // namespace

Runs::Runs(Connection* connection, Loop* loop, const std::string& sequencer,
           std::function<void(const v1::SubmitJobRequest&)> cancel)
    : connection_(connection),
      loop_(loop),
      sequencer_(sequencer),
      cancel_(std::move(cancel)),
      prefix_(RandomHex(kIdBytes)),
      retry_(connection, Deadline::Infinite(),
             sequencer.empty() ? std::nullopt : std::optional(sequencer)) {}

Runs::~Runs() {
  std::unique_lock lock(mutex_);
  closed_.wait(lock, [this] { return !call_.has_value(); });
}

void Runs::Run(v1::SubmitJobRequest request, Deadline deadline, const std::stop_token& stop,
               OnEnd on_end) {
  std::lock_guard lock(mutex_);
  const std::string id = absl::StrFormat("%s-%016x", prefix_, ++count_);
  request.set_request_id(id);
  const Loop::Timer timer = loop_->PostAfter(deadline.Left(), [this, id] { EndLate(id); });
  Pending& run =
      pending_.emplace(id, Pending{std::move(request), timer, std::move(on_end), stop, nullptr})
          .first->second;
  if (stop.stop_possible()) {
    // Takes no lock, because a request that has been made calls it here, with the lock.
    const auto post = [this, id] { loop_->Post([this, id] { Cancel(id); }); };
    run.on_stop = std::make_unique<std::stop_callback<std::function<void()>>>(stop, post);
  }
  if (!loop_->OnLoop()) return Send();
  // Sent after the callbacks that are due, so that the jobs they submit share a message.
  if (std::exchange(send_posted_, true)) return;
  loop_->PostLast([this] {
    std::lock_guard lock(mutex_);
    send_posted_ = false;
    Send();
  });
}

void Runs::Send() {
  auto next = pending_.upper_bound(last_sent_);
  if (next == pending_.end() || phase_ == Phase::kWriting || phase_ == Phase::kBroken) return;
  if (phase_ == Phase::kClosed) Open();
  request_.Clear();
  for (size_t bytes = 0;
       next != pending_.end() && bytes < kMergedBytes && request_.jobs_size() < kMergedJobs;
       ++next) {
    *request_.add_jobs() = next->second.request;
    bytes += next->second.request.ByteSizeLong();
    last_sent_ = next->first;
  }
  phase_ = Phase::kWriting;
  StartWrite(&request_);
}

void Runs::Open() {
  call_.emplace(connection_, Deadline::Infinite(), sequencer_);
  connection_->jobs()->async()->RunJobs(call_->context(), this);
  AddHold();  // for the writes, which may begin on any thread
  StartRead(&response_);
  StartCall();
}

void Runs::OnReadDone(bool ok) {
  if (!ok) {
    std::unique_lock lock(mutex_);
    phase_ = Phase::kBroken;
    lock.unlock();
    return RemoveHold();  // OnDone says why
  }
  std::vector<std::pair<Pending, absl::StatusOr<v1::Job>>> ended;
  {
    std::lock_guard lock(mutex_);
    retry_.Restart();
    for (v1::JobOutcome& outcome : *response_.mutable_outcomes()) {
      auto run = pending_.extract(outcome.request_id());
      if (run.empty()) continue;
      loop_->Cancel(run.mapped().deadline);
      ended.emplace_back(std::move(run.mapped()), JobOf(&outcome));
    }
  }
  for (auto& [run, job] : ended) End(std::move(run), job);
  StartRead(&response_);
}

void Runs::OnWriteDone(bool) {
  std::lock_guard lock(mutex_);
  if (phase_ != Phase::kWriting) return;
  phase_ = Phase::kOpen;
  Send();
}

void Runs::OnDone(const grpc::Status& status) {
  std::map<std::string, Pending> given_up;
  absl::Status why;
  {
    std::lock_guard lock(mutex_);
    // If the daemon ends the stream without an error, the outcomes of pending runs are missing.
    const bool early = status.ok() && !pending_.empty();
    why = call_->Convert(
        early ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the daemon has ended the stream")
              : status);
    const auto delay = pending_.empty() ? std::nullopt : retry_.Next(*call_);
    call_.reset();
    if (delay.has_value()) {
      phase_ = Phase::kBroken;
      loop_->PostAfter(*delay, [this] { SendAgain(); });
    } else {
      phase_ = Phase::kClosed;
      retry_.Restart();
      given_up.swap(pending_);
    }
    // With the lock, because the thread that waits destroys this object next.
    closed_.notify_all();
  }
  for (auto& [id, run] : given_up) {
    loop_->Cancel(run.deadline);
    // The callback of the request finds the run gone.
    if (run.stop.stop_requested()) cancel_(run.request);
    End(std::move(run), why);
  }
}

void Runs::End(Pending run, const absl::StatusOr<v1::Job>& job) {
  // First, because a request may come on another thread, and the client may be destroyed once the
  // last run has ended.
  run.on_stop.reset();
  run.on_end(job);
}

void Runs::SendAgain() {
  std::lock_guard lock(mutex_);
  phase_ = Phase::kClosed;
  if (pending_.empty()) retry_.Restart();
  last_sent_.clear();
  Send();
}

void Runs::Cancel(const std::string& id) {
  v1::SubmitJobRequest request;
  {
    std::lock_guard lock(mutex_);
    const auto found = pending_.find(id);
    if (found == pending_.end()) return;
    request = found->second.request;
  }
  cancel_(request);
}

void Runs::EndLate(const std::string& id) {
  std::unique_lock lock(mutex_);
  const auto found = pending_.find(id);
  // The callback is early only while the client closes, which ends all pending runs.
  if (found == pending_.end() || !found->second.deadline.first.HasPassed()) return;
  auto run = pending_.extract(found);
  lock.unlock();
  End(std::move(run.mapped()),
      absl::DeadlineExceededError(absl::StrFormat(
          "the job of request %s had not ended when the wait for it timed out, and goes on; find "
          "it in the list of jobs, or give the job a timeout",
          id)));
}

}  // namespace agmm
