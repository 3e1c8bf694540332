// Floods of calls and of connections: the daemons keep their peers, stay within their memory, and
// answer.
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/agmm.h"
#include "client/connect/connection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/usage.h"
#include "tests/e2e/world.h"
#include "tests/support/call_flood.h"
#include "tests/support/matrix.h"
#include "tests/support/memory_limit.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kFlood = absl::Seconds(4);

class Flood : public ::testing::Test {
 protected:
  void Start(WorldOptions options) {
    world_ = std::make_unique<World>(std::move(options));
    ASSERT_NO_FATAL_FAILURE(world_->StartAll());
    generation_ = world_->Status(0).generation();
  }
  std::string Log(int node) const { return world_->daemon(node).err(); }
  // Checks that the world has not changed, and multiplies.
  void ExpectHealthy() {
    for (int node = 0; node < 3; ++node) {
      EXPECT_THAT(Log(node), Not(HasSubstr(" was lost"))) << "node " << node;
      // Right after a flood, a client may still be refused. The nodes must also receive each
      // other's UDP heartbeats.
      EXPECT_TRUE(world_->WaitFor(node, "the same world, and UDP heartbeats",
                                  [&](const v1::GetStatusResponse& status) {
                                    return status.ready() && status.generation() == generation_ &&
                                           MetricOf(status, "udp_heartbeats_received_total") > 0;
                                  }));
    }
    WriteNpy(world_->Path("A.npy"), SmallIntegers(64, 32, 1));
    WriteNpy(world_->Path("B.npy"), SmallIntegers(32, 48, 2));
    const Ran ran = world_->Ctl(1, {"matmul", world_->Path("A.npy"), world_->Path("B.npy"), "--out",
                                    world_->Path("C.npy")});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
  }

  std::unique_ptr<World> world_;
  uint64_t generation_ = 0;
};

TEST_F(Flood, ResetCallsLoseNeitherANodeNorMemory) {
  if (kSanitized) GTEST_SKIP() << "sanitized daemons are so slow that a flood waits for them";
  ASSERT_NO_FATAL_FAILURE(Start({.nodes = 3}));
  using Kind = CallFlood::Kind;
  const std::pair<std::string, Kind> kinds[] = {
      {world_->address(0), Kind::kReset},
      {world_->address(0), Kind::kLeave},
      {world_->address(1), Kind::kReset},
      {world_->socket(0), Kind::kReset},
      // Strangers, at the port where daemons join.
      {absl::StrCat("127.0.0.1:", world_->peer_port()), Kind::kReset}};
  const int64_t before_kib = ProcessField(world_->daemon(0).pid(), "VmRSS");
  {
    std::vector<std::unique_ptr<CallFlood>> floods;
    for (const auto& [endpoint, kind] : kinds)
      floods.push_back(std::make_unique<CallFlood>(endpoint, kind));
    absl::SleepFor(kFlood);
    EXPECT_TRUE(Eventually([&] {
      return std::all_of(floods.begin(), floods.end(),
                         [](const auto& flood) { return flood->ended() > 1; });
    }));
  }
  ExpectHealthy();
  EXPECT_TRUE(world_->WaitFor(0, "broken connections", [](const v1::GetStatusResponse& status) {
    return MetricOf(status, "rpc_connections_broken_total") > 0;
  }));
  EXPECT_THAT(Log(0), HasSubstr("broke the connection of ipv4:127.0.0.1:"));
  EXPECT_TRUE(Eventually([&] {
    return ProcessField(world_->daemon(0).pid(), "VmRSS") < before_kib + (350 << 10);
  })) << "node 0 had "
      << before_kib << " KiB, and has " << ProcessField(world_->daemon(0).pid(), "VmRSS");
  EXPECT_LT(ProcessField(world_->daemon(0).pid(), "VmHWM"), before_kib + (1 << 20));
}

// Without bounds, 14 MiB of fields are enough to take 2 GiB.
TEST_F(Flood, HeadersWithoutEndLoseNoNodeWithin768MiB) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more memory";
  ASSERT_NO_FATAL_FAILURE(Start({.nodes = 3, .hosts = {3, {WithinMemory(768), "127.0.0.1"}}}));
  using Kind = CallFlood::Kind;
  for (const Kind kind : {Kind::kHeaders, Kind::kFields, Kind::kContinuation}) {
    SCOPED_TRACE(static_cast<int>(kind));
    double broken = MetricOf(world_->Status(0), "rpc_connections_broken_total");
    for (const std::string& endpoint :
         {world_->address(0), world_->socket(0), absl::StrCat("127.0.0.1:", world_->peer_port())}) {
      const CallFlood flood(endpoint, kind);
      EXPECT_TRUE(Eventually([&] { return flood.ended() > 2; })) << endpoint;
    }
    EXPECT_TRUE(world_->WaitFor(0, "broken connections", [&](const v1::GetStatusResponse& status) {
      return MetricOf(status, "rpc_connections_broken_total") >= broken + 3;
    }));
  }
  EXPECT_THAT(Log(0), HasSubstr("the headers of a call have "));
  ExpectHealthy();
}

// Without bounds, others waited for 10 s, until the daemon had made the answers.
TEST_F(Flood, AnswersThatAreNotReadDelayNoOneWithin1536MiB) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more memory";
  constexpr int kJobs = 1000;
  ASSERT_NO_FATAL_FAILURE(
      Start({.nodes = 3, .heap = "64MiB", .hosts = {3, {WithinMemory(1536), "127.0.0.1"}}}));
  const auto client = Client::Connect({.endpoint = world_->socket(0)});
  ASSERT_TRUE(client.ok()) << client.status().ToString();
  const std::vector<float> values(4 << 20, 1);
  ASSERT_TRUE((*client)
                  ->Put("flood", {.rows = 2048, .cols = 2048, .sharding = "[M_x, K]"},
                        values.data(), values.size() * sizeof(float))
                  .ok());
  ASSERT_TRUE(
      (*client)
          ->Put("S", {.rows = 1, .cols = 1, .sharding = "[M, K]"}, values.data(), sizeof(float))
          .ok());
  for (int i = 0; i < kJobs; ++i) {
    ASSERT_TRUE((*client)
                    ->Run({.spec = "A[M, K] * B[K, N] -> C[M, N]", .a = "S", .b = "S", .c = "T"})
                    .ok());
  }
  using Kind = CallFlood::Kind;
  for (const auto& [kind, metric] :
       {std::pair{Kind::kUnreadJobs, "rpc_unread_answers_cancelled_total"},
        {Kind::kHalf, "rpc_connections_broken_total"},
        {Kind::kUnreadTensor, "rpcs_failed_total"}}) {
    SCOPED_TRACE(static_cast<int>(kind));
    const double before = MetricOf(world_->Status(0), metric);
    // The flood comes from 127.0.0.1; the test uses the unix sockets.
    const CallFlood flood(world_->address(0), kind);
    EXPECT_TRUE(world_->WaitFor(0, metric, [&](const v1::GetStatusResponse& status) {
      return MetricOf(status, metric) > before;
    }));
    // During the flood.
    ExpectHealthy();
  }
  EXPECT_THAT(Log(0), HasSubstr("cancelled a call of "));
  EXPECT_THAT(Log(0), HasSubstr("MiB of unread answers"));
}

// More connections than descriptors, for a while.
TEST_F(Flood, ConnectionsBeyondTheBoundAreRefusedAndLaterOnesServed) {
  constexpr int kDescriptors = 512, kConnections = 600;
  WorldOptions options{.nodes = 3};
  options.hosts.assign(
      3, {{"/usr/bin/prlimit", absl::StrCat("--nofile=", kDescriptors)}, "127.0.0.1"});
  ASSERT_NO_FATAL_FAILURE(Start(std::move(options)));
  double refused = 0;
  for (const std::string& endpoint :
       {world_->address(0), world_->socket(0), absl::StrCat("127.0.0.1:", world_->peer_port())}) {
    std::vector<int> connections;
    for (int i = 0; i < kConnections; ++i)
      if (const int fd = ConnectTo(endpoint); fd >= 0) connections.push_back(fd);
    // The other daemons had connected before.
    EXPECT_TRUE(world_->Status(1).ready());
    for (int fd : connections) close(fd);
    for (const std::string& each : {world_->address(0), world_->socket(0)}) {
      EXPECT_TRUE(Eventually([&] { return Connection(*ResolveEndpoint(each)).GetStatus().ok(); }))
          << each;
    }
    // A connection that is closed before it is accepted does not count.
    EXPECT_TRUE(world_->WaitFor(0, "its refusals", [&](const v1::GetStatusResponse& status) {
      return MetricOf(status, "rpc_connections_refused_total") > refused;
    })) << endpoint;
    refused = MetricOf(world_->Status(0), "rpc_connections_refused_total");
  }
  EXPECT_THAT(Log(0), HasSubstr("'s host has 21 connections, which is the bound for one host"));
  EXPECT_THAT(Log(0), HasSubstr("refused a connection: 42 connections are open, which is the"));
  // Daemons can still join.
  world_->Kill(2);
  world_->Start(2);
  for (int node = 0; node < 3; ++node) EXPECT_TRUE(world_->WaitReady(node));
}

}  // namespace
}  // namespace agmm
