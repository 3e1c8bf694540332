#include "kernels/cpu/cpu_workers.h"

#include <new>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/clock.h"
#include "kernels/base/host_limits.h"
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

CpuWorkers::CpuWorkers(std::shared_ptr<Monitor> monitor, int threads)
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

CpuWorkers::~CpuWorkers() {
  {
    std::lock_guard lock(monitor_->mutex);
    stopping_ = true;
    monitor_->WakeAll();
  }
  for (std::thread& worker : workers_) worker.join();
}

absl::Status CpuWorkers::Reserve(const ScratchNeed& need) {
  const std::lock_guard one(reserving_);
  std::unique_lock lock(monitor_->mutex);
  const ScratchNeed before = need_;
  if (!need_.Cover(need)) return absl::OkStatus();
  ++needs_;
  reserved_ = 0;
  short_ = false;
  monitor_->WakeAll();
  monitor_->worker_changed.wait(lock, [this] { return reserved_ == threads_; });
  if (!short_) return absl::OkStatus();
  // The workers that allocated it keep it; the others keep their old scratch.
  need_ = before;
  return absl::ResourceExhaustedError(
      absl::StrFormat("no memory for %s of scratch, which each of %d threads needs; give the "
                      "daemon more memory or fewer threads",
                      FormatBytes(need.a + need.c + need.scratchpad), threads_));
}

void CpuWorkers::TakeScratch(GemmWorker& worker) {
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
  if (++reserved_ == threads_) monitor_->worker_changed.notify_all();
}

void CpuWorkers::Push(CpuEpochs::Launch launch) {
  launch.target->pending.Add();
  std::lock_guard lock(monitor_->mutex);
  epochs_.Push(std::move(launch));
  // All, because every sleeper has to learn of an earlier alarm.
  monitor_->WakeAll();
}

void CpuWorkers::Cancel(const CpuEpochs::Target* target, const absl::Status& reason) {
  std::lock_guard lock(monitor_->mutex);
  epochs_.Cancel(target, reason);
  monitor_->WakeAll();
}

RankState CpuWorkers::Observe(const CpuEpochs::Target* target, bool times) const {
  std::lock_guard lock(monitor_->mutex);
  return epochs_.Observe(target, times);
}

void CpuWorkers::Wake(const CpuEpochs::Target* target) {
  std::lock_guard lock(monitor_->mutex);
  const CpuEpochs::Launch* const launch = epochs_.oldest();
  if (sleeping_ > 0 && launch != nullptr && launch->target == target) monitor_->WakeOne();
}

void CpuWorkers::Lend(ProgressEngine* progress) {
  std::unique_lock lock(monitor_->mutex);
  lent_to_ = progress;
  monitor_->WakeAll();
  if (progress == nullptr) monitor_->worker_changed.wait(lock, [this] { return !seated_; });
}

void CpuWorkers::Work(int index) {
  Worker worker{index == 0, GemmWorker(index)};
  std::unique_lock lock(monitor_->mutex);
  while (true) {
    // First, because it gives up the lock, and a change made meanwhile wakes no worker.
    TendSeat(worker, lock);
    TakeScratch(worker.gemm);
    if (CpuEpochs::Launch* const dead = epochs_.FindDead(MonotonicNanos()); dead != nullptr) {
      Report(*dead, lock);
      continue;
    }
    CpuEpochs::Launch* launch = epochs_.oldest();
    if (launch == nullptr) {
      launch = epochs_.TakeNext();
      if (launch != nullptr) launch->run->Begin(launch->epoch, launch->operands);
    }
    if (launch != nullptr) {
      Advance(*launch, worker, lock);
    } else if (epochs_.empty() && stopping_) {
      return;
    } else {
      Sleep(worker, lock);
    }
  }
}

void CpuWorkers::TendSeat(Worker& worker, std::unique_lock<std::mutex>& lock) {
  if (worker.seat == nullptr) return;
  const auto is_lent = [&] { return worker.seat == lent_to_ && !stopping_; };
  bool keeps = is_lent();
  if (keeps) {
    lock.unlock();
    keeps = worker.seat->Poll();
    lock.lock();
    keeps = keeps && is_lent();  // the loan may have ended during the Poll
  }
  if (!keeps) LeaveSeat(worker);
}

void CpuWorkers::LeaveSeat(Worker& worker) {
  if (worker.seat == nullptr) return;
  worker.seat->Leave();
  worker.seat = nullptr;
  seated_ = false;
  monitor_->worker_changed.notify_all();
}

void CpuWorkers::Advance(CpuEpochs::Launch& launch, Worker& worker,
                         std::unique_lock<std::mutex>& lock) {
  RankRun& run = *launch.run;
  if (run.Settle() == EpochRun::End::kOver) {
    Report(launch, lock);
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

void CpuWorkers::Sleep(Worker& worker, std::unique_lock<std::mutex>& lock) {
  ++sleeping_;
  const Deadline until = epochs_.alarm();
  if (!SleepDriving(worker, until, lock)) monitor_->wake.wait_until(lock, until.time_point());
  --sleeping_;
}

bool CpuWorkers::SleepDriving(Worker& worker, Deadline until, std::unique_lock<std::mutex>& lock) {
  if (!worker.drives || lent_to_ == nullptr || stopping_) return false;
  ProgressEngine* const progress = lent_to_;
  const bool running = epochs_.oldest() != nullptr;
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

void CpuWorkers::Report(CpuEpochs::Launch& launch, std::unique_lock<std::mutex>& lock) {
  ++monitor_->counters.epochs;
  reported_ns_ = MonotonicNanos();
  epochs_.Report(launch, lock);
  monitor_->WakeAll();
}

}  // namespace agmm
