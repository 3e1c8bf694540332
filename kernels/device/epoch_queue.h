// The epochs that are queued on a device: one first-in-first-out queue for all of its executors. It
// owns their order, deadlines, failures and reports, for devices of every kind.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/clock.h"
#include "kernels/base/deadline.h"
#include "kernels/base/status.h"
#include "kernels/device/executor.h"

namespace agmm {

// Counts the epochs of an executor whose `done` has not returned. Thread-safe.
class PendingEpochs {
 public:
  void Add() {
    std::lock_guard lock(mutex_);
    ++count_;
  }
  void Remove() {
    std::lock_guard lock(mutex_);
    if (--count_ == 0) drained_.notify_all();
  }
  // Returns when none is left. Has no deadline, because canceled epochs end by themselves.
  void Drain() {
    std::unique_lock lock(mutex_);
    drained_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable drained_;
  int count_ = 0;
};

// Passive: the threads of the device drive it. It has no lock. Either its owner has one, or a
// single thread calls it. `Run` is an EpochRun with a method Close, which ends the report of an
// epoch that is over and returns it.
template <typename Run>
class EpochQueue {
 public:
  struct Launch;

  // An executor as the queue sees it.
  struct Target {
    int rank = 0;            // its number in the world, for errors
    std::vector<Run*> idle;  // runs without an epoch: as many as it may have in progress at a time
    // The reason why none of its epochs runs any more. To be set to OK by Prepare.
    absl::Status failure =
        absl::FailedPreconditionError("this executor is not prepared; call Prepare before Run");
    PendingEpochs pending;    // from before Push until `done` has returned
    Launch* first = nullptr;  // its first launch in the queue
  };

  // An epoch in the queue.
  struct Launch {
    Target* target = nullptr;
    uint64_t epoch = 0;
    Operands operands;
    Deadline deadline;
    Executor::DoneCallback done;
    int64_t queued_ns = MonotonicNanos();
    Run* run = nullptr;      // of an epoch that has begun
    bool reporting = false;  // its end has been decided, and `done` runs
  };

  // At most `most` epochs are in progress at a time.
  explicit EpochQueue(int most) : most_(most) {}

  bool empty() const { return launches_.empty(); }
  // The launches that have begun, in their order, until their `done` has returned.
  const std::vector<Launch*>& in_progress() const { return in_progress_; }
  // The oldest launch in progress; null if there is none, or while it is reported. Launches that
  // have begun are reported in their order, because owners who queue the next epochs from `done`
  // must do so in the same order on every rank.
  Launch* oldest() const {
    return in_progress_.empty() || in_progress_[0]->reporting ? nullptr : in_progress_[0];
  }
  // The next deadline of a launch, as of the last call of FindDead that returned null.
  Deadline alarm() const { return alarm_; }

  void Push(Launch launch) {
    Launch& pushed = launches_.emplace_back(std::move(launch));
    if (pushed.target->first == nullptr) pushed.target->first = &pushed;
    changed_ = true;
  }

  // Fails the launches of `target` whose end has not been decided, if any. `target` may no longer
  // exist, but then no launch has it.
  void Cancel(const Target* target, const absl::Status& reason) {
    const auto launch = absl::c_find_if(launches_, [&](const Launch& launch) {
      return launch.target == target && !launch.reporting;
    });
    if (launch == launches_.end() || !launch->target->failure.ok()) return;
    Fail(*launch, launch->run == nullptr ? reason
                                         : WithMessage(reason, absl::StrCat(reason.message(), ": ",
                                                                            launch->run->Stall())));
  }

  // Fails the launch's target: none of its epochs begins after this, and those in progress drain.
  // The first reason stays.
  void Fail(const Launch& launch, const absl::Status& status) {
    Target& target = *launch.target;
    if (!target.failure.ok()) return;
    // The run may have failed by itself before.
    target.failure = launch.run != nullptr && launch.run->failed() ? launch.run->status() : status;
    changed_ = true;
    for (const Launch* other : in_progress_) {
      if (other->target == &target && !other->reporting) other->run->Fail(target.failure);
    }
  }

  // As Executor::Observe.
  RankState Observe(const Target* target, bool times) const {
    const auto launch =
        absl::c_find_if(launches_, [&](const Launch& launch) { return launch.target == target; });
    if (launch == launches_.end() || launch->reporting) return {};
    if (launch->run != nullptr) return launch->run->State(times);
    RankState state;
    state.behind = launch != launches_.begin();
    return state;
  }

  // Fails late launches. Returns a launch that will never begin and can be reported, even if it is
  // behind launches of other targets; null if there is none. Cheap if nothing has changed since the
  // last call.
  Launch* FindDead(int64_t now_ns) {
    if (!changed_ && !alarm_.HasPassed(now_ns)) return nullptr;
    alarm_ = Deadline::Infinite();
    for (Launch& launch : launches_) {
      // Only the first launch of a target can be late or over, because its epochs end in order.
      if (&launch != launch.target->first || launch.reporting) continue;
      if (launch.target->failure.ok()) {
        if (launch.deadline.HasPassed(now_ns)) {
          Fail(launch, absl::DeadlineExceededError(launch.run != nullptr ? launch.run->Stall()
                                                                         : NotBegun(launch)));
        } else {
          alarm_ = std::min(alarm_, launch.deadline);
        }
      }
      if (!launch.target->failure.ok() && launch.run == nullptr) return &launch;
    }
    changed_ = false;
    return nullptr;
  }

  // Takes a run for the next launch that may begin, and returns the launch, whose run the caller
  // begins; null if there is none.
  Launch* TakeNext() {
    if (static_cast<int>(in_progress_.size()) == most_) return nullptr;
    const auto next = absl::c_find_if(launches_, [](const Launch& launch) {
      return launch.run == nullptr && launch.target->failure.ok();
    });
    if (next == launches_.end()) return nullptr;
    std::vector<Run*>& idle = next->target->idle;
    next->run = idle.back();
    idle.pop_back();
    in_progress_.push_back(&*next);
    return &*next;
  }

  // Reports a launch that is over or will never begin, and removes it. Calls `done` without the
  // owner's `lock`.
  template <typename Lock>
  void Report(Launch& launch, Lock& lock) {
    EpochReport not_begun;
    const EpochReport* report = &not_begun;
    if (launch.run != nullptr) {
      report = &launch.run->Close();
      if (launch.run->failed()) Fail(launch, report->status);
    } else {
      not_begun.status = launch.target->failure;
      not_begun.end_ns = MonotonicNanos();
    }
    launch.reporting = true;
    lock.unlock();
    launch.done(*report);
    launch.done = nullptr;  // frees what it holds before the launch counts as over
    lock.lock();
    Remove(launch);
  }

 private:
  static std::string NotBegun(const Launch& launch) {
    return absl::StrFormat(
        "rank %d had not begun after %.1f s behind other epochs of its device, epoch %d",
        launch.target->rank, (MonotonicNanos() - launch.queued_ns) * 1e-9, launch.epoch);
  }

  void Remove(const Launch& launch) {
    Target& target = *launch.target;
    if (launch.run != nullptr) {
      std::erase(in_progress_, &launch);
      target.idle.push_back(launch.run);
    }
    launches_.remove_if([&](const Launch& other) { return &other == &launch; });
    const auto next =
        absl::c_find_if(launches_, [&](const Launch& other) { return other.target == &target; });
    target.first = next == launches_.end() ? nullptr : &*next;
    // The next launch of the target is now its first, with its own deadline.
    changed_ = true;
    // Last, because the target may be destroyed after this.
    target.pending.Remove();
  }

  const int most_;
  std::list<Launch> launches_;
  std::vector<Launch*> in_progress_;
  bool changed_ = false;  // a launch may be dead, or have an earlier deadline than alarm_
  Deadline alarm_;
};

}  // namespace agmm
