// Worlds of two and three daemons: they form, lose members, and form again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <filesystem>
#include <string>

#include "agmm/v1/job.grpc.pb.h"
#include "agmm/v1/peer.grpc.pb.h"
#include "daemon/config/reachable.h"
#include "daemon/rpc/listen.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/reason.h"
#include "proto/channel/channel.h"
#include "proto/convert/grpc_call.h"
#include "tests/daemon/world_harness.h"
#include "tests/fuzz/valid_requests.h"
#include "tests/support/logged.h"
#include "tests/support/notification.h"

namespace agmm {
namespace {

using testing::AnyOf;
using testing::Contains;
using testing::HasSubstr;

TEST(World, TwoNodesFormAWorldInAnyOrder) {
  for (int first : {0, 1}) {
    SCOPED_TRACE(first);
    TestWorld world(2);
    ASSERT_TRUE(world.Start(first).ok());
    ASSERT_TRUE(world.Start(1 - first).ok());
    EXPECT_EQ(world.WaitReady(0), 1u);
    EXPECT_EQ(world.WaitReady(1), 1u);
  }
}

// A heartbeat before the hello used to be mistaken for a daemon with another secret.
TEST(World, ABusyDaemonSendsItsHelloBeforeHeartbeats) {
  failpoint::Arm("join.late_hello", 1);
  TestWorld world(2);
  ASSERT_TRUE(world.Start(0).ok());
  ASSERT_TRUE(world.Start(1).ok());
  EXPECT_EQ(world.WaitReady(0), 1u);
  EXPECT_EQ(failpoint::Hits("join.late_hello"), 1);  // another stream would hit it again
  failpoint::Disarm("join.late_hello");
}

TEST(World, StatusIsTheSameThroughEveryDaemon) {
  TestWorld world(2);
  ASSERT_TRUE(world.Start(0).ok());
  ASSERT_TRUE(world.Start(1).ok());
  world.WaitReady(0);
  for (int node : {0, 1}) {
    const v1::GetStatusResponse status = world.Status(node);
    EXPECT_EQ(status.answering_node(), node);
    EXPECT_EQ(status.sequencer_node(), 0);
    EXPECT_EQ(status.cluster(), "test");
    EXPECT_EQ(status.config_hash(), world.ConfigOf(0).hash);
    EXPECT_TRUE(status.insecure());
    ASSERT_EQ(status.nodes_size(), 2);
    for (const v1::NodeStatus& entry : status.nodes()) {
      EXPECT_EQ(entry.state(), v1::NodeStatus::STATE_READY);
      EXPECT_EQ(entry.incarnation().size(), 32u);
      ASSERT_EQ(entry.devices_size(), 1);
      EXPECT_EQ(entry.devices(0).rank(), entry.index());
      EXPECT_EQ(entry.devices(0).heap_bytes(), 16 << 20);
      EXPECT_EQ(entry.devices(0).heap_free_bytes(), 16 << 20);
      EXPECT_EQ(entry.devices(0).heap_largest_free_bytes(), 16 << 20);
    }
    double resident = 0;
    for (const v1::Metric& metric : status.metrics())
      if (metric.name() == "process_resident_bytes") resident = metric.value();
    EXPECT_GT(resident, 1 << 20);
  }
}

TEST(World, AnIncompleteWorldNamesTheMissingNodes) {
  TestWorld world(3);
  ASSERT_TRUE(world.Start(0).ok());
  ASSERT_TRUE(world.Start(2).ok());
  ASSERT_TRUE(Eventually(
      [&] { return world.Status(0).nodes(2).state() == v1::NodeStatus::STATE_JOINING; }));
  for (int node : {0, 2})
    EXPECT_THAT(world.WaitNotReady(node),
                HasSubstr("waiting for node b (" + world.Address(1) + ")"));
  auto request = Valid<v1::CreateTensorRequest>();
  request.clear_session_id();
  grpc::ClientContext context;
  v1::Tensor tensor;
  const absl::Status refused = FromGrpc(
      v1::TensorService::NewStub(world.Channel(2))->CreateTensor(&context, request, &tensor));
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_EQ(ReasonOf(refused), kReasonWorldIncomplete);
  ASSERT_TRUE(world.Start(1).ok());
  EXPECT_EQ(world.WaitReady(2), 1u);
}

TEST(World, LostMemberRaisesTheGenerationAndMayRejoin) {
  TestWorld world(3);
  for (int node : {0, 1, 2}) ASSERT_TRUE(world.Start(node).ok());
  const uint64_t first = world.WaitReady(1);
  world.Stop(2);
  EXPECT_THAT(world.WaitNotReady(0), HasSubstr("waiting for node c (" + world.Address(2) + ")"));
  EXPECT_THAT(world.WaitNotReady(1), HasSubstr("node c"));
  const uint64_t second = world.Status(0).generation();
  EXPECT_GT(second, first);
  ASSERT_TRUE(world.Start(2).ok());
  for (int node : {0, 1, 2}) EXPECT_GT(world.WaitReady(node), second);
}

TEST(World, LostSequencerIsRejoinedInAHigherGeneration) {
  TestWorld world(3);
  for (int node : {0, 1, 2}) ASSERT_TRUE(world.Start(node).ok());
  const uint64_t first = world.WaitReady(2);
  world.Stop(0);
  for (int node : {1, 2}) {
    EXPECT_THAT(world.WaitNotReady(node), HasSubstr("node a (" + world.Address(0) + ")"));
    EXPECT_EQ(world.Status(node).nodes(0).state(), v1::NodeStatus::STATE_MISSING);
  }
  ASSERT_TRUE(world.Start(0).ok());
  for (int node : {0, 1, 2}) EXPECT_GT(world.WaitReady(node), first);
}

TEST(World, IsNotReadyBeforeTheTransportHasEndedAllOlderConnections) {
  TestWorld world(2);
  for (int node : {0, 1}) ASSERT_TRUE(world.Start(node).ok());
  const uint64_t first = world.WaitReady(0);
  failpoint::Arm("transport.cannot_renew");
  world.Stop(1);
  ASSERT_TRUE(world.Start(1).ok());
  EXPECT_TRUE(Eventually([] { return failpoint::Hits("transport.cannot_renew") > 1; }));
  EXPECT_FALSE(world.Status(0).ready());
  failpoint::Disarm("transport.cannot_renew");
  EXPECT_GT(world.WaitReady(0), first) << "it was not tried again";
}

TEST(World, FormsAfterAFailedConnection) {
  TestWorld world(2);
  failpoint::Arm("transport.refuse_connect", 1);
  for (int node : {0, 1}) ASSERT_TRUE(world.Start(node).ok());
  EXPECT_GT(world.WaitReady(0), 1u);
  failpoint::Disarm("transport.refuse_connect");
}

TEST(World, DaemonOfAnotherConfigurationIsRefusedWithBothValues) {
  TestWorld world(2);
  ASSERT_TRUE(world.Start(0).ok());
  Notification refused;
  absl::Status why;
  ASSERT_TRUE(world
                  .Start(1, world.ConfigOf(1, "other"),
                         [&](absl::Status status) {
                           why = status;
                           refused.Notify();
                         })
                  .ok());
  ASSERT_TRUE(refused.WaitFor(kPatience));
  EXPECT_TRUE(absl::IsFailedPrecondition(why));
  EXPECT_THAT(std::string(why.message()),
              HasSubstr("world.cluster is other on node b and test on node a"));
  world.Stop(1);
}

TEST(World, AMemberOutlivesASequencerOfAnotherConfiguration) {
  TestWorld world(2);
  bool refused = false;
  ASSERT_TRUE(world.Start(0).ok());
  ASSERT_TRUE(world.Start(1, world.ConfigOf(1), [&](const absl::Status&) { refused = true; }).ok());
  const uint64_t first = world.WaitReady(1);
  world.Stop(0);
  Config wrong = world.ConfigOf(0);
  wrong.nodes[1].devices = 2;
  wrong.hash = "0123456789abcdef";
  ASSERT_TRUE(world.Start(0, wrong, [](absl::Status) {}).ok());
  for (const auto& [node, why] :
       {std::pair(1, "world.node[1].devices is 1 on node b and 2 on node a; make them"),
        std::pair(0, "which was refused: its world.node[1].devices is 1, mine is 2")}) {
    EXPECT_TRUE(Eventually([&] { return world.WaitNotReady(node).find(why) != std::string::npos; }))
        << why;
  }
  world.Stop(0);
  ASSERT_TRUE(world.Start(0).ok());
  EXPECT_GT(world.WaitReady(1, first), first);
  world.Stop(1);
  EXPECT_FALSE(refused);
}

TEST(World, ASecondDaemonOfANodeWaitsUntilTheFirstHasEnded) {
  TestWorld world(2);
  ASSERT_TRUE(world.Start(0).ok());
  ASSERT_TRUE(world.Start(1).ok());
  const uint64_t first = world.WaitReady(1);
  const HeldPorts port(1);
  Config config = world.ConfigOf(1);
  config.listen = absl::StrCat("127.0.0.1:", port[0]);
  Notification refused;
  const auto second = Daemon::Start(config, [&](absl::Status) { refused.Notify(); });
  ASSERT_TRUE(second.ok()) << second.status();
  const auto stub = v1::ClusterService::NewStub(OpenChannel(config.listen));
  v1::GetStatusResponse status;
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    return stub->GetStatus(&context, {}, &status).ok() &&
           status.reason().find("another daemon is node b of this world; stop one of the two") !=
               std::string::npos;
  })) << status.reason();
  EXPECT_EQ(world.WaitReady(0), first) << "the first one was disturbed";
  EXPECT_FALSE(refused.WaitFor(absl::ZeroDuration())) << "a hello ended a daemon";
  world.Stop(1);
  EXPECT_GT(world.WaitReady(0, first), first);
}

// A daemon that does not know the secret neither joins nor disturbs, and neither side ends.
TEST(World, ADaemonWithAnotherSecretStaysOut) {
  TestWorld world(2);
  ASSERT_TRUE(world.Start(0).ok());
  Config config = world.ConfigOf(1);
  config.secret = "another";
  Notification refused;
  ASSERT_TRUE(world.Start(1, config, [&](absl::Status) { refused.Notify(); }).ok());
  EXPECT_TRUE(Eventually([&] {
    return world.Status(1).reason().find("its secret differs; copy its local.secret file") !=
           std::string::npos;
  })) << world.Status(1).reason();
  EXPECT_THAT(world.Status(0).reason(), HasSubstr("waiting for node b"));
  EXPECT_FALSE(refused.WaitFor(absl::ZeroDuration()));
  world.Stop(1);
  ASSERT_TRUE(world.Start(1).ok());
  EXPECT_GT(world.WaitReady(1), 0u);
}

// Claims of strangers over TCP: they are ignored, and no daemon ends.
TEST(World, StrangersAreNotMembers) {
  TestWorld world(2);
  ASSERT_TRUE(world.Start(0).ok());
  ASSERT_TRUE(world.Start(1).ok());
  const uint64_t generation = world.WaitReady(0);
  const auto peers = v1::PeerService::NewStub(OpenChannel(world.PeerAddress()));
  {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    const auto stream = peers->Join(&context);
    v1::SequencerMessage from;
    ASSERT_TRUE(stream->Read(&from));
    EXPECT_EQ(from.challenge().size(), 16u);
    v1::MemberMessage hello;
    hello.mutable_hello()->set_node(1);
    hello.mutable_hello()->set_node_name("b");
    hello.mutable_hello()->set_incarnation(std::string(16, 'i'));
    hello.mutable_hello()->set_proof(std::string(32, 'p'));
    stream->Write(hello);
    ASSERT_TRUE(stream->Read(&from));
    EXPECT_EQ(from.refusal().field(), "local.secret");
    EXPECT_TRUE(from.proof().empty());
    EXPECT_FALSE(stream->Read(&from)) << "a stranger received more: " << from.ShortDebugString();
  }
  {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    v1::BeginLeaseRequest request;
    request.set_name("A");
    v1::BeginLeaseResponse response;
    const grpc::Status status = peers->BeginLease(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED) << status.error_message();
    // A daemon whose stream has just ended gets this answer, too.
    grpc::ClientContext again;
    again.set_deadline(context.deadline());
    again.AddMetadata("x-agmm-member", "let me in");
    const absl::Status former = FromGrpc(peers->BeginLease(&again, request, &response));
    EXPECT_EQ(former.code(), absl::StatusCode::kAborted) << former;
    EXPECT_EQ(ReasonOf(former), kReasonPeerLost);
  }
  {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    context.AddMetadata("x-agmm-principal", "uid:0");
    v1::CreateTensorRequest request;
    request.mutable_spec()->set_rows(8);
    request.mutable_spec()->set_cols(8);
    request.mutable_spec()->set_dtype(v1::DTYPE_F32);
    request.mutable_spec()->set_sharding("[M, K]");
    v1::MeshAxis* const axis = request.mutable_spec()->mutable_mesh()->add_axes();
    axis->set_name("x");
    axis->set_size(2);
    v1::Tensor response;
    const grpc::Status status =
        v1::TensorService::NewStub(world.Channel(0))->CreateTensor(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_THAT(response.owner(), ::testing::StartsWith("ipv4:127.0.0.1:"));
  }
  EXPECT_EQ(world.WaitReady(1), generation);
}

TEST(World, HostsMayHaveNames) {
  TestWorld world(2);
  for (int node : {0, 1}) {
    Config config = world.ConfigOf(node);
    config.transport_address = "localhost";
    ASSERT_TRUE(world.Start(node, config, [](absl::Status) {}).ok());
  }
  EXPECT_EQ(world.WaitReady(1), 1u);
  Config config = world.ConfigOf(0);
  config.transport_address = "no such host";
  const absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(config, [](absl::Status) {});
  EXPECT_THAT(std::string(daemon.status().message()), HasSubstr("no such host cannot be resolved"));
}

TEST(World, AddressInUseIsReportedAtStart) {
  TestWorld world(2);
  ASSERT_TRUE(world.Start(1).ok());
  const absl::StatusOr<std::unique_ptr<Daemon>> second =
      Daemon::Start(world.ConfigOf(1), [](absl::Status) {});
  EXPECT_TRUE(absl::IsAlreadyExists(second.status())) << second.status();
  EXPECT_THAT(
      std::string(second.status().message()),
      AllOf(HasSubstr(world.Address(1) + " is in use"), HasSubstr("an outgoing connection")));
}

TEST(World, AnAddressBehindNatIsRefusedWithAnAlternative) {
  TestWorld world(2);
  Config config = world.ConfigOf(1);
  config.listen = "192.0.2.1:7101";
  const absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(config, [](absl::Status) {});
  EXPECT_THAT(std::string(daemon.status().message()),
              AllOf(HasSubstr("192.0.2.1:7101 is not an address of this host"),
                    HasSubstr("local.listen"), HasSubstr("local.transport_address")));
}

TEST(World, ALoopbackAddressThatAnotherHostCannotReachIsRefusedAtStart) {
  TestWorld world(2);
  Config config = world.ConfigOf(0);
  config.nodes[1].address = "192.0.2.1:7101";
  for (const char* own : {"127.0.1.1", "localhost"}) {
    config.transport_address = own;
    const absl::Status refused = Daemon::Start(config, [](absl::Status) {}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr(std::string(own)), HasSubstr("is a loopback address on this host"),
                      HasSubstr("(192.0.2.1:7101) cannot reach"), HasSubstr("/etc/hosts")));
  }
}

TEST(World, AFirstNodeWithALoopbackAddressIsNamedWithIt) {
  TestWorld world(2);
  Config config = world.ConfigOf(1);
  EXPECT_EQ(LoopbackPeer(ResolveNodes(config)), "") << "both nodes are on this host";
  config.nodes[0].address = "localhost:7101";
  config.nodes[1].address = "192.0.2.1:7101";
  EXPECT_THAT(LoopbackPeer(ResolveNodes(config)),
              AllOf(HasSubstr("node a's address, localhost:7101 ("), HasSubstr("127.0.0.1"),
                    HasSubstr("is a loopback address on this host"), HasSubstr("/etc/hosts")));
  config.self = 0;
  EXPECT_EQ(LoopbackPeer(ResolveNodes(config)), "") << "CheckReachable refuses it there";
}

TEST(World, NamesAreShownWithTheAddressesThatTheyResolveTo) {
  Logged logged;
  TestWorld world(2);
  const auto named = [](const std::string& address) {
    return absl::StrCat("localhost", address.substr(address.rfind(':')));
  };
  const std::string peers = named(world.PeerAddress());
  for (int node : {0, 1}) {
    Config config = world.ConfigOf(node);
    for (NodeConfig& of : config.nodes) of.address = named(of.address);
    config.listen = config.node().address;
    config.peer_address = peers;
    if (node == 0) config.listen_peers = peers;
    ASSERT_TRUE(world.Start(node, config, [](absl::Status) {}).ok());
  }
  world.WaitReady(0);
  const v1::GetStatusResponse status = world.Status(1);
  for (int node : {0, 1}) {
    EXPECT_EQ(status.nodes(node).address(), named(world.Address(node)));
    EXPECT_THAT(status.nodes(node).ip_addresses(), Contains("127.0.0.1"));
  }
  for (int node : {0, 1}) world.Stop(node);
  for (const std::string& line :
       {absl::StrCat("listening on ", named(world.Address(0))),
        absl::StrCat("listening on ", named(world.Address(1))),
        absl::StrCat("the other daemons join at ", peers),
        absl::StrCat("joining the world of node a (", named(world.Address(0)), ") at ", peers)})
    EXPECT_THAT(logged.text(), AnyOf(HasSubstr(line + " (127.0.0.1"), HasSubstr(line + " (::1")));
}

class SocketWorld : public testing::Test {
 protected:
  SocketWorld() {
    char directory[] = "/tmp/agmm-world-XXXXXX";
    EXPECT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
    config_ = DefaultConfigFor(1, int64_t{64} << 20, directory_ + "/sub/x.sock");
    config_.machines = kNoJournal;
  }
  ~SocketWorld() override { std::filesystem::remove_all(directory_); }
  v1::GetStatusResponse Status() const {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(ToGrpc(Deadline::After(kPatience)));
    v1::GetStatusResponse status;
    auto stub = v1::ClusterService::NewStub(OpenChannel("unix:" + config_.socket));
    const grpc::Status result = stub->GetStatus(&context, {}, &status);
    EXPECT_TRUE(result.ok()) << result.error_message();
    return status;
  }
  std::string directory_;
  Config config_;
};

TEST_F(SocketWorld, OfOneNodeIsReadyAndDoesNotListenOnTcp) {
  absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(config_, [](absl::Status) {});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  EXPECT_EQ((*daemon)->port(), 0);
  EXPECT_TRUE(Eventually([&] { return Status().ready(); }));
  EXPECT_FALSE(Status().insecure());
  struct stat info;
  ASSERT_EQ(stat(config_.socket.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(stat((directory_ + "/sub").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  // Its jobs are kept, although their folder did not exist.
  EXPECT_EQ(stat((config_.socket + ".jobs.0").c_str(), &info), 0);
}

TEST_F(SocketWorld, ALockIsWaitedForInCaseItsProcessIsEnding) {
  const auto take = [this](absl::Duration patience,
                           const std::function<void(const absl::Status&)>& waiting) {
    return SocketLock::Take(config_.socket, patience, waiting);
  };
  auto dying = take(absl::ZeroDuration(), [](const absl::Status&) {});
  ASSERT_TRUE(dying.ok()) << dying.status();
  int told = 0;
  const auto next = take(kPatience, [&](const absl::Status& in_use) {
    ++told;
    EXPECT_THAT(std::string(in_use.message()), HasSubstr(absl::StrCat("in use by pid ", getpid())));
    dying->reset();
  });
  EXPECT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(told, 1);
  // A live daemon is reported as before.
  EXPECT_TRUE(
      absl::IsAlreadyExists(take(absl::Milliseconds(1), [](const absl::Status&) {}).status()));
}

TEST_F(SocketWorld, OnlyADeadSocketIsReplaced) {
  absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(config_, [](absl::Status) {});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const absl::StatusOr<std::unique_ptr<Daemon>> second =
      Daemon::Start(config_, [](absl::Status) {});
  EXPECT_TRUE(absl::IsAlreadyExists(second.status())) << second.status();
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat("in use by pid ", getpid())));
  daemon->reset();
  // A killed process leaves the socket, but no listener.
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  config_.socket.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  close(fd);
  daemon = Daemon::Start(config_, [](absl::Status) {});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  EXPECT_TRUE(Eventually([&] { return Status().ready(); }));
}

}  // namespace
}  // namespace agmm
