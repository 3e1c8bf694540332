// In front of the functions of libc that UCX's TCP transport calls for its sockets and addresses:
// those of listeners are treated here, and all other calls of the process go on to libc.
#pragma once

#include <string>

#include "daemon/transport/address.h"

namespace agmm::transport {

// Stands behind a socket on which UCX believes to listen. Thread-safe.
class Listener {
 public:
  virtual ~Listener() = default;
  // Listens in place of the socket `fd`, and turns `fd` into an event that is readable while
  // connections wait. UCX is not told of a failure, because it would leave behind what it has
  // allocated: the owner of the listener looks for one, and ends UCX's worker.
  virtual void TakeOver(int fd) = 0;
  // Where it listens. After TakeOver.
  virtual const SocketAddress& where() const = 0;
  // The next connection for UCX, and the address of the other end; -1 without one.
  virtual int Accept(SocketAddress* from) = 0;
};

// While one exists, this thread finds `address` alone among the IP addresses of this host. UCX can
// be given an interface but no address: it announces, listens at and connects from the first one
// that it finds there, of IPv4 if there is any.
class ShownAddress {
 public:
  explicit ShownAddress(const SocketAddress& address);
  ~ShownAddress();
  ShownAddress(const ShownAddress&) = delete;
};

// The next socket that this thread listens on belongs to `listener`; null: to libc.
void SetNextListener(Listener* listener);
// Makes connections of this process to `peer` begin with a token, until Forget(user).
void SendTokens(const Listener* user, const ListenerAddress& peer, const std::string& secret);
void Forget(const Listener* listener);

}  // namespace agmm::transport
