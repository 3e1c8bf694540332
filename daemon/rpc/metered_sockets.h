// Replaces the libc functions with which gRPC reads from its sockets and writes to them
// (tcp_posix.cc), so that a meter sees the bytes that pass through the registered sockets.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "daemon/rpc/frame_meter.h"

namespace agmm {

// From now on `meter` sees the bytes that pass through `fd`. When the client exceeds a bound, the
// connection breaks and `broken`(why) is called. Replaces the meter of an earlier socket with this
// number. `owner` is for Unmeter. Thread-safe, like Unmeter.
void Meter(int fd, const void* owner, std::shared_ptr<FrameMeter> meter,
           std::function<void(const std::string&)> broken);
// Removes all meters of `owner`, and waits for a running `broken`.
void Unmeter(const void* owner);

}  // namespace agmm
