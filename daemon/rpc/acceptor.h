// Accepts a server's connections in gRPC's place. gRPC's own listener has no bound, and stops for
// good once it finds no free descriptor. Clients that flood their connections lose them
// (FrameMeter), and get new ones no faster than their flood may go on.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/observe/metrics.h"
#include "daemon/rpc/frame_meter.h"
#include "kernels/base/socket_address.h"

namespace agmm {

// Thread-safe.
class Acceptor {
 public:
  using Server = grpc::experimental::ExternalConnectionAcceptor;

  // Hands the connections of `listeners`, non-blocking sockets that this closes, to `server`.
  // Closes those beyond `bound`. `metrics` outlives this.
  Acceptor(std::vector<int> listeners, size_t bound, std::unique_ptr<Server> server,
           Metrics* metrics);
  ~Acceptor() { Stop(); }
  Acceptor(const Acceptor&) = delete;

  // Once gRPC's server has started. Errors: RESOURCE_EXHAUSTED without a thread.
  absl::Status Start();
  // Accepts no more. Idempotent.
  void Stop();
  // The connection of `peer`, as grpc::ServerContext::peer names it, is a daemon's: nothing that it
  // asks for is bounded.
  void Trust(absl::string_view peer);

 private:
  void Loop();
  void AcceptFrom(int listener);
  void Take(int fd);
  void Refuse(int fd, absl::string_view why);
  void Forget(int second);
  // The clients at a host share one; so do all on the unix socket.
  std::shared_ptr<Allowance> AllowanceOf(const SocketAddress& peer);
  void Warn(const std::string& what);

  struct Connection {
    int fd = -1;       // gRPC's
    std::string peer;  // as gRPC names it
    std::shared_ptr<FrameMeter> meter;
  };

  const std::vector<int> listeners_;
  const size_t bound_;
  const std::unique_ptr<Server> server_;
  Metrics::Counter* const refused_;
  Metrics::Counter* const broken_;
  const int poll_, stop_;  // an epoll, and an event in it
  int spare_;              // closed to have a descriptor for a connection that is refused
  std::atomic<int64_t> next_warning_ns_ = 0;
  bool stopped_ = false;
  std::map<std::string, std::shared_ptr<Allowance>> allowances_;  // by host; on the thread
  std::thread thread_;

  std::mutex mutex_;
  std::map<int, Connection> open_;  // by a second descriptor of the socket; guarded by mutex_
};

}  // namespace agmm
