// Replaces the libc functions that UCX's TCP transport calls for its sockets and addresses. Calls
// for sockets of listeners are handled here; all other calls of the process are passed on to libc.
#pragma once

#include <string>

#include "daemon/transport/address.h"

namespace agmm::transport {

// Listens in place of a socket on which UCX tries to listen. Thread-safe.
class Listener {
 public:
  virtual ~Listener() = default;
  // Listens in place of the socket `fd`, and turns `fd` into an event that is readable while
  // connections wait. UCX does not learn of a failure, because it would leak memory: the owner of
  // the listener checks for failures, and ends UCX's worker.
  virtual void TakeOver(int fd) = 0;
  // Returns the address at which it listens. To be called after TakeOver.
  virtual const SocketAddress& where() const = 0;
  // Returns the next connection for UCX and the address of its other end; -1 without one.
  virtual int Accept(SocketAddress* from) = 0;
};

// During its lifetime, this thread finds only `address` among the IP addresses of this host. UCX
// accepts an interface but not an address: it announces, listens at and connects from the first
// address that it finds on the interface, preferring IPv4.
class ShownAddress {
 public:
  explicit ShownAddress(const SocketAddress& address);
  ~ShownAddress();
  ShownAddress(const ShownAddress&) = delete;
};

// The next socket on which this thread listens belongs to `listener`, or to libc if that is null.
void SetNextListener(Listener* listener);
// Makes this process's connections to `peer` begin with a token, until Forget(user).
void SendTokens(const Listener* user, const ListenerAddress& peer, const std::string& secret);
void Forget(const Listener* listener);

}  // namespace agmm::transport
