// A rank's slots. On a GPU a slot stands for an event: once a producer on this node has recorded
// it, a stream may wait for it. A slot that a message raises stands for a completed event.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "kernels/device/executor.h"
#include "kernels/device/slots.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// The most epochs of a rank that are submitted and not over.
inline constexpr int kMaxSubmittedEpochs = 4;
// Epoch e uses set e % kEventSets of a plan's events, so that an event keeps its time, and stands
// for its own epoch, until the epoch has been reported.
inline constexpr int kEventSets = kMaxSubmittedEpochs + 1;

// Thread-safe.
class CudaSlots : public Slots {
 public:
  explicit CudaSlots(int count) : Slots(count), events_(new Events[count]()) {}

  // `event` has been recorded after the producer's work of `epoch`; null if that work has ended.
  void Raise(int index, uint64_t epoch, CUevent event) {
    events_[index][epoch % kEventSets].store(event, std::memory_order_relaxed);
    Slots::Raise(index, epoch);
  }
  // Returns the event for which a stream must wait, for a wait that holds; null if there is nothing
  // to wait for.
  CUevent EventOf(const Wait& wait, uint64_t epoch) const {
    const uint64_t lag = static_cast<uint64_t>(wait.lag);
    if (epoch <= lag) return nullptr;
    return events_[wait.slot.index][(epoch - lag) % kEventSets].load(std::memory_order_relaxed);
  }

 private:
  using Events = std::array<std::atomic<CUevent>, kEventSets>;
  const std::unique_ptr<Events[]> events_;
};

// An executor whose slots stand for events: every one of a node's CUDA devices.
class EventExecutor : public Executor {
 public:
  // Called when a step of this node that raises slot `index` has been submitted, and `event`
  // recorded after it.
  virtual void Recorded(int index, uint64_t epoch, CUevent event) = 0;
  // Returns the address of the slot in the memory of this rank's GPU, if a kernel waits for it;
  // else 0. The raiser then stores the epoch's number there, behind its work. Requires that Prepare
  // has returned.
  virtual CUdeviceptr PolledSlot(int index) const = 0;
};

}  // namespace agmm
