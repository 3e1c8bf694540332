// A rank's slots. On a GPU a slot stands for an event: once a producer on this node has recorded
// it, a stream may wait for it. A slot that a message raises stands for a completed event.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "kernels/device/executor.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// Epochs that a rank submits before the first of them is over.
inline constexpr int kEpochsAhead = 4;
// Epoch e uses set e % kEventSets of a plan's events, so that an event keeps its time, and stands
// for its own epoch, until the epoch has been reported.
inline constexpr int kEventSets = kEpochsAhead + 1;

// Thread-safe.
class CudaSlots {
 public:
  explicit CudaSlots(int count) : slots_(new Slot[count]()) {}

  // `event` has been recorded after the producer's work of `epoch`; null if that work has ended.
  void Raise(int index, uint64_t epoch, CUevent event) {
    Slot& slot = slots_[index];
    slot.events[epoch % kEventSets].store(event, std::memory_order_relaxed);
    uint64_t seen = slot.epoch.load(std::memory_order_relaxed);
    while (seen < epoch && !slot.epoch.compare_exchange_weak(seen, epoch, std::memory_order_release,
                                                             std::memory_order_relaxed)) {
    }
  }
  bool Holds(const Wait& wait, uint64_t epoch) const {
    const uint64_t lag = static_cast<uint64_t>(wait.lag);
    return epoch <= lag ||
           slots_[wait.slot.index].epoch.load(std::memory_order_acquire) >= epoch - lag;
  }
  // Returns the event for which a stream must wait, for a wait that holds; null if there is nothing
  // to wait for.
  CUevent EventOf(const Wait& wait, uint64_t epoch) const {
    const uint64_t lag = static_cast<uint64_t>(wait.lag);
    if (epoch <= lag) return nullptr;
    return slots_[wait.slot.index].events[(epoch - lag) % kEventSets].load(
        std::memory_order_relaxed);
  }

 private:
  struct Slot {
    std::atomic<uint64_t> epoch{0};
    std::array<std::atomic<CUevent>, kEventSets> events{};
  };
  const std::unique_ptr<Slot[]> slots_;
};

// An executor whose slots stand for events: every one of a node's CUDA devices.
class EventExecutor : public Executor {
 public:
  // Called when a step of this node that raises slot `index` has been submitted, and `event`
  // recorded after it.
  virtual void Recorded(int index, uint64_t epoch, CUevent event) = 0;
};

}  // namespace agmm
