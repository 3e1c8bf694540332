// Runs one rank's part of a plan on a CPU device.
#pragma once

#include <memory>
#include <optional>

#include "kernels/base/deadline.h"
#include "kernels/cpu/cpu_workers.h"
#include "kernels/cpu/pack_cache.h"
#include "kernels/cpu/program.h"
#include "kernels/cpu/rank_run.h"
#include "kernels/device/executor.h"
#include "kernels/device/slots.h"

namespace agmm {

// The parts of a device that its executors share.
struct CpuParts {
  explicit CpuParts(int threads) : threads(threads), gemms(threads), workers(monitor, threads) {}

  const int threads;
  const std::shared_ptr<Monitor> monitor = std::make_shared<Monitor>();
  GemmLibrary gemms;
  PackCache packs;
  CpuWorkers workers;  // last, because its workers use all of the above
};

class CpuExecutor final : public Executor {
 public:
  explicit CpuExecutor(CpuParts* device) : device_(device) {}
  // Cancels queued epochs and waits until they have drained. Must not be called from a
  // DoneCallback. Requires that the plan's other executors on this node have drained too, because
  // they signal each other.
  ~CpuExecutor() override;

  absl::Status Prepare(const Problem& problem, std::shared_ptr<const Schedule> schedule,
                       const Peers& peers) override;
  int64_t size_bytes() const override;
  void Run(uint64_t epoch, const Operands& operands, Deadline deadline, DoneCallback done) override;
  void Signal(int index, uint64_t epoch) override;
  // Does nothing when no epoch is running or queued: an epoch that has ended stays as it ended.
  void Cancel(const absl::Status& reason) override { device_->workers.Cancel(&target_, reason); }
  void Observe(bool times, StateCallback done) override {
    done(device_->workers.Observe(&target_, times));
  }

 private:
  CpuParts* const device_;
  RankPlan plan_;
  Program program_;
  std::optional<Slots> slots_;
  std::optional<RankRun> run_;
  CpuEpochs::Target target_;
};

}  // namespace agmm
