#include "kernels/cuda/cuda_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/clock.h"
#include "kernels/base/status.h"

namespace agmm {

absl::StatusOr<std::unique_ptr<CudaQueue>> CudaQueue::Create(std::shared_ptr<Gpu> gpu) {
  std::unique_ptr<CudaQueue> queue(new CudaQueue(gpu));
  AGMM_ASSIGN_OR_RETURN(queue->order_, GpuStream::Create(gpu));
  AGMM_ASSIGN_OR_RETURN(queue->clock_, GpuClock::Create(gpu));
  for (int i = 0; i < kEventSets; ++i) {
    AGMM_ASSIGN_OR_RETURN(queue->ends_.emplace_back(), queue->events_.Make());
  }
  gpu->thread().Add(queue.get());
  return queue;
}

CudaQueue::~CudaQueue() {
  gpu_->thread().Remove(this);
  AnswerObservers();
}

void CudaQueue::Push(CudaLaunch launch) {
  launch.queued_ns = MonotonicNanos();
  {
    std::lock_guard lock(mutex_);
    ++launch.target->unfinished;
    ++launch.target->queued;
    incoming_.push_back(std::move(launch));
  }
  gpu_->thread().Wake();
}

void CudaQueue::Cancel(CudaTarget* target, const absl::Status& reason) {
  {
    std::lock_guard lock(mutex_);
    if (target->unfinished == 0 || !target->cancelled.ok()) return;
    target->cancelled = reason;
  }
  gpu_->thread().Wake();
}

void CudaQueue::Observe(const CudaTarget* target, bool times, Executor::StateCallback done) {
  {
    std::lock_guard lock(mutex_);
    observers_.push_back({target, times, std::move(done)});
  }
  gpu_->thread().Wake();
}

void CudaQueue::AnswerObservers() {
  std::vector<Observer> observers;
  {
    std::lock_guard lock(mutex_);
    observers.swap(observers_);
  }
  for (const Observer& observer : observers) {
    const auto launch =
        std::find_if(launches_.begin(), launches_.end(),
                     [&](const CudaLaunch& launch) { return launch.target == observer.target; });
    RankState state;
    if (launch != launches_.end() && launch->run == nullptr) {
      state.behind = launch != launches_.begin();
    } else if (launch != launches_.end()) {
      state = launch->run->State();
      if (observer.times) launch->run->FillTimes(*clock_, &state.steps);
    }
    observer.done(state);
  }
}

void CudaQueue::Drain(CudaTarget* target) {
  std::unique_lock lock(mutex_);
  drained_.wait(lock, [&] { return target->queued == 0; });
}

int64_t CudaQueue::epochs() const {
  std::lock_guard lock(mutex_);
  return epochs_;
}

GpuTenant::Turn CudaQueue::TakeTurn() {
  Turn turn;
  TakeIn();
  if (!launches_.empty()) clock_->Tend();
  for (CudaLaunch& launch : launches_) {
    if (launch.run != nullptr) turn.progressed |= launch.run->Poll();
  }
  turn.next = FailDead();
  turn.progressed |= Advance();
  turn.progressed |= ReportOne();
  AnswerObservers();
  for (const CudaLaunch& launch : launches_) {
    if (launch.run != nullptr) turn.in_hand |= launch.run->in_hand();
  }
  return turn;
}

void CudaQueue::TakeIn() {
  std::vector<SendInbox::Ended> ended;
  {
    std::lock_guard lock(inbox_->mutex);
    ended.swap(inbox_->ended);
  }
  for (const SendInbox::Ended& send : ended) send.run->SendDone(send);
  std::lock_guard lock(mutex_);
  launches_.splice(launches_.end(), incoming_);
}

Deadline CudaQueue::FailDead() {
  Deadline next;
  const int64_t now_ns = MonotonicNanos();
  VisitLaunches(launches_, [&](Iterator at, bool first) {
    CudaLaunch& launch = *at;
    CudaTarget& target = *launch.target;
    if (target.failure.ok()) {
      absl::Status cancelled;
      {
        std::lock_guard lock(mutex_);
        cancelled = target.cancelled;
      }
      if (target.prepared == nullptr) {
        Fail(launch, launch.NotPrepared());
      } else if (launch.run != nullptr && !launch.run->status().ok()) {
        Fail(launch, launch.run->status());
      } else if (!cancelled.ok()) {
        Fail(launch, launch.run == nullptr ? cancelled : CanceledAt(cancelled, Stall(launch)));
      } else if (first && launch.IsLate(now_ns, &next)) {
        Fail(launch, absl::DeadlineExceededError(Stall(launch)));
      }
    }
    if (!target.failure.ok() && launch.run != nullptr) launch.run->Fail(target.failure);
    return true;
  });
  return next;
}

void CudaQueue::Fail(CudaLaunch& launch, const absl::Status& status) {
  launch.target->failure.Update(status);
}

bool CudaQueue::Advance() {
  bool progressed = false;
  int running = 0;
  for (CudaLaunch& launch : launches_) {
    if (!launch.target->failure.ok() && launch.run == nullptr) continue;
    if (launch.run == nullptr) {
      if (running == kEpochsAhead) break;
      launch.run = std::make_unique<CudaRun>(*launch.target->prepared, launch.epoch,
                                             launch.operands, inbox_);
      launch.run->Begin(last_end_);
      if (!stuck_.ok()) launch.run->Abandon(stuck_);
      progressed = true;
    }
    ++running;
    CudaRun& run = *launch.run;
    if (run.phase() == CudaRun::Phase::kSubmitting) {
      progressed |= run.Advance(order_->get(), ends_[closed_ % ends_.size()]);
      if (run.phase() == CudaRun::Phase::kSubmitting) break;
      ++closed_;
      last_end_ = run.end();
    }
    Fail(launch, run.status());
    if (run.end() == nullptr) break;  // nothing can follow it until it is over
  }
  return progressed;
}

bool CudaQueue::ReportOne() {
  const int64_t now_ns = MonotonicNanos();
  Iterator over = launches_.end();
  // All epochs of the rank that have begun are reported in order, because owners who queue the next
  // ones from `done` must do so in the same order on every rank.
  bool running = false;
  VisitLaunches(launches_, [&](Iterator launch, bool first) {
    bool is_over = first;
    if (launch->run == nullptr) {
      is_over = is_over && !launch->target->failure.ok();
    } else {
      is_over = is_over && !running && IsOver(*launch, now_ns);
      running = true;
    }
    if (is_over) over = launch;
    return !is_over;
  });
  if (over == launches_.end()) return false;
  Report(over);
  return true;
}

bool CudaQueue::IsOver(CudaLaunch& launch, int64_t now_ns) {
  CudaRun& run = *launch.run;
  if (run.phase() == CudaRun::Phase::kSubmitting) return false;
  const CudaRun::Settled settled = run.Settle(now_ns);
  // A query of its end may have failed it.
  Fail(launch, run.status());
  if (settled.kind == CudaRun::Settled::kStuck) {
    // Its later epochs also say why the work is stuck.
    launch.target->failure = run.status();
    GiveUp(*launch.target->prepared, settled.stuck);
  }
  return settled.kind != CudaRun::Settled::kNotYet;
}

void CudaQueue::GiveUp(const CudaPrepared& prepared, const absl::Status& why) {
  stuck_ = why;
  const absl::Status peers_why =
      Annotate(why, absl::StrCat("work of ", gpu_->where(), " may still write to it"));
  for (const std::shared_ptr<Gpu>& gpu : prepared.peer_gpus())
    if (gpu != nullptr) gpu->health().GiveUp(gpu == gpu_ ? why : peers_why);
  for (CudaLaunch& launch : launches_)
    if (launch.run != nullptr) launch.run->Abandon(why);
}

void CudaQueue::Report(Iterator launch) {
  CudaTarget* const target = launch->target;
  EpochReport report;
  if (launch->run != nullptr) {
    report = launch->run->Report(*clock_);
    launch->run.reset();
  } else {
    report = ReportNotBegun(target->failure);
  }
  Executor::DoneCallback done = std::move(launch->done);
  launches_.erase(launch);
  {
    std::lock_guard lock(mutex_);
    ++epochs_;
    if (--target->unfinished == 0) target->cancelled = absl::OkStatus();
  }
  done(report);
  done = nullptr;  // frees what it holds before the launch counts as over
  std::lock_guard lock(mutex_);
  if (--target->queued == 0) drained_.notify_all();
}

std::string CudaQueue::Stall(const CudaLaunch& launch) {
  return launch.run != nullptr ? launch.run->Stall() : launch.NotBegun();
}

}  // namespace agmm
