// The port at which the other nodes' UCX connects. Nothing that a stranger sends there reaches UCX,
// whose TCP transport trusts every byte.
//
// A gate listens in place of UCX. Whoever connects first sends a one-time token: a random number
// and its keyed hash under the world's secret. Only then UCX is given the connection. UCX has no
// hook for this, so socket_calls.cc defines the few socket functions that its TCP transport calls.
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
#include "daemon/transport/types.h"

namespace agmm::transport {

// Thread-safe.
class Gate {
 public:
  // `refused` counts the connections that were closed because they showed no token; it outlives the
  // gate.
  Gate(const TransportOptions& options, TransportCount* refused);
  ~Gate();
  Gate(const Gate&) = delete;

  // While one exists, the socket that this thread listens on belongs to the gate.
  class Opening {
   public:
    explicit Opening(Gate* gate);
    ~Opening();
  };
  // Listens in place of the socket `fd`, at its address and a port of the range, and turns `fd`
  // into an event that is readable while admitted connections wait. Errors: RESOURCE_EXHAUSTED.
  absl::Status TakeOver(int fd);
  // What TakeOver returned; FAILED_PRECONDITION if it was not called.
  absl::Status opened() const { return opened_; }

  // Connections of this process to `other` show a token. Until the destructor.
  void Know(const GateAddress& other);

  const GateAddress& address() const { return address_; }
  int fd() const { return fd_; }
  // The next admitted connection, and the address of the other end; -1 without one.
  int Accept(SocketAddress* from);

 private:
  struct Visitor {
    int fd = -1;
    SocketAddress from;
    int64_t deadline_ns = 0;
    std::string said;  // so far, of the token
  };

  void Loop();
  void AcceptVisitors();
  // Reads from the visitor. True once it has been admitted or closed.
  bool Hear(Visitor& visitor);
  void Refuse(Visitor& visitor);

  const std::string secret_;
  const PortRange ports_;
  TransportCount* const refused_;
  absl::Status opened_;
  GateAddress address_;
  int fd_ = -1;        // UCX's, an event
  int listener_ = -1;  // the socket
  int spare_ = -1;     // closed to have a descriptor for a connection that is refused
  int stop_ = -1;      // an event: the thread ends
  std::thread thread_;
  // On the thread.
  std::list<Visitor> visitors_;
  std::set<std::string> used_;  // numbers of the tokens

  std::mutex mutex_;
  std::deque<Visitor> admitted_;  // guarded by mutex_
};

}  // namespace agmm::transport
