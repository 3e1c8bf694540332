// Worlds of two and three daemons: they form, lose members, and form again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <string>

#include "agmm/v1/job.grpc.pb.h"
#include "daemon/rpc/listen.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/reason.h"
#include "proto/channel/channel.h"
#include "proto/convert/grpc_deadline.h"
#include "proto/convert/grpc_status.h"
#include "tests/daemon/world_harness.h"
#include "tests/fuzz/valid_requests.h"
#include "tests/support/notification.h"

namespace agmm {
namespace {

using testing::HasSubstr;

TEST(World, OfTwoFormsWhoeverComesFirst) {
  for (int first : {0, 1}) {
    SCOPED_TRACE(first);
    TestWorld world(2);
    ASSERT_TRUE(world.Start(first).ok());
    ASSERT_TRUE(world.Start(1 - first).ok());
    EXPECT_EQ(world.WaitReady(0), 1u);
    EXPECT_EQ(world.WaitReady(1), 1u);
  }
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

TEST(World, IncompleteOneNamesWhoIsMissing) {
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

TEST(World, LostMemberRaisesTheGenerationAndMayComeBack) {
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

TEST(World, IsNotReadyWhileSomethingOfAnOlderGenerationStillArrives) {
  TestWorld world(2);
  for (int node : {0, 1}) ASSERT_TRUE(world.Start(node).ok());
  const uint64_t first = world.WaitReady(0);
  failpoint::Arm("transport.receiving");
  world.Stop(1);
  ASSERT_TRUE(world.Start(1).ok());
  const auto joining = [&] {
    const v1::GetStatusResponse status = world.Status(0);
    return status.nodes(0).state() == v1::NodeStatus::STATE_JOINING &&
           status.nodes(1).state() == v1::NodeStatus::STATE_JOINING;
  };
  EXPECT_TRUE(Eventually([] { return failpoint::Hits("transport.receiving") > 0; }));
  EXPECT_TRUE(Eventually(joining));
  for (int round = 0; round < 20; ++round) EXPECT_TRUE(joining()) << round;
  failpoint::Disarm("transport.receiving");
  world.Stop(1);
  ASSERT_TRUE(world.Start(1).ok());
  EXPECT_GT(world.WaitReady(0), first);
}

TEST(World, ComesTogetherAfterAConnectionThatCouldNotBeMade) {
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

TEST(World, AMemberWhosePlaceIsTakenEnds) {
  TestWorld world(2);
  Notification refused;
  absl::Status why;
  ASSERT_TRUE(world.Start(0).ok());
  ASSERT_TRUE(world
                  .Start(1, world.ConfigOf(1),
                         [&](absl::Status status) {
                           why = status;
                           refused.Notify();
                         })
                  .ok());
  const uint64_t first = world.WaitReady(1);
  const HeldPorts port(1);
  Config config = world.ConfigOf(1);
  config.listen = absl::StrCat("127.0.0.1:", port[0]);
  const auto second = Daemon::Start(config, [](absl::Status) {});
  ASSERT_TRUE(second.ok()) << second.status();
  ASSERT_TRUE(refused.WaitFor(kPatience));
  EXPECT_THAT(std::string(why.message()), HasSubstr("another daemon has joined as node b"));
  world.Stop(1);
  EXPECT_GT(world.WaitReady(0, first), first);
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

TEST(World, AddressInUseIsSaidAtStart) {
  TestWorld world(2);
  ASSERT_TRUE(world.Start(1).ok());
  const absl::StatusOr<std::unique_ptr<Daemon>> second =
      Daemon::Start(world.ConfigOf(1), [](absl::Status) {});
  EXPECT_TRUE(absl::IsAlreadyExists(second.status())) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(world.Address(1) + " is in use"));
}

class SocketWorld : public testing::Test {
 protected:
  SocketWorld() {
    char directory[] = "/tmp/agmm-world-XXXXXX";
    EXPECT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
    config_ = DefaultConfigFor(1, int64_t{64} << 20, directory_ + "/sub/x.sock");
  }
  ~SocketWorld() override {
    for (const char* name : {"/sub/x.sock", "/sub/x.sock.lock"})
      unlink((directory_ + name).c_str());
    rmdir((directory_ + "/sub").c_str());
    rmdir(directory_.c_str());
  }
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

TEST_F(SocketWorld, OfOneIsReadyAndNotOnTcp) {
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
  // One that lives on is told as before.
  EXPECT_TRUE(
      absl::IsAlreadyExists(take(absl::Milliseconds(1), [](const absl::Status&) {}).status()));
}

TEST_F(SocketWorld, LiveSocketIsNotTakenAndADeadOneIs) {
  absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(config_, [](absl::Status) {});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const absl::StatusOr<std::unique_ptr<Daemon>> second =
      Daemon::Start(config_, [](absl::Status) {});
  EXPECT_TRUE(absl::IsAlreadyExists(second.status())) << second.status();
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat("in use by pid ", getpid())));
  daemon->reset();
  // What a killed process leaves: the socket, but nobody behind it.
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
