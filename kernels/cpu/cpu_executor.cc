#include "kernels/cpu/cpu_executor.h"

#include <new>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/deadline.h"
#include "kernels/base/malloc_bytes.h"
#include "kernels/base/status.h"
#include "kernels/cpu/piece_math.h"

namespace agmm {

CpuExecutor::~CpuExecutor() {
  Cancel(absl::CancelledError("the plan's executor was destroyed"));
  target_.pending.Drain();
  std::lock_guard lock(device_->monitor->mutex);
  run_.reset();
}

absl::Status CpuExecutor::Prepare(const Problem& problem, std::shared_ptr<const Schedule> schedule,
                                  const Peers& peers) {
  if (run_.has_value())
    return absl::FailedPreconditionError(
        "an executor is prepared once; make another for another plan");
  plan_ = {problem, std::move(schedule), peers};
  AGMM_ASSIGN_OR_RETURN(program_, MakeProgram(plan_, device_->threads, device_->gemms));
  ScratchNeed need;
  for (const ProgramStep& step : program_.steps) need.Cover(NeedOf(step));
  AGMM_RETURN_IF_ERROR(device_->workers.Reserve(need));
  slots_.emplace(program_.slots);
  std::lock_guard lock(device_->monitor->mutex);
  try {
    run_.emplace(device_->monitor, program_, plan_, *slots_, device_->packs);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        "no memory for the sums that a plan's rank keeps; give the daemon more memory");
  }
  target_.rank = plan_.WorldRank(plan_.peers.self);
  target_.idle = {&*run_};
  target_.failure = absl::OkStatus();
  return absl::OkStatus();
}

int64_t CpuExecutor::size_bytes() const {
  int64_t bytes = SizeBytes(program_) + MallocBytes(program_.slots * sizeof(uint64_t));
  if (run_.has_value()) bytes += run_->size_bytes();
  return bytes;
}

void CpuExecutor::Run(uint64_t epoch, const Operands& operands, Deadline deadline,
                      DoneCallback done) {
  device_->workers.Push({&target_, epoch, operands, deadline, std::move(done)});
}

void CpuExecutor::Signal(int index, uint64_t epoch) {
  slots_->Raise(index, epoch);
  device_->workers.Wake(&target_);
}

}  // namespace agmm
