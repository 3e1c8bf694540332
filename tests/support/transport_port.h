// The port of a transport that a test has created directly.
#pragma once

#include <cstdlib>
#include <future>
#include <iostream>

#include "daemon/transport/ucx_transport.h"

namespace agmm {

// Renews the transport and waits until that has finished. Must not be called while a lent thread
// drives the transport.
inline TransportPort Renewed(UcxTransport& transport) {
  std::promise<absl::StatusOr<TransportPort>> promise;
  transport.Renew([&](absl::StatusOr<TransportPort> port) { promise.set_value(std::move(port)); });
  absl::StatusOr<TransportPort> port = promise.get_future().get();
  if (port.ok()) return *std::move(port);
  std::cerr << port.status() << "\n";
  std::abort();
}

}  // namespace agmm
