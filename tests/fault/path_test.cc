// Hosts whose ways to each other are cut, or long: the world says so, and comes together again.
#include <memory>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/world.h"
#include "tests/fault/network.h"
#include "tests/support/matrix.h"
#include "tests/support/seed.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

constexpr int kFirstPort = 7200, kLastPort = 7203;

// Two daemons on hosts of their own.
class Paths : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = Network::Missing(); !missing.empty()) GTEST_SKIP() << missing;
    if (kSanitized) GTEST_SKIP() << "sanitized daemons are so slow that they lose each other";
    network_ = std::make_unique<Network>(2, TestSeed());
    WorldOptions options{.nodes = 2, .devices = 1, .failpoints = "tensor_io.slow_copy=*"};
    options.local = absl::StrCat("transport_ports: \"", kFirstPort, "-", kLastPort, "\"\n");
    for (int node : {0, 1})
      options.hosts.emplace_back(network_->Command(node), network_->address(node));
    world_ = std::make_unique<World>(options);
  }
  void TearDown() override {
    world_ = nullptr;
    network_ = nullptr;
  }
  // The world's own port goes on.
  void CutTheTransport() {
    std::set<int> ports;
    for (int port = kFirstPort; port <= kLastPort; ++port) ports.insert(port);
    network_->Cut(0, 1, ports);
    network_->Cut(1, 0, ports);
  }
  ::testing::AssertionResult WaitForReason(const std::string& part) {
    return world_->WaitFor(0, part, [&](const v1::GetStatusResponse& status) {
      return !status.ready() && status.reason().find(part) != std::string::npos;
    });
  }

  std::unique_ptr<Network> network_;
  std::unique_ptr<World> world_;
};

TEST_F(Paths, ACutTransportEndsAPutAndIsNamed) {
  ASSERT_NO_FATAL_FAILURE(world_->StartAll());
  EXPECT_THAT(world_->Status(0).nodes(1).transport_endpoint(),
              HasSubstr(absl::StrCat(network_->address(1), ":", kFirstPort)));
  WriteNpy(world_->Path("W.npy"), SmallIntegers(2048, 2048, 1));
  const auto put =
      world_->StartCtl(0, {"tensor", "put", "W", world_->Path("W.npy"), "--sharding", "[M_x, K]"});
  ASSERT_TRUE(world_->WaitFor(0, "bytes on their way", [](const v1::GetStatusResponse& status) {
    return MetricOf(status, "transport_sent_bytes_total") > 0;
  }));
  CutTheTransport();
  EXPECT_EQ(put->Wait(kPatience), 3) << put->err();
  EXPECT_THAT(put->err(), HasSubstr("node n1 (" + world_->address(1) + ")"));
  EXPECT_TRUE(WaitForReason("the transport between node n"));
  EXPECT_TRUE(WaitForReason(absl::StrCat(":", kFirstPort)));
  network_->Mend();
  EXPECT_TRUE(world_->WaitReady(0));
}

TEST_F(Paths, AWorldWhoseTransportIsCutIsNotReady) {
  CutTheTransport();
  for (int node : {0, 1}) world_->Start(node);
  EXPECT_TRUE(WaitForReason("the transport between node n"));
  network_->Mend();
  EXPECT_TRUE(world_->WaitReady(0));
}

TEST_F(Paths, AWorldComesTogetherOverARoundTripOfASecond) {
  network_->SetWeather({.delay = absl::Milliseconds(500)});
  ASSERT_NO_FATAL_FAILURE(world_->StartAll());
  const v1::GetStatusResponse status = world_->Status(0);
  EXPECT_EQ(status.nodes_size(), 2);
  EXPECT_EQ(status.nodes(1).state(), v1::NodeStatus::STATE_READY);
}

}  // namespace
}  // namespace agmm
