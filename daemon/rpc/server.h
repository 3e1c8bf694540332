// A gRPC server of a daemon.
#pragma once

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/observe/metrics.h"
#include "daemon/rpc/acceptor.h"
#include "daemon/rpc/answer_bound.h"
#include "daemon/rpc/caller_check.h"
#include "daemon/rpc/listen.h"

namespace agmm {

class RpcServer {
 public:
  struct Listening {
    std::string tcp;            // host:port, or empty
    std::string socket;         // a path, or empty
    bool members_only = false;  // see Acceptor
    Acceptor::HostBounds host = {};
    int64_t unread_answer_bytes = kUnreadAnswerBytes;
  };
  // Binds the addresses; connections wait until Open. `members` are the daemons whose calls may
  // name another principal. The pointers must outlive the server. Errors: ALREADY_EXISTS if an
  // address is in use; INVALID_ARGUMENT; RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(
      const Listening& listening, Metrics* metrics, const MemberTokens* members,
      const std::vector<grpc::Service*>& services);
  // Accepts connections from now on. Errors: RESOURCE_EXHAUSTED.
  absl::Status Open();
  ~RpcServer();
  // Ends all calls, which fails them with UNAVAILABLE, and waits for their ends. Idempotent.
  void Stop();

  // Returns the bound TCP port, or 0.
  int port() const { return port_; }
  // Returns the IP addresses to which it is bound.
  const std::vector<std::string>& ips() const { return ips_; }
  // See Acceptor.
  bool Trust(const std::string& peer) {
    return std::count_if(acceptors_.begin(), acceptors_.end(),
                         [&](const auto& acceptor) { return acceptor->Trust(peer); }) > 0;
  }
  // See Acceptor.
  void SetStrained(bool strained) {
    for (const auto& acceptor : acceptors_) acceptor->SetStrained(strained);
  }
  // Sets the answer of the health service.
  void SetServing(bool serving);

 private:
  RpcServer() = default;
  // Takes the lock of the unix socket, and appends the listening sockets of each address.
  absl::Status Listen(const Listening& listening, std::vector<std::vector<int>>* listeners);

  // One for TCP and one for the unix socket, so that TCP connections cannot use up the unix
  // socket's.
  std::vector<std::unique_ptr<Acceptor>> acceptors_;
  std::unique_ptr<SocketLock> lock_;
  std::string socket_;  // to be removed at the end
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  std::vector<std::string> ips_;
};

}  // namespace agmm
