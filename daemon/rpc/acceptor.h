// Accepts a server's connections in gRPC's place. gRPC's own listener has no bound, and stops for
// good once it finds no free descriptor. A client that floods its connection (FrameMeter) loses it,
// and its host cannot connect again until the server has recovered.
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
#include "kernels/base/spare_descriptor.h"

namespace agmm {

// Thread-safe.
class Acceptor {
 public:
  using Server = grpc::experimental::ExternalConnectionAcceptor;
  // Bounds of a HostLoad. Until it ends, a call takes about 20 KB and its headers.
  struct HostBounds {
    int64_t control = 4'000, control_per_second = 2'000;
    int64_t open_calls = 8'000;
    int64_t header_bytes = 256 << 20, header_bytes_per_second = 128 << 20;
    int64_t held_header_bytes = 64 << 20;
  };
  struct Bounds {
    size_t connections;  // at most half of them from one host
    bool members_only;   // closes connections that are not trusted in time
    HostBounds host;
  };

  // Hands the connections of `listeners`, non-blocking sockets that this closes, to `server`.
  // Closes those beyond the bounds. `metrics` outlives this.
  Acceptor(std::vector<int> listeners, Bounds bounds, std::unique_ptr<Server> server,
           Metrics* metrics);
  ~Acceptor() { Stop(); }
  Acceptor(const Acceptor&) = delete;

  // To be called once gRPC's server has started. Errors: RESOURCE_EXHAUSTED without a thread or a
  // descriptor.
  absl::Status Start();
  // While the daemon is strained, hosts that have used up HostBounds::control get a hundredth of
  // control_per_second, because a slow or busy machine ends fewer calls.
  void SetStrained(bool strained);
  // Accepts no more. Idempotent.
  void Stop();
  // Marks the connection of `peer`, a name from grpc::ServerContext::peer, as a daemon's, whose
  // requests are not bounded. Returns false without such a connection.
  bool Trust(absl::string_view peer);

 private:
  struct Connection {
    std::string peer;  // as gRPC names it
    std::shared_ptr<FrameMeter> meter;
    int64_t since_ns;
  };

  void Loop();
  void AcceptFrom(int listener);
  void Take(int fd);
  // Returns why `host` may not have another connection; empty if it may.
  std::string ReasonToRefuse(const SocketAddress& peer, HostLoad& host);
  void Refuse(int fd, absl::string_view why);
  void Refused(absl::string_view why);
  void Forget(int duplicate);
  // Closes connections that have not been trusted in time. Returns the milliseconds until the next
  // call; -1 if no open connection is untrusted.
  int CloseUntrusted();
  int64_t ControlPerSecond() const;  // with mutex_
  // Returns the load that the clients of one host share; all clients on the unix socket share one,
  // too.
  std::shared_ptr<HostLoad> HostOf(const SocketAddress& peer);
  // Logs a warning unless `next_ns` is in the future, and then sets it to the end of a period.
  void Warn(std::atomic<int64_t>* next_ns, const std::string& what);

  const std::vector<int> listeners_;
  const Bounds bounds_;
  const std::unique_ptr<Server> server_;
  Metrics::Counter* const refused_;
  Metrics::Counter* const broken_;
  const int poll_, stop_;  // an epoll, and an event in it
  SpareDescriptor spare_;
  // When the next warning may be logged. During a flood, warnings of refusals must not suppress the
  // one that says why a connection was broken.
  std::atomic<int64_t> next_refused_ns_ = 0, next_broken_ns_ = 0;
  bool stopped_ = false;
  std::thread thread_;

  HeldHeaders held_headers_;  // of all hosts

  std::mutex mutex_;  // guards what follows
  std::map<std::string, std::shared_ptr<HostLoad>> hosts_;
  bool strained_ = false;
  // By a duplicate of the socket's descriptor, which reports the end of the connection.
  std::map<int, Connection> open_;
};

}  // namespace agmm
