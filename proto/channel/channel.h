// Channels to daemons.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

namespace agmm {

// Every channel of a process is opened here. It has its own connection and back-off, and connects
// to `target` directly, even if the environment names a proxy; `arguments` add to that.
//
// A channel may be dropped anywhere, even in a call's own callback. With plain gRPC, that is a use
// after free for the last channel of the process: callback threads end with the last channel or
// server, and the thread that drops it would join itself (seen with 1.51: "ref_counted.h: assertion
// failed: prior > 0"). The first channel opened here therefore keeps those threads, two of them on
// a small machine, for as long as the process lives.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& target,
                                           grpc::ChannelArguments arguments = {});

}  // namespace agmm
