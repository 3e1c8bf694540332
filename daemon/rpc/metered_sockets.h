// In front of the function of libc with which gRPC reads from its sockets (tcp_posix.cc): what
// arrives on those named here goes through a meter first.
#pragma once

#include <functional>
#include <memory>

#include "daemon/rpc/frame_meter.h"

namespace agmm {

// From now on `meter` reads what arrives at `fd`. Once that is too much, the connection breaks and
// `broken` is called. Replaces the meter of an earlier socket with this number. Thread-safe, like
// Unmeter.
void Meter(int fd, std::shared_ptr<FrameMeter> meter, std::function<void()> broken);
// No effect if `fd` has another meter by now.
void Unmeter(int fd, const FrameMeter* meter);

}  // namespace agmm
