#include "kernels/cpu/launch_queue.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/clock.h"

namespace agmm {

LaunchQueue::LaunchQueue(std::shared_ptr<Monitor> monitor, int threads)
    : monitor_(std::move(monitor)), reserved_(threads), threads_(threads) {
  for (int index = 0; index < threads; ++index) workers_.emplace_back([this, index] { Work(index); });
}

LaunchQueue::~LaunchQueue() {
  {
    std::lock_guard lock(monitor_->mutex);
    stopping_ = true;
  }
  monitor_->wake.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void LaunchQueue::Reserve(const ScratchNeed& need) {
  std::unique_lock lock(monitor_->mutex);
  if (need_.Cover(need)) {
    ++needs_;
    reserved_ = 0;
    monitor_->wake.notify_all();
  }
  monitor_->drained.wait(lock, [this] { return reserved_ == threads_; });
}

void LaunchQueue::TakeScratch(GemmWorker& worker) {
  if (worker.needs_met == needs_) return;
  const int64_t bytes = worker.scratch_bytes(), allocations = worker.allocations();
  worker.Reserve(need_);
  monitor_->counters.scratch_bytes += worker.scratch_bytes() - bytes;
  monitor_->counters.allocations += worker.allocations() - allocations;
  worker.needs_met = needs_;
  if (++reserved_ == threads_) monitor_->drained.notify_all();
}

void LaunchQueue::Push(Launch launch) {
  std::lock_guard lock(monitor_->mutex);
  if (launch.target->run == nullptr)
    launch.target->failure =
        absl::FailedPreconditionError(absl::StrFormat("rank %d runs a plan that is not prepared", launch.rank));
  if (!launch.target->failure.ok()) sweep_ = true;
  ++launch.target->queued;
  launch.queued_ns = MonotonicNanos();
  alarm_ = std::min(alarm_, launch.deadline);
  queue_.push_back(std::move(launch));
  // All of them: a sleeper may have to take note of an earlier alarm.
  monitor_->wake.notify_all();
}

void LaunchQueue::Cancel(LaunchTarget* target, const absl::Status& reason) {
  std::lock_guard lock(monitor_->mutex);
  const bool unfinished = std::any_of(queue_.begin(), queue_.end(), [&](const Launch& launch) {
    return launch.target == target && launch.state != Launch::kReporting;
  });
  if (!unfinished || !target->failure.ok()) return;
  Launch& front = queue_.front();
  if (front.target == target && front.state == Launch::kRunning) {
    absl::Status status(reason.code(), absl::StrCat(reason.message(), ": ", Stall(front)));
    reason.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
      status.SetPayload(url, payload);
    });
    Fail(front, status);
  } else {
    target->failure = reason;
    sweep_ = true;
  }
  monitor_->wake.notify_all();
}

void LaunchQueue::Drain(LaunchTarget* target) {
  std::unique_lock lock(monitor_->mutex);
  monitor_->drained.wait(lock, [&] { return target->queued == 0; });
}

void LaunchQueue::Wake(LaunchTarget* target) {
  std::lock_guard lock(monitor_->mutex);
  if (sleeping_ > 0 && !queue_.empty() && queue_.front().target == target) monitor_->wake.notify_one();
}

void LaunchQueue::Work(int index) {
  GemmWorker worker(index);
  std::unique_lock lock(monitor_->mutex);
  while (true) {
    TakeScratch(worker);
    const absl::Time now = absl::Now();
    if (sweep_ || now >= alarm_) {
      const Iterator dead = FindDead(now);
      if (dead != queue_.end()) {
        EpochReport report;
        report.status = dead->target->failure;
        report.end_ns = MonotonicNanos();  // it never began
        Report(dead, report, lock);
        continue;
      }
    }
    if (!queue_.empty() && queue_.front().state != Launch::kReporting) {
      Advance(queue_.front(), worker, lock);
    } else if (queue_.empty() && stopping_) {
      return;
    } else {
      Sleep(lock);
    }
  }
}

void LaunchQueue::Advance(Launch& front, GemmWorker& worker, std::unique_lock<std::mutex>& lock) {
  LaunchTarget& target = *front.target;
  RankRun& run = *target.run;
  if (front.state == Launch::kQueued) {
    front.state = Launch::kRunning;
    if (absl::Status status = run.Begin(front.epoch, front.operands); !status.ok()) Fail(front, status);
  }
  if (run.over()) {
    // A step or a send of its own may have failed it.
    if (run.failed()) Fail(front, run.status());
    Report(queue_.begin(), run.Close(), lock);
    return;
  }
  if (const auto task = run.Next()) {
    if (sleeping_ > 0 && run.HasTask()) monitor_->wake.notify_one();
    const int64_t scratch_bytes = worker.scratch_bytes(), allocations = worker.allocations();
    run.Execute(*task, worker, lock);
    monitor_->counters.scratch_bytes += worker.scratch_bytes() - scratch_bytes;
    monitor_->counters.allocations += worker.allocations() - allocations;
    return;
  }
  Sleep(lock);
}

void LaunchQueue::Sleep(std::unique_lock<std::mutex>& lock) {
  ++sleeping_;
  if (alarm_ == absl::InfiniteFuture()) {
    monitor_->wake.wait(lock);
  } else {
    // Far deadlines would overflow the clock's nanoseconds.
    const absl::Time until = std::min(alarm_, absl::Now() + absl::Hours(1));
    monitor_->wake.wait_until(lock, absl::ToChronoTime(until));
  }
  --sleeping_;
}

LaunchQueue::Iterator LaunchQueue::FindDead(absl::Time now) {
  alarm_ = absl::InfiniteFuture();
  std::set<LaunchTarget*> seen;
  for (Iterator launch = queue_.begin(); launch != queue_.end(); ++launch) {
    // Launches of one executor end in their order, so that only its first can be over.
    if (!seen.insert(launch->target).second || launch->state == Launch::kReporting) continue;
    LaunchTarget& target = *launch->target;
    if (target.failure.ok()) {
      if (launch->deadline > now) {
        alarm_ = std::min(alarm_, launch->deadline);
        continue;
      }
      Fail(*launch, absl::DeadlineExceededError(Stall(*launch)));
    }
    // One in progress drains first.
    if (launch->state == Launch::kQueued) return launch;
  }
  sweep_ = false;
  return queue_.end();
}

void LaunchQueue::Fail(Launch& launch, const absl::Status& status) {
  absl::Status& failure = launch.target->failure;
  if (!failure.ok()) return;
  failure = status;
  sweep_ = true;
  if (launch.state != Launch::kRunning) return;
  // A send that failed a moment ago was first.
  launch.target->run->Fail(status);
  failure = launch.target->run->status();
}

std::string LaunchQueue::Stall(const Launch& launch) {
  if (launch.state == Launch::kRunning) return launch.target->run->Stall();
  return absl::StrFormat("rank %d had not begun after %.1f s behind other epochs of its device, epoch %d",
                         launch.rank, (MonotonicNanos() - launch.queued_ns) * 1e-9, launch.epoch);
}

void LaunchQueue::Report(Iterator launch, const EpochReport& report,
                         std::unique_lock<std::mutex>& lock) {
  launch->state = Launch::kReporting;
  ++monitor_->counters.epochs;
  lock.unlock();
  launch->done(report);
  launch->done = nullptr;  // what it holds goes before the launch counts as over
  lock.lock();
  LaunchTarget* target = launch->target;
  queue_.erase(launch);
  if (--target->queued == 0) monitor_->drained.notify_all();
  monitor_->wake.notify_all();
  // The next launch of this target is its first now, with a deadline or a failure of its own.
  sweep_ = true;
}

}  // namespace agmm
