// Channels to daemons.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

namespace agmm {

// Every channel of a process is opened here. It has a connection of its own, with its own back-off,
// and goes to `target` directly, whatever the environment says of proxies; `arguments` say the
// rest.
//
// It may be dropped anywhere, also by a call's own callback. With gRPC alone that is a use after
// free where it is the process's last channel: its callback threads end with the last channel or
// server, and the one that drops it joins itself (seen with 1.51: "ref_counted.h: assertion failed:
// prior > 0"). The first channel opened here therefore keeps those threads, two of them on a small
// machine, for as long as the process lives.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& target,
                                           grpc::ChannelArguments arguments = {});

}  // namespace agmm
