// The gRPC server of a daemon.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/observe/metrics.h"
#include "daemon/rpc/caller_check.h"
#include "daemon/rpc/listen.h"

namespace agmm {

class RpcServer {
 public:
  // `tcp` host:port or empty, `socket` a path or empty. `members`: whose calls may name another
  // principal. All arguments outlive the server.
  // Errors: ALREADY_EXISTS when an address is in use.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(
      const std::string& tcp, const std::string& socket, Metrics* metrics,
      const MemberTokens* members, const std::vector<grpc::Service*>& services);
  ~RpcServer();
  // Ends all calls, which fails them with UNAVAILABLE, and waits for their ends. Idempotent.
  void Stop();

  // Returns the bound TCP port, or 0.
  int port() const { return port_; }
  // Sets the answer of the health service.
  void SetServing(bool serving);

 private:
  RpcServer() = default;
  std::unique_ptr<SocketLock> lock_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace agmm
