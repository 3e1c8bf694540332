#include "kernels/cuda/cuda_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
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
  // Only requests that find no launch are left.
  inbox_->Obey();
}

void CudaQueue::Push(CudaEpochs::Launch launch) {
  launch.target->pending.Add();
  inbox_->Post([this, launch = std::move(launch)]() mutable { epochs_.Push(std::move(launch)); });
}

void CudaQueue::Cancel(const CudaEpochs::Target* target, const absl::Status& reason) {
  inbox_->Post([this, target, reason] { epochs_.Cancel(target, reason); });
}

void CudaQueue::Observe(const CudaEpochs::Target* target, bool times,
                        Executor::StateCallback done) {
  inbox_->Post(
      [this, target, times, done = std::move(done)] { done(epochs_.Observe(target, times)); });
}

GpuTenant::Turn CudaQueue::TakeTurn() {
  Turn turn;
  inbox_->Obey();
  if (!epochs_.empty()) clock_->Tend();
  for (const CudaEpochs::Launch* launch : epochs_.in_progress()) {
    turn.progressed |= launch->run->Poll();
    PassFailure(*launch);
  }
  if (CudaEpochs::Launch* const dead = epochs_.FindDead(MonotonicNanos()); dead != nullptr) {
    Report(*dead);
    turn.progressed = true;
  }
  turn.progressed |= Advance();
  turn.progressed |= ReportOldest();
  for (const CudaEpochs::Launch* launch : epochs_.in_progress())
    turn.in_hand |= launch->run->in_hand();
  turn.next = epochs_.alarm();
  return turn;
}

bool CudaQueue::Advance() {
  bool progressed = false;
  CudaEpochs::Launch* launch =
      epochs_.in_progress().empty() ? BeginNext() : epochs_.in_progress().back();
  for (; launch != nullptr; launch = BeginNext()) {
    CudaRun& run = *launch->run;
    if (run.phase() == CudaRun::Phase::kSubmitting) {
      progressed |= run.Advance(order_->get(), ends_[closed_ % ends_.size()]);
      if (run.phase() == CudaRun::Phase::kSubmitting) break;
      ++closed_;
      last_end_ = run.end();
      PassFailure(*launch);
    }
    if (run.end() == nullptr) break;  // nothing can follow it until it is over
  }
  return progressed;
}

CudaEpochs::Launch* CudaQueue::BeginNext() {
  CudaEpochs::Launch* const launch = epochs_.TakeNext();
  if (launch == nullptr) return nullptr;
  launch->run->Begin(launch->epoch, launch->operands, last_end_);
  if (!stuck_.ok()) launch->run->Abandon(stuck_);
  return launch;
}

void CudaQueue::PassFailure(const CudaEpochs::Launch& launch) {
  if (launch.run->failed()) epochs_.Fail(launch, launch.run->status());
}

bool CudaQueue::ReportOldest() {
  CudaEpochs::Launch* const oldest = epochs_.oldest();
  if (oldest == nullptr) return false;
  const EpochRun::End end = oldest->run->Settle(MonotonicNanos());
  if (end == EpochRun::End::kStuck) GiveUp(*oldest);
  if (end != EpochRun::End::kNotYet) Report(*oldest);
  return end != EpochRun::End::kNotYet;
}

void CudaQueue::GiveUp(const CudaEpochs::Launch& launch) {
  // The later epochs also say why the work is stuck.
  launch.target->failure = launch.run->status();
  stuck_ = launch.run->stuck();
  const absl::Status peers_why =
      Annotate(stuck_, absl::StrCat("work of ", gpu_->where(), " may still write to it"));
  for (const std::shared_ptr<Gpu>& gpu : launch.run->prepared().peer_gpus())
    if (gpu != nullptr) gpu->health().GiveUp(gpu == gpu_ ? stuck_ : peers_why);
  for (const CudaEpochs::Launch* other : epochs_.in_progress()) other->run->Abandon(stuck_);
}

void CudaQueue::Report(CudaEpochs::Launch& launch) {
  struct NoLock {
    void lock() {}
    void unlock() {}
  } lock;
  ++ended_;
  epochs_.Report(launch, lock);
}

}  // namespace agmm
