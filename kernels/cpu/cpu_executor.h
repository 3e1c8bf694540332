// Runs one rank's part of a plan on a CPU device.
#pragma once

#include <memory>
#include <optional>

#include "kernels/cpu/launch_queue.h"
#include "kernels/cpu/pack_cache.h"
#include "kernels/cpu/program.h"
#include "kernels/cpu/rank_run.h"
#include "kernels/cpu/slots.h"
#include "kernels/device/executor.h"

namespace agmm {

// What the executors of one device share.
struct CpuQueue {
  std::shared_ptr<Monitor> monitor;
  LaunchQueue* launches = nullptr;
  GemmLibrary* gemms = nullptr;
  PackCache* packs = nullptr;
  int threads = 1;
};

class CpuExecutor final : public Executor {
 public:
  explicit CpuExecutor(const CpuQueue& queue) : queue_(queue) {}
  // Cancels what is queued and waits until it has drained. Not from a DoneCallback. The executors
  // of its plan on this node must have drained too, for they signal each other.
  ~CpuExecutor() override;

  absl::Status Prepare(const Problem& problem, const Schedule& schedule,
                       const Peers& peers) override;
  void Run(uint64_t epoch, const Operands& operands, absl::Time deadline,
           DoneCallback done) override;
  void Signal(int index, uint64_t epoch) override;
  // Does nothing when no epoch is running or queued: what has ended well cannot be cancelled.
  void Cancel(const absl::Status& reason) override;

 private:
  const CpuQueue queue_;
  Problem problem_;
  Schedule schedule_;
  Peers peers_;
  Program program_;
  std::optional<Slots> slots_;
  std::optional<RankRun> run_;
  LaunchTarget target_;
};

}  // namespace agmm
