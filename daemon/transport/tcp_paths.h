// The kernel's counters for the TCP connections between this node and the others.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "kernels/base/socket_address.h"

namespace agmm::transport {

// The sum over all connections to one node.
struct TcpUse {
  int64_t acked_bytes = 0;    // acknowledged by the other host since the connections began
  int64_t waiting_bytes = 0;  // given to the kernel and not acknowledged
  int64_t silent_ms = 0;      // time since the last acknowledgement, while bytes wait for one
};

// Thread-safe.
class TcpPaths {
 public:
  // From now on the other nodes connect to `port`. Forgets all nodes.
  void Reset(int port);
  // `listener` is the address at which this node connects to `node`.
  void Add(int node, const SocketAddress& listener);
  // Scans the descriptors of the process, which takes about a millisecond. A node has no entry if
  // it has no connection, or if its connections cannot be distinguished from another node's because
  // both share an address.
  std::map<int, TcpUse> Uses() const;

 private:
  mutable std::mutex mutex_;  // guards all below
  int port_ = 0;
  std::map<int, SocketAddress> listeners_;  // by node
};

}  // namespace agmm::transport
