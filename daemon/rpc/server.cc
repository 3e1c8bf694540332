#include "daemon/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "daemon/link/grpc_context.h"
#include "daemon/link/protocol.h"
#include "kernels/base/status.h"
#include "proto/convert/grpc_call.h"

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

// Counts a call in rpcs_total, and in rpcs_failed_total if it fails and its client has not ended
// it. Logs failures at debug.
class CountingInterceptor final : public grpc::experimental::Interceptor {
 public:
  CountingInterceptor(grpc::experimental::ServerRpcInfo* info, Metrics::Counter* total,
                      Metrics::Counter* failed)
      : context_(info->server_context()), method_(info->method()), failed_(failed) {
    total->Add();
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const grpc::Status status = methods->GetSendStatus();
      if (!status.ok()) {
        cancelled_ = status.error_code() == grpc::StatusCode::CANCELLED;
        if (!cancelled_) failed_->Add();
        spdlog::debug("call {} request {} from {}: code {}: {}", method_,
                      MetadataOf(*context_, kRequestIdKey), context_->peer(),
                      static_cast<int>(status.error_code()), status.error_message());
      }
    }
    // Called after the status was sent; IsCancelled shows if the client left before that.
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_CLOSE) &&
        cancelled_ && !context_->IsCancelled()) {
      failed_->Add();
    }
    methods->Proceed();
  }

 private:
  grpc::ServerContextBase* const context_;
  const char* const method_;
  Metrics::Counter* const failed_;
  std::atomic<bool> cancelled_ = false;  // the status says so
};

class CallCounter final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit CallCounter(Metrics* metrics)
      : total_(metrics->counter("rpcs_total")), failed_(metrics->counter("rpcs_failed_total")) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    return new CountingInterceptor(info, total_, failed_);
  }

 private:
  Metrics::Counter* const total_;
  Metrics::Counter* const failed_;
};

void SetBounds(grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder->SetMaxSendMessageSize(kMaxMessageBytes);
  grpc::ResourceQuota quota("agmmd");
  quota.SetMaxThreads(kMaxThreads);
  quota.Resize(kQuotaBytes);
  builder->SetResourceQuota(quota);
  builder->SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  const std::pair<const char*, int> arguments[] = {
      {GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams},
      {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs},
      {GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs},
      {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs},
      {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
      {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingIntervalMs},
      {GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0}};
  for (const auto& [name, value] : arguments) builder->AddChannelArgument(name, value);
}

}  // namespace

absl::Status RpcServer::Listen(const Listening& listening,
                               std::vector<std::vector<int>>* listeners) {
  // The lock comes first, because a dying process that held it has also left the port once it is
  // free.
  if (!listening.socket.empty()) {
    AGMM_ASSIGN_OR_RETURN(
        lock_, SocketLock::Take(listening.socket, kLockPatience, [](const absl::Status& in_use) {
          spdlog::info("waiting up to {} for the socket: {}", absl::FormatDuration(kLockPatience),
                       std::string(in_use.message()));
        }));
    AGMM_ASSIGN_OR_RETURN(const int listener, ListenUnix(listening.socket));
    listeners->push_back({listener});
    socket_ = listening.socket;
  }
  if (!listening.tcp.empty()) {
    AGMM_ASSIGN_OR_RETURN(std::vector<int> some, ListenTcp(listening.tcp, &port_));
    ips_ = BoundIps(some);
    listeners->push_back(std::move(some));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(
    const Listening& listening, Metrics* metrics, const MemberTokens* members,
    const std::vector<grpc::Service*>& services) {
  std::unique_ptr<RpcServer> server(new RpcServer);
  std::vector<std::vector<int>> listeners;
  absl::Cleanup close_listeners = [&listeners] {
    for (const std::vector<int>& some : listeners)
      for (int fd : some) close(fd);
  };
  AGMM_RETURN_IF_ERROR(server->Listen(listening, &listeners));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetBounds(&builder);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(MakeCallerCheck(members));
  interceptors.push_back(std::make_unique<CallCounter>(metrics));
  interceptors.push_back(MakeAnswerBound(metrics, listening.unread_answer_bytes));
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::move(close_listeners).Cancel();
  for (std::vector<int>& some : listeners) {
    server->acceptors_.push_back(std::make_unique<Acceptor>(
        std::move(some),
        Acceptor::Bounds{ConnectionBound(), listening.members_only, listening.host},
        builder.experimental().AddExternalConnectionAcceptor(
            grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
            grpc::InsecureServerCredentials()),
        metrics));
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
