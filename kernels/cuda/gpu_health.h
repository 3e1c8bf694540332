// The health of a GPU, which may be lost, given up, or both.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace agmm {

// Thread-safe: any thread may report a failure or ask.
class GpuHealth {
 public:
  using FailureFn = std::function<void(const std::string& why)>;

  // `where` names the GPU: "GPU 2".
  explicit GpuHealth(std::string where) : where_(std::move(where)) {}
  GpuHealth(const GpuHealth&) = delete;
  GpuHealth& operator=(const GpuHealth&) = delete;

  // From now on, the first failure calls `on_failure` with failure(), once, on the thread that
  // reports it. May be null.
  void Watch(FailureFn on_failure);

  // No call to the GPU will succeed any more, for this reason. The first reason stays. Returns true
  // if this is the first.
  bool Lose(const absl::Status& why) { return Enter(lost_, why); }
  // Some work of the GPU may never end, for this reason. From now on, everything that the work may
  // use is kept until the process ends, because the driver's calls that destroy and free would wait
  // for the work, and it could write memory that has a new owner. The first reason stays.
  void GiveUp(const absl::Status& why) { Enter(given_up_, why); }

  // OK, or the first reason. Cheap while OK: one load.
  absl::Status lost() const { return WhyOf(lost_); }
  absl::Status given_up() const { return WhyOf(given_up_); }
  // "GPU 2 is given up: ...; restart the daemon": why the GPU is lost or given up, whichever came
  // first. Empty if it is neither.
  std::string failure() const;

 private:
  struct State {
    const char* const name;
    std::atomic<bool> entered{false};
    absl::Status why = {};  // guarded by mutex_
  };
  bool Enter(State& state, const absl::Status& why);
  absl::Status WhyOf(const State& state) const;

  const std::string where_;
  State lost_{"lost"}, given_up_{"given up"};
  mutable std::mutex mutex_;  // guards all below
  std::string failure_;
  FailureFn on_failure_;
};

}  // namespace agmm
