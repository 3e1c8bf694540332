// Words of the host that copies and kernels of one epoch read: in pinned memory, because the host
// must reach a kernel even if no copy can pass it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace agmm {

class LaunchWords {
 public:
  static constexpr int64_t kBytes = 128;  // two cache lines

  // `pinned` has kBytes.
  explicit LaunchWords(std::byte* pinned) : pinned_(pinned) {}

  // Requires that nothing of the last epoch reads the words any more.
  void Begin(uint64_t number) const {
    std::atomic_ref(*abort()).store(0, std::memory_order_relaxed);
    std::atomic_ref(*epoch()).store(number, std::memory_order_release);
  }
  // The epoch's kernels stop waiting, raise nothing more, and end soon.
  void Abort() const { std::atomic_ref(*abort()).store(1, std::memory_order_release); }

  // Copied into slots.
  uint64_t* epoch() const { return reinterpret_cast<uint64_t*>(pinned_); }
  // Read by kernels while they wait.
  uint64_t* abort() const { return reinterpret_cast<uint64_t*>(pinned_ + kBytes / 2); }

 private:
  std::byte* const pinned_;
};

}  // namespace agmm
