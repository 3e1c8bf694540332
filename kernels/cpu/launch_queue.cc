#include "kernels/cpu/launch_queue.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/clock.h"
#include "kernels/base/host_limits.h"
#include "kernels/base/status.h"
#include "kernels/base/thread.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

// Spin time within an epoch. The next message usually arrives sooner, and falling asleep and waking
// up take as long.
constexpr absl::Duration kSpin = absl::Microseconds(50);
// Spin time after a job, in case a synchronous client submits the next one; sleeping would cool the
// caches.
constexpr absl::Duration kSpinAfterJob = absl::Microseconds(500);

}  // namespace

LaunchQueue::LaunchQueue(std::shared_ptr<Monitor> monitor, int threads)
    : monitor_(std::move(monitor)),
      reserved_(threads),
      threads_(threads),
      has_spare_core_(UsableCores() > threads) {
  for (int index = 0; index < threads; ++index) {
    absl::StatusOr<std::thread> worker =
        StartThread(absl::StrFormat("worker %d of %d of a device", index + 1, threads),
                    [this, index] { Work(index); });
    status_ = worker.status();
    if (!worker.ok()) return;
    workers_.push_back(*std::move(worker));
  }
}

LaunchQueue::~LaunchQueue() {
  {
    std::lock_guard lock(monitor_->mutex);
    stopping_ = true;
    monitor_->WakeAll();
  }
  for (std::thread& worker : workers_) worker.join();
}

absl::Status LaunchQueue::Reserve(const ScratchNeed& need) {
  const std::lock_guard one(reserving_);
  std::unique_lock lock(monitor_->mutex);
  const ScratchNeed before = need_;
  if (!need_.Cover(need)) return absl::OkStatus();
  ++needs_;
  reserved_ = 0;
  short_ = false;
  monitor_->WakeAll();
  monitor_->drained.wait(lock, [this] { return reserved_ == threads_; });
  if (!short_) return absl::OkStatus();
  // The workers that allocated it keep it; the others keep their old scratch.
  need_ = before;
  return absl::ResourceExhaustedError(
      absl::StrFormat("no memory for %s of scratch, which each of %d threads needs; give the "
                      "daemon more memory or fewer threads",
                      FormatBytes(need.a + need.c + need.scratchpad), threads_));
}

void LaunchQueue::TakeScratch(GemmWorker& worker) {
  if (worker.needs_met == needs_) return;
  const int64_t bytes = worker.scratch_bytes(), allocations = worker.allocations();
  try {
    worker.Reserve(need_);
  } catch (const std::bad_alloc&) {
    short_ = true;
  }
  monitor_->counters.scratch_bytes += worker.scratch_bytes() - bytes;
  monitor_->counters.allocations += worker.allocations() - allocations;
  worker.needs_met = needs_;
  if (++reserved_ == threads_) monitor_->drained.notify_all();
}

void LaunchQueue::Push(Launch launch) {
  std::lock_guard lock(monitor_->mutex);
  if (launch.target->run == nullptr) launch.target->failure = launch.NotPrepared();
  if (!launch.target->failure.ok()) sweep_ = true;
  ++launch.target->queued;
  launch.queued_ns = MonotonicNanos();
  alarm_ = std::min(alarm_, launch.deadline);
  queue_.push_back(std::move(launch));
  // All, because every sleeper has to learn of an earlier alarm.
  monitor_->WakeAll();
}

void LaunchQueue::Cancel(LaunchTarget* target, const absl::Status& reason) {
  std::lock_guard lock(monitor_->mutex);
  const bool unfinished = std::any_of(queue_.begin(), queue_.end(), [&](const Launch& launch) {
    return launch.target == target && launch.state != Launch::kReporting;
  });
  if (!unfinished || !target->failure.ok()) return;
  Launch& front = queue_.front();
  if (front.target == target && front.state == Launch::kRunning) {
    Fail(front, CanceledAt(reason, Stall(front)));
  } else {
    target->failure = reason;
    sweep_ = true;
  }
  monitor_->WakeAll();
}

RankState LaunchQueue::Observe(const LaunchTarget* target, bool times) const {
  std::lock_guard lock(monitor_->mutex);
  const auto own = std::find_if(queue_.begin(), queue_.end(),
                                [&](const Launch& launch) { return launch.target == target; });
  if (own == queue_.end()) return {};
  if (own->state != Launch::kRunning) {
    RankState state;
    state.behind = own != queue_.begin();
    return state;
  }
  RankState state = target->run->State();
  if (times) state.steps = target->run->times();
  return state;
}

void LaunchQueue::Drain(LaunchTarget* target) {
  std::unique_lock lock(monitor_->mutex);
  monitor_->drained.wait(lock, [&] { return target->queued == 0; });
}

void LaunchQueue::Wake(LaunchTarget* target) {
  std::lock_guard lock(monitor_->mutex);
  if (sleeping_ > 0 && !queue_.empty() && queue_.front().target == target) monitor_->WakeOne();
}

void LaunchQueue::Lend(ProgressEngine* progress) {
  std::unique_lock lock(monitor_->mutex);
  lent_to_ = progress;
  monitor_->WakeAll();
  if (progress == nullptr) monitor_->drained.wait(lock, [this] { return !seated_; });
}

void LaunchQueue::Work(int index) {
  Worker worker{index == 0, GemmWorker(index)};
  std::unique_lock lock(monitor_->mutex);
  while (true) {
    TakeScratch(worker.gemm);
    TendSeat(worker, lock);
    const int64_t now_ns = MonotonicNanos();
    if (sweep_ || alarm_.HasPassed(now_ns)) {
      const Iterator dead = FindDead(now_ns);
      if (dead != queue_.end()) {
        Report(dead, ReportNotBegun(dead->target->failure), lock);
        continue;
      }
    }
    if (!queue_.empty() && queue_.front().state != Launch::kReporting) {
      Advance(queue_.front(), worker, lock);
    } else if (queue_.empty() && stopping_) {
      return;
    } else {
      Sleep(worker, lock);
    }
  }
}

void LaunchQueue::TendSeat(Worker& worker, std::unique_lock<std::mutex>& lock) {
  if (worker.seat == nullptr) return;
  bool keeps = worker.seat == lent_to_ && !stopping_;
  if (keeps) {
    lock.unlock();
    keeps = worker.seat->Poll();
    lock.lock();
  }
  if (!keeps) LeaveSeat(worker);
}

void LaunchQueue::LeaveSeat(Worker& worker) {
  if (worker.seat == nullptr) return;
  worker.seat->Leave();
  worker.seat = nullptr;
  seated_ = false;
  monitor_->drained.notify_all();
}

void LaunchQueue::Advance(Launch& front, Worker& worker, std::unique_lock<std::mutex>& lock) {
  LaunchTarget& target = *front.target;
  RankRun& run = *target.run;
  if (front.state == Launch::kQueued) {
    front.state = Launch::kRunning;
    if (absl::Status status = run.Begin(front.epoch, front.operands); !status.ok())
      Fail(front, status);
  }
  if (run.over()) {
    // A step or a send may have failed the run.
    if (run.failed()) Fail(front, run.status());
    Report(queue_.begin(), run.Close(), lock);
    return;
  }
  if (const auto task = run.Next()) {
    if (sleeping_ > 0 && run.HasTask()) monitor_->WakeOne();
    if (run.IsLong(*task, has_spare_core_)) LeaveSeat(worker);
    GemmWorker& gemm = worker.gemm;
    const int64_t scratch_bytes = gemm.scratch_bytes(), allocations = gemm.allocations();
    run.Execute(*task, gemm, lock);
    monitor_->counters.scratch_bytes += gemm.scratch_bytes() - scratch_bytes;
    monitor_->counters.allocations += gemm.allocations() - allocations;
    return;
  }
  Sleep(worker, lock);
}

void LaunchQueue::Sleep(Worker& worker, std::unique_lock<std::mutex>& lock) {
  ++sleeping_;
  const Deadline until = alarm_;
  if (!SleepDriving(worker, until, lock)) monitor_->wake.wait_until(lock, until.time_point());
  --sleeping_;
}

bool LaunchQueue::SleepDriving(Worker& worker, Deadline until, std::unique_lock<std::mutex>& lock) {
  if (!worker.drives || lent_to_ == nullptr || stopping_) return false;
  ProgressEngine* const progress = lent_to_;
  const bool running = !queue_.empty() && queue_.front().state == Launch::kRunning;
  const bool just_reported =
      MonotonicNanos() - reported_ns_ < absl::ToInt64Nanoseconds(kSpinAfterJob);
  seated_ = true;
  monitor_->driven = progress;
  monitor_->stirred = false;
  lock.unlock();
  const bool drove = progress->Drive([this] { return monitor_->stirred.load(); }, until,
                                     running         ? kSpin
                                     : just_reported ? kSpinAfterJob
                                                     : absl::ZeroDuration());
  lock.lock();
  monitor_->driven = nullptr;
  worker.seat = progress;
  if (!drove) LeaveSeat(worker);
  return drove || monitor_->stirred;
}

LaunchQueue::Iterator LaunchQueue::FindDead(int64_t now_ns) {
  alarm_ = Deadline::Infinite();
  Iterator dead = queue_.end();
  VisitLaunches(queue_, [&](Iterator launch, bool first) {
    if (!first || launch->state == Launch::kReporting) return true;
    if (launch->target->failure.ok()) {
      if (!launch->IsLate(now_ns, &alarm_)) return true;
      Fail(*launch, absl::DeadlineExceededError(Stall(*launch)));
    }
    // A launch in progress drains first.
    if (launch->state != Launch::kQueued) return true;
    dead = launch;
    return false;
  });
  if (dead == queue_.end()) sweep_ = false;
  return dead;
}

void LaunchQueue::Fail(Launch& launch, const absl::Status& status) {
  absl::Status& failure = launch.target->failure;
  if (!failure.ok()) return;
  failure = status;
  sweep_ = true;
  if (launch.state != Launch::kRunning) return;
  // A send may have failed the run before.
  launch.target->run->Fail(status);
  failure = launch.target->run->status();
}

std::string LaunchQueue::Stall(const Launch& launch) {
  return launch.state == Launch::kRunning ? launch.target->run->Stall() : launch.NotBegun();
}

void LaunchQueue::Report(Iterator launch, const EpochReport& report,
                         std::unique_lock<std::mutex>& lock) {
  launch->state = Launch::kReporting;
  ++monitor_->counters.epochs;
  reported_ns_ = MonotonicNanos();
  lock.unlock();
  launch->done(report);
  launch->done = nullptr;  // frees what it holds before the launch counts as over
  lock.lock();
  LaunchTarget* target = launch->target;
  queue_.erase(launch);
  if (--target->queued == 0) monitor_->drained.notify_all();
  monitor_->WakeAll();
  // The target's next launch is now its first, with a deadline or a failure of its own.
  sweep_ = true;
}

}  // namespace agmm
