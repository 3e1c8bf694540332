// Looks after the daemon's memory: what floods of calls take, and what is free again behind them.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "kernels/base/loop.h"

namespace agmm {

// On the loop, which ends before this does.
class MemoryWatch {
 public:
  // `usual_bytes`: what may be allocated beside what a busy daemon needs for its calls. `strained`
  // hears every other second whether it is much more, which calls that are behind probably hold.
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
