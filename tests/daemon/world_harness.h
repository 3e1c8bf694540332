// Several daemons in one process, on free ports of the loopback, with real streams and transports.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agmm/v1/cluster.grpc.pb.h"
#include "agmm/v1/tensor.grpc.pb.h"
#include "daemon/config/config.h"
#include "daemon/daemon.h"
#include "proto/channel/channel.h"
#include "proto/convert/grpc_call.h"
#include "tests/support/held_ports.h"
#include "tests/support/patience.h"

namespace agmm {

// Nodes "a", "b", ... with one small device each.
class TestWorld {
 public:
  explicit TestWorld(int nodes) : ports_(nodes + 1), daemons_(nodes) {}

  Config ConfigOf(int node, const std::string& cluster = "test") const {
    std::string text = absl::StrCat("world { cluster: \"", cluster, "\"\n");
    for (size_t i = 0; i < daemons_.size(); ++i)
      absl::StrAppend(&text, "node { name: \"", Name(i), "\" address: \"", Address(i),
                      "\" devices: 1 }\n");
    if (daemons_.size() > 1) absl::StrAppend(&text, "peer_port: ", ports_[daemons_.size()], " ");
    absl::StrAppend(&text, "} local { node: \"", Name(node),
                    "\" device { kind: \"cpu\" threads: 1 heap: \"16MiB\" } }");
    absl::StatusOr<Config> config = ParseConfig(text, "test.conf");
    EXPECT_TRUE(config.ok()) << config.status();
    return *std::move(config);
  }
  static std::string Name(size_t node) { return std::string(1, static_cast<char>('a' + node)); }
  std::string Address(size_t node) const { return absl::StrCat("127.0.0.1:", ports_[node]); }

  // Returns the address at which the other daemons join.
  std::string PeerAddress() const { return absl::StrCat("127.0.0.1:", ports_[daemons_.size()]); }

  absl::Status Start(int node) {
    return Start(node, ConfigOf(node), [](absl::Status) {});
  }
  absl::Status Start(int node, const Config& config, std::function<void(absl::Status)> on_refused) {
    absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(config, std::move(on_refused));
    if (!daemon.ok()) return daemon.status();
    daemons_[node] = *std::move(daemon);
    return absl::OkStatus();
  }
  void Stop(int node) { daemons_[node].reset(); }

  // Returns a connected channel to a running daemon, because gRPC may report the first attempt to
  // connect as failed (see Connection).
  std::shared_ptr<grpc::Channel> Channel(int node) const {
    std::shared_ptr<grpc::Channel> channel = OpenChannel(Address(node));
    EXPECT_TRUE(channel->WaitForConnected(ToGrpc(Deadline::After(kPatience))));
    return channel;
  }
  // Returns the status that `node` answers.
  v1::GetStatusResponse Status(int node) const {
    grpc::ClientContext context;
    context.set_deadline(ToGrpc(Deadline::After(kPatience)));
    v1::GetStatusResponse status;
    const grpc::Status result =
        v1::ClusterService::NewStub(Channel(node))->GetStatus(&context, {}, &status);
    EXPECT_TRUE(result.ok()) << result.error_message();
    return status;
  }
  // Waits until `node` says that the world is ready, in a generation above `above`; returns that
  // generation, or 0 if that does not happen.
  uint64_t WaitReady(int node, uint64_t above = 0) const {
    v1::GetStatusResponse status;
    const bool ready = Eventually([&] {
      status = Status(node);
      return status.ready() && status.generation() > above;
    });
    EXPECT_TRUE(ready) << "generation " << status.generation() << ": " << status.reason();
    return ready ? status.generation() : 0;
  }
  // Waits until `node` says that the world is not ready, and returns why.
  std::string WaitNotReady(int node) const {
    std::string reason;
    EXPECT_TRUE(Eventually([&] {
      const v1::GetStatusResponse status = Status(node);
      reason = status.reason();
      return !status.ready();
    }));
    return reason;
  }

 private:
  const HeldPorts ports_;
  std::vector<std::unique_ptr<Daemon>> daemons_;
};

}  // namespace agmm
