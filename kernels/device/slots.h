// A rank's slots: words that only rise, written by any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "kernels/schedule/schedule.h"

namespace agmm {

class Slots {
 public:
  explicit Slots(int count) : words_(new std::atomic<uint64_t>[count]()) {}

  // Release order: a thread that sees the new value sees all writes before it.
  void Raise(int index, uint64_t epoch) {
    uint64_t seen = words_[index].load(std::memory_order_relaxed);
    while (seen < epoch && !words_[index].compare_exchange_weak(
                               seen, epoch, std::memory_order_release, std::memory_order_relaxed)) {
    }
  }
  bool Holds(const Wait& wait, uint64_t epoch) const {
    const uint64_t lag = static_cast<uint64_t>(wait.lag);
    return epoch <= lag || words_[wait.slot.index].load(std::memory_order_acquire) >= epoch - lag;
  }

 private:
  const std::unique_ptr<std::atomic<uint64_t>[]> words_;
};

}  // namespace agmm
