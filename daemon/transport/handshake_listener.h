// The port at which the other nodes' UCX connects. Bytes reach UCX, whose TCP transport trusts
// them, only on connections that have proved that they know the world's secret.
//
// This class listens in place of UCX. The handshake of a connection is a one-time token: a random
// number and its keyed hash under the world's secret. UCX gets the connection once its token has
// been checked. UCX has no hook for this, so socket_calls.cc defines the socket functions that its
// TCP transport calls.
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
#include "kernels/base/spare_descriptor.h"

namespace agmm::transport {

// Thread-safe.
class HandshakeListener {
 public:
  // `refused`, which must outlive this, counts the connections that were closed because they sent
  // no valid token.
  HandshakeListener(const TransportOptions& options, TransportCount* refused);
  ~HandshakeListener();
  HandshakeListener(const HandshakeListener&) = delete;

  // Returns the result of TakeOver: RESOURCE_EXHAUSTED; FAILED_PRECONDITION if it was not called.
  absl::Status opened() const { return opened_; }

  // Makes this process's connections to `peer` begin with a token, until the destructor.
  void AddPeer(const ListenerAddress& peer);

  // Returns the address at which it listens. To be called after TakeOver.
  const ListenerAddress& address() const { return address_; }

  // For socket_calls.cc. Listens in place of the socket `fd`, on which UCX tries to listen, at its
  // address and a port of the range. Turns `fd` into an event that is readable while connections
  // wait. UCX does not learn of a failure, because it would leak memory: the owner checks
  // `opened`, and ends UCX's worker.
  void TakeOver(int fd) { opened_ = Listen(fd); }
  // Returns the next connection for UCX and the address of its other end; -1 without one.
  int Accept(SocketAddress* from);

 private:
  // A connection whose handshake is not complete.
  struct PendingConnection {
    int fd = -1;
    SocketAddress from;
    int64_t deadline_ns = 0;
    std::string token;  // the bytes received so far
  };

  absl::Status Listen(int fd);
  // Binds listener_ to `port` (0: any) of address_, and listens. Returns false on failure.
  bool ListenAt(int port);
  void Loop();
  void AcceptConnections();
  // Returns true once the connection has been admitted or closed.
  bool ReadToken(PendingConnection& connection);
  void Refuse(PendingConnection& connection);

  const std::string secret_;
  const PortRange ports_;
  const std::set<int> other_ports_;
  TransportCount* const refused_;
  absl::Status opened_;
  ListenerAddress address_;
  int fd_ = -1;        // UCX's, an event
  int listener_ = -1;  // the socket
  int stop_ = -1;      // an event that ends the thread
  SpareDescriptor spare_;
  std::thread thread_;
  // On the thread.
  std::list<PendingConnection> pending_;
  std::set<std::string> used_;  // numbers of the tokens

  std::mutex mutex_;
  std::deque<PendingConnection> admitted_;  // guarded by mutex_
};

// socket_calls.cc defines the following functions. Its replacements of libc functions handle the
// sockets of listeners, and pass all other calls of the process on to libc.

// The next socket on which this thread listens belongs to `listener`, or to libc if that is null.
void SetNextListener(HandshakeListener* listener);
// Makes this process's connections to `peer` begin with a token, until Forget(user).
void SendTokens(const HandshakeListener* user, const ListenerAddress& peer,
                const std::string& secret);
void Forget(const HandshakeListener* listener);

// During its lifetime, this thread finds only `address` among the IP addresses of this host. UCX
// accepts an interface but not an address: it announces, listens at and connects from the first
// address that it finds on the interface, preferring IPv4.
class ShownAddress {
 public:
  explicit ShownAddress(const SocketAddress& address);
  ~ShownAddress();
  ShownAddress(const ShownAddress&) = delete;
};

}  // namespace agmm::transport
