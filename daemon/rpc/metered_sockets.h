// In front of the functions of libc with which gRPC reads from its sockets and writes to them
// (tcp_posix.cc): a meter sees what passes through the sockets named here.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "daemon/rpc/frame_meter.h"

namespace agmm {

// From now on `meter` sees what passes through `fd`. When the client has asked for too much, the
// connection breaks and `broken`(why) is called. Replaces the meter of an earlier socket with this
// number. `owner` is for Unmeter. Thread-safe, like Unmeter.
void Meter(int fd, const void* owner, std::shared_ptr<FrameMeter> meter,
           std::function<void(const std::string&)> broken);
// Forgets all meters of `owner`: waits for `broken` where it runs.
void Unmeter(const void* owner);

}  // namespace agmm
