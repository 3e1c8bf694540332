#include "kernels/cpu/cpu_executor.h"

#include <new>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"

namespace agmm {

CpuExecutor::~CpuExecutor() {
  Cancel(absl::CancelledError("the plan's executor was taken down"));
  queue_.launches->Drain(&target_);
  std::lock_guard lock(queue_.monitor->mutex);
  run_.reset();
}

absl::Status CpuExecutor::Prepare(const Problem& problem, const Schedule& schedule,
                                  const Peers& peers) {
  if (run_.has_value())
    return absl::FailedPreconditionError(
        "an executor is prepared once; make another for another plan");
  AGMM_ASSIGN_OR_RETURN(program_, Lower(problem, schedule, peers, queue_.threads, *queue_.gemms));
  problem_ = problem;
  schedule_ = schedule;
  peers_ = peers;
  slots_.emplace(program_.slots);
  std::unique_lock lock(queue_.monitor->mutex);
  try {
    run_.emplace(queue_.monitor, program_, problem_, schedule_, peers_, *slots_, *queue_.packs);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        "no memory for the sums that a plan's rank keeps; give the daemon more memory");
  }
  target_.run = &*run_;
  const ScratchNeed need = run_->Need();
  lock.unlock();
  absl::Status reserved = queue_.launches->Reserve(need);
  if (!reserved.ok()) {
    lock.lock();
    target_.run = nullptr;
    run_.reset();
  }
  return reserved;
}

void CpuExecutor::Run(uint64_t epoch, const Operands& operands, absl::Time deadline,
                      DoneCallback done) {
  const Rank self = peers_.self;
  Launch launch;
  launch.target = &target_;
  launch.epoch = epoch;
  launch.operands = operands;
  launch.deadline = deadline;
  launch.done = std::move(done);
  launch.rank = peers_.world_ranks.empty() ? self : peers_.world_ranks[self];
  queue_.launches->Push(std::move(launch));
}

void CpuExecutor::Signal(int index, uint64_t epoch) {
  slots_->Raise(index, epoch);
  queue_.launches->Wake(&target_);
}

void CpuExecutor::Cancel(const absl::Status& reason) { queue_.launches->Cancel(&target_, reason); }

}  // namespace agmm
