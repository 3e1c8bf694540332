// The bound on a server's connections, and the connections that it closes.
#include "daemon/rpc/acceptor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "agmm/v1/job.grpc.pb.h"
#include "daemon/rpc/server.h"
#include "proto/channel/channel.h"
#include "proto/convert/grpc_call.h"
#include "tests/support/call_flood.h"
#include "tests/support/logged.h"
#include "tests/support/patience.h"
#include "tests/support/temp_folder.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

class PeerJobs final : public v1::JobService::CallbackService {
 public:
  explicit PeerJobs(std::vector<std::string>* peers) : peers_(peers) {}
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context, const v1::GetJobRequest*,
                                   v1::Job*) override {
    peers_->push_back(context->peer());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  std::vector<std::string>* const peers_;  // one call at a time
};

class AcceptorTest : public ::testing::Test {
 protected:
  void Start(const std::string& tcp, const std::string& socket = "",
             const Acceptor::HostBounds& host = {}) {
    auto server = RpcServer::Start({.tcp = tcp, .socket = socket, .host = host}, &metrics_,
                                   &members_, {&jobs_});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    ASSERT_TRUE(server_->Open().ok());
  }
  bool Answers(const std::string& endpoint) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(ToGrpc(Deadline::After(kPatience)));
    v1::Job job;
    return v1::JobService::NewStub(OpenChannel(endpoint))->GetJob(&context, {}, &job).ok();
  }
  double Count(const std::string& name) { return metrics_.counter(name)->value(); }

  Metrics metrics_;
  MemberTokens members_;
  std::vector<std::string> peers_;
  PeerJobs jobs_{&peers_};
  const TempFolder folder_{"acceptor"};
  std::unique_ptr<RpcServer> server_;
};

TEST_F(AcceptorTest, ServesBothFamiliesAndUnixSockets) {
  Start("[::]:0", folder_ / "socket");
  const std::string port = std::to_string(server_->port());
  EXPECT_TRUE(Answers("127.0.0.1:" + port));
  EXPECT_TRUE(Answers("[::1]:" + port));
  EXPECT_TRUE(Answers("unix:" + (folder_ / "socket")));
  ASSERT_EQ(peers_.size(), 3u);
  EXPECT_EQ(peers_[0].rfind("ipv4:127.0.0.1:", 0), 0u) << peers_[0];
  EXPECT_EQ(peers_[2].rfind("unix:", 0), 0u) << peers_[2];
  server_->Stop();
  EXPECT_NE(access((folder_ / "socket").c_str(), F_OK), 0) << "the socket is left behind";
}

TEST_F(AcceptorTest, APortInUseIsNamed) {
  Start("127.0.0.1:0");
  const std::string address = "127.0.0.1:" + std::to_string(server_->port());
  const auto second = RpcServer::Start({address}, &metrics_, &members_, {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(second.status().message().find(address), std::string::npos) << second.status();
}

// A flood loses its connections, and cannot connect again; once it has ended, its host can.
TEST_F(AcceptorTest, AFloodedConnectionIsClosedAndItsHostIsServedLater) {
  const Logged log;
  Start("127.0.0.1:0", folder_ / "socket", {.control = 400});
  // Even the slowest machine reads more resets than are then allowed.
  server_->SetStrained(true);
  const std::string address = "127.0.0.1:" + std::to_string(server_->port());
  {
    const CallFlood flood(address);
    EXPECT_TRUE(Eventually([&] { return Count("rpc_connections_broken_total") >= 2; }));
    EXPECT_TRUE(Eventually([&] { return Count("rpc_connections_refused_total") >= 2; }));
    EXPECT_TRUE(Answers("unix:" + (folder_ / "socket")));
  }
  EXPECT_TRUE(Answers(address));
  server_->Stop();
  EXPECT_THAT(log.text(), HasSubstr("broke the connection of ipv4:127.0.0.1:"));
  EXPECT_THAT(log.text(), HasSubstr("refused a connection: ipv4:127.0.0.1:"));
}

// gRPC names the peers of each family differently. frame_meter_test shows what trust changes.
TEST_F(AcceptorTest, FindsTheConnectionToTrustByThePeersName) {
  for (const auto& [listen, host] : std::vector<std::pair<std::string, std::string>>{
           {"127.0.0.1:0", "127.0.0.1"}, {"[::]:0", "127.0.0.1"}, {"[::]:0", "[::1]"}}) {
    Start(listen);
    const auto channel = OpenChannel(host + ":" + std::to_string(server_->port()));
    const auto stub = v1::JobService::NewStub(channel);
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(ToGrpc(Deadline::After(kPatience)));
    v1::Job job;
    ASSERT_TRUE(stub->GetJob(&context, {}, &job).ok());
    EXPECT_TRUE(server_->Trust(peers_.back())) << peers_.back();
    EXPECT_FALSE(server_->Trust(peers_.back() + "0"));
    server_->Stop();
  }
}

}  // namespace
}  // namespace agmm
