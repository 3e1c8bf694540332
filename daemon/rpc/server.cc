#include "daemon/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "daemon/link/protocol.h"
#include "daemon/rpc/answer_bound.h"
#include "daemon/rpc/call_counter.h"
#include "daemon/rpc/caller_check.h"
#include "kernels/base/status.h"
#include "proto/convert/grpc_deadline.h"

namespace agmm {
namespace {
// Threads for the services that are not callbacks (reflection).
constexpr int kMaxThreads = 8;
// Grace period for calls to end on their own when the server stops.
constexpr absl::Duration kGrace = absl::Milliseconds(200);
// Wait for a killed daemon, which frees its heaps before its lock.
constexpr absl::Duration kLockPatience = absl::Seconds(2);
// Memory for calls in progress; beyond it gRPC reads less, and then ends calls.
constexpr size_t kQuotaBytes = size_t{1} << 30;
// The bound on calls of one connection; further calls wait until one ends. It is high because a
// client may watch thousands of jobs, and the other daemons relay the calls of all their clients on
// one connection.
constexpr int kMaxStreams = 4'000;
// Time for a client to speak HTTP/2 after it has connected.
constexpr int kHandshakeTimeoutMs = 5'000;

// A connection takes two descriptors, and a daemon has up to three listeners, so half of all
// descriptors remain for other purposes.
size_t ConnectionBound() {
  constexpr size_t kMost = 4096;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return std::min<size_t>(kMost, limit.rlim_cur / 12);
}
}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(
    const Listening& listening, Metrics* metrics, const MemberTokens* members,
    const std::vector<grpc::Service*>& services) {
  const std::string &tcp = listening.tcp, &socket = listening.socket;
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  std::unique_ptr<RpcServer> server(new RpcServer);
  std::vector<std::vector<int>> listeners;
  absl::Cleanup close_listeners = [&listeners] {
    for (const std::vector<int>& some : listeners)
      for (int fd : some) close(fd);
  };
  // The lock comes first, because a dying process that held it has also left the port once it is
  // free.
  if (!socket.empty()) {
    AGMM_ASSIGN_OR_RETURN(
        server->lock_, SocketLock::Take(socket, kLockPatience, [](const absl::Status& in_use) {
          spdlog::info("waiting up to {} for the socket: {}", absl::FormatDuration(kLockPatience),
                       std::string(in_use.message()));
        }));
    AGMM_ASSIGN_OR_RETURN(const int listener, ListenUnix(socket));
    listeners.push_back({listener});
    server->socket_ = socket;
  }
  if (!tcp.empty()) {
    AGMM_ASSIGN_OR_RETURN(std::vector<int> some, ListenTcp(tcp, &server->port_));
    server->ips_ = BoundIps(some);
    listeners.push_back(std::move(some));
  }
  grpc::ServerBuilder builder;
  std::vector<std::unique_ptr<Acceptor::Server>> entries;
  for (size_t i = 0; i < listeners.size(); ++i) {
    entries.push_back(builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        grpc::InsecureServerCredentials()));
  }
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  grpc::ResourceQuota quota("agmmd");
  quota.SetMaxThreads(kMaxThreads);
  quota.Resize(kQuotaBytes);
  builder.SetResourceQuota(quota);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(MakeCallerCheck(members));
  interceptors.push_back(MakeCallCounter(metrics));
  interceptors.push_back(MakeAnswerBound(metrics, listening.unread_answer_bytes));
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::move(close_listeners).Cancel();
  for (size_t i = 0; i < listeners.size(); ++i) {
    server->acceptors_.push_back(std::make_unique<Acceptor>(
        std::move(listeners[i]),
        Acceptor::Bounds{ConnectionBound(), listening.members_only, listening.host},
        std::move(entries[i]), metrics));
  }
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr)
    return absl::ResourceExhaustedError("gRPC cannot start a server; see the line above");
  server->SetServing(false);
  return server;
}

absl::Status RpcServer::Open() {
  for (const auto& acceptor : acceptors_) AGMM_RETURN_IF_ERROR(acceptor->Start());
  return absl::OkStatus();
}

RpcServer::~RpcServer() { Stop(); }

void RpcServer::Stop() {
  for (const auto& acceptor : acceptors_) acceptor->Stop();
  if (!socket_.empty()) unlink(socket_.c_str());
  if (server_ == nullptr) return;
  server_->Shutdown(ToGrpc(Deadline::After(kGrace)));
  server_->Wait();
}

void RpcServer::SetServing(bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(serving);
}

}  // namespace agmm
