// An upper bound for the time that work on the GPUs may have to wait for earlier work.
#pragma once

#include <atomic>
#include <cstdint>

namespace agmm {

// Adds up the work that this process has begun on its GPUs and that has not ended. It counts all
// GPUs together, because work of one GPU may be behind work that waits for another GPU.
// Thread-safe.
class WorkClock {
 public:
  // Work that may take `ns` and has begun. It ends when this is destroyed.
  class Begun {
   public:
    explicit Begun(int64_t ns) : ns_(ns) { begun_ns_ += ns_; }
    ~Begun() { begun_ns_ -= ns_; }
    Begun(const Begun&) = delete;
    Begun& operator=(const Begun&) = delete;

   private:
    const int64_t ns_;
  };

  // The time of all work that has begun and not ended.
  static int64_t begun_ns() { return begun_ns_; }

 private:
  inline static std::atomic<int64_t> begun_ns_{0};
};

}  // namespace agmm
