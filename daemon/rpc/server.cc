#include "daemon/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/link/protocol.h"
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
// Wait for a daemon that was killed: it frees its heaps before its lock.
constexpr absl::Duration kLockPatience = absl::Seconds(2);
}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(
    const std::string& tcp, const std::string& socket, Metrics* metrics,
    const MemberTokens* members, const std::vector<grpc::Service*>& services) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  std::unique_ptr<RpcServer> server(new RpcServer);
  grpc::ServerBuilder builder;
  // The lock comes first, because a dying process that held it has also left the port once it is
  // free.
  if (!socket.empty()) {
    AGMM_ASSIGN_OR_RETURN(
        server->lock_, SocketLock::Take(socket, kLockPatience, [](const absl::Status& in_use) {
          spdlog::info("waiting up to {} for that process to end: {}",
                       absl::FormatDuration(kLockPatience), std::string(in_use.message()));
        }));
    builder.AddListeningPort(absl::StrCat("unix:", socket), grpc::InsecureServerCredentials());
  }
  if (!tcp.empty()) {
    AGMM_RETURN_IF_ERROR(CheckTcpAddress(tcp));
    builder.AddListeningPort(tcp, grpc::InsecureServerCredentials(), &server->port_);
  }
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  grpc::ResourceQuota quota("agmmd");
  quota.SetMaxThreads(kMaxThreads);
  builder.SetResourceQuota(quota);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  // Otherwise a second daemon on the same port would get half of the connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(MakeCallerCheck(members));
  interceptors.push_back(MakeCallCounter(metrics));
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  for (grpc::Service* service : services) builder.RegisterService(service);

  // The socket must never be open to other users, not even before a chmod.
  const mode_t mask = umask(0177);
  server->server_ = builder.BuildAndStart();
  umask(mask);
  if (server->server_ == nullptr) {
    return absl::AlreadyExistsError(
        absl::StrFormat("%s%s%s cannot be listened on; is another daemon there?", tcp,
                        tcp.empty() || socket.empty() ? "" : " or ", socket));
  }
  server->SetServing(false);
  return server;
}

RpcServer::~RpcServer() { Stop(); }

void RpcServer::Stop() {
  if (server_ == nullptr) return;
  server_->Shutdown(ToGrpc(Deadline::After(kGrace)));
  server_->Wait();
}

void RpcServer::SetServing(bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(serving);
}

}  // namespace agmm
