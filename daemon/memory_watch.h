// Watches the daemon's memory: detects floods of calls, and returns the memory that they leave
// free.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "kernels/base/loop.h"

namespace agmm {

// Runs on the loop, which must end before this object.
class MemoryWatch {
 public:
  // `usual_bytes` returns the memory that may be allocated besides that of a busy daemon's calls.
  // `strained` is called every two seconds; true means that much more is allocated, probably by
  // stalled calls.
  MemoryWatch(Loop* loop, std::function<size_t()> usual_bytes, std::function<void(bool)> strained)
      : loop_(loop), usual_bytes_(std::move(usual_bytes)), strained_(std::move(strained)) {}
  void Start();

 private:
  Loop* const loop_;
  const std::function<size_t()> usual_bytes_;
  const std::function<void(bool)> strained_;
  int looks_ = 0;
};

}  // namespace agmm
