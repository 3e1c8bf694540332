// The port at which the other nodes' UCX connects. Nothing that a stranger sends there reaches UCX,
// whose TCP transport trusts every byte.
//
// A gate listens in place of UCX. A node that connects sends a one-time token first: a random
// number and its keyed hash under the world's secret. Only then does UCX get the connection. UCX
// has no hook for this, so socket_calls.cc defines the socket functions that its TCP transport
// calls.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "daemon/transport/address.h"
#include "daemon/transport/socket_calls.h"
#include "daemon/transport/types.h"
#include "kernels/base/spare_descriptor.h"

namespace agmm::transport {

// Thread-safe.
class Gate final : public Listener {
 public:
  // `refused` counts the connections that were closed because they showed no token; it outlives the
  // gate.
  Gate(const TransportOptions& options, TransportCount* refused);
  ~Gate() override;
  Gate(const Gate&) = delete;

  // While one exists, the socket that this thread listens on belongs to the gate.
  class Opening {
   public:
    explicit Opening(Gate* gate);
    ~Opening();
  };
  // At the socket's address and a port of the range.
  void TakeOver(int fd) override { opened_ = Listen(fd); }
  // The result of TakeOver: RESOURCE_EXHAUSTED; FAILED_PRECONDITION if it was not called.
  absl::Status opened() const { return opened_; }

  // Connections of this process to `other` show a token. Until the destructor.
  void Know(const GateAddress& other);

  const GateAddress& address() const { return address_; }
  const SocketAddress& where() const override { return address_.socket; }
  int Accept(SocketAddress* from) override;

 private:
  struct Visitor {
    int fd = -1;
    SocketAddress from;
    int64_t deadline_ns = 0;
    std::string said;  // so far, of the token
  };

  absl::Status Listen(int fd);
  // Binds listener_ to `port` (0: any) of address_, and listens. False if that cannot be.
  bool ListenAt(int port);
  void Loop();
  void AcceptVisitors();
  // Reads from the visitor. True once it has been admitted or closed.
  bool Hear(Visitor& visitor);
  void Refuse(Visitor& visitor);

  const std::string secret_;
  const PortRange ports_;
  const std::set<int> other_ports_;
  TransportCount* const refused_;
  absl::Status opened_;
  GateAddress address_;
  int fd_ = -1;        // UCX's, an event
  int listener_ = -1;  // the socket
  int stop_ = -1;      // an event: the thread ends
  SpareDescriptor spare_;
  std::thread thread_;
  // On the thread.
  std::list<Visitor> visitors_;
  std::set<std::string> used_;  // numbers of the tokens

  std::mutex mutex_;
  std::deque<Visitor> admitted_;  // guarded by mutex_
};

}  // namespace agmm::transport
