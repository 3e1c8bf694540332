// Hosts whose paths to each other are cut or slow: the world reports this, and forms again.
#include <netinet/in.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/connect/tensor_transfer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/deadline.h"
#include "kernels/base/reason.h"
#include "kernels/base/socket_address.h"
#include "proto/convert/blocks.h"
#include "tests/e2e/world.h"
#include "tests/fault/network.h"
#include "tests/support/seed.h"

namespace agmm {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kFirstPort = 7200, kLastPort = 7203;

// Returns the TCP sockets that listen in this thread's network: "10.0.0.1:7200", "[fd00::1]:7200".
std::set<std::string> ListeningSockets() {
  constexpr int kListening = 0x0a;
  std::set<std::string> found;
  for (const char* table : {"tcp", "tcp6"}) {
    std::ifstream lines(absl::StrCat("/proc/thread-self/net/", table));
    std::string line;
    while (std::getline(lines, line)) {
      char address[33];
      unsigned port = 0, state = 0;
      if (std::sscanf(line.c_str(), " %*d: %32[0-9A-F]:%X %*[0-9A-F:] %X", address, &port,
                      &state) != 3 ||
          state != kListening)
        continue;
      SocketAddress socket;
      const bool ip6 = std::strlen(address) == 32;
      socket.bytes.ss_family = ip6 ? AF_INET6 : AF_INET;
      char* const bytes =
          ip6 ? reinterpret_cast<char*>(&reinterpret_cast<sockaddr_in6*>(socket.get())->sin6_addr)
              : reinterpret_cast<char*>(&reinterpret_cast<sockaddr_in*>(socket.get())->sin_addr);
      // The kernel prints words of 32 bits as this machine stores them.
      for (int word = 0; 8 * word < static_cast<int>(std::strlen(address)); ++word) {
        const auto value =
            static_cast<uint32_t>(std::stoul(std::string(address + 8 * word, 8), nullptr, 16));
        std::memcpy(bytes + 4 * word, &value, sizeof(value));
      }
      socket.set_port(static_cast<int>(port));
      found.insert(socket.ToString());
    }
  }
  return found;
}

// Two daemons on separate hosts.
class Paths : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = Network::Missing(); !missing.empty()) GTEST_SKIP() << missing;
    if (kSanitized) GTEST_SKIP() << "sanitized daemons are so slow that they lose each other";
    network_ = std::make_unique<Network>(2, TestSeed());
    MakeWorld({{0, network_->address(0)}, {1, network_->address(1)}});
  }
  // The places of the nodes: a host of the network, and one of its addresses, "10.0.0.1" or
  // "[fd00::1]".
  using Places = std::vector<std::pair<int, std::string>>;
  void MakeWorld(const Places& places) {
    WorldOptions options{.nodes = 2, .devices = 1};
    options.local = absl::StrCat("transport_ports: \"", kFirstPort, "-", kLastPort, "\"\n");
    for (const auto& [host, address] : places)
      options.hosts.emplace_back(network_->Command(host), address);
    world_ = std::make_unique<World>(options);
  }
  void TearDown() override {
    world_ = nullptr;
    network_ = nullptr;
  }
  // Checks that the world forms, multiplies, and listens only at the addresses of `places`.
  void ExpectListensOnlyAt(const Places& places) {
    MakeWorld(places);
    ASSERT_NO_FATAL_FAILURE(world_->StartAll());
    for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
             {"tensor", "fill", "A", "--shape", "64x32", "--sharding", "[M_x, K]"},
             {"tensor", "fill", "B", "--shape", "32x48", "--sharding", "[K, N_x]"},
             {"job", "submit", "--spec", "A[M_x,K] * B[K,N_x] -> C[M,N_x]", "--bind", "A=A,B=B,C=C",
              "--wait"}}) {
      const Ran ran = world_->Ctl(1, command);
      EXPECT_EQ(ran.exit_code, 0) << ran.err;
    }
    for (const auto& [host, address] : places) {
      std::set<std::string> listening;
      network_->On(host, [&] { listening = ListeningSockets(); });
      EXPECT_THAT(listening, Contains(absl::StrCat(address, ":", kFirstPort)));
      EXPECT_THAT(listening, Each(StartsWith(address + ":")));
    }
  }
  // The world's own port still works.
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

TEST_F(Paths, TheTransportListensAtTheNodesAddressAlone) {
  ExpectListensOnlyAt({{0, network_->address(0)}, {1, network_->address(1)}});
}

TEST_F(Paths, TheTransportListensAtAnAddressOfLo) {
  ExpectListensOnlyAt({{0, network_->lo_address(0)}, {0, network_->lo_address(0)}});
}

TEST_F(Paths, AnInterfaceThatIsDownIsNamed) {
  network_->TakeDown(0);
  world_->Start(0);
  EXPECT_EQ(world_->daemon(0).Wait(kPatience), 1);
  EXPECT_THAT(world_->daemon(0).err(),
              HasSubstr(absl::StrCat("the interface eth0, which has the transport's address ",
                                     network_->address(0), ", is down or has no link")));
}

TEST_F(Paths, OnHostsOfBothFamiliesAWorldOfIpv6UsesIt) {
  if (network_->address6(0).empty()) GTEST_SKIP() << "this kernel has no IPv6";
  ExpectListensOnlyAt({{0, absl::StrCat("[", network_->address6(0), "]")},
                       {1, absl::StrCat("[", network_->address6(1), "]")}});
}

TEST_F(Paths, ACutTransportEndsAPutAndIsNamed) {
  ASSERT_NO_FATAL_FAILURE(world_->StartAll());
  EXPECT_THAT(world_->Status(0).nodes(1).transport_endpoint(),
              HasSubstr(absl::StrCat(network_->address(1), ":", kFirstPort)));
  // The second half of the rows is sent to the other node. The last piece is read once the first
  // piece for that node has arrived and the transport is cut, so the put cannot end before that.
  constexpr int64_t kCols = 1024, kRows = 4 * kPieceBytes / (4 * kCols);
  v1::BeginUpload begin;
  v1::TensorSpec* const spec = begin.mutable_put()->mutable_spec();
  begin.mutable_put()->set_name("W");
  spec->set_rows(kRows);
  spec->set_cols(kCols);
  spec->set_dtype(v1::DTYPE_F32);
  spec->set_sharding("[M_x, K]");
  v1::MeshAxis* const axis = spec->mutable_mesh()->add_axes();
  axis->set_name("x");
  axis->set_size(2);
  const ReadFn read = [&](int64_t offset, int64_t bytes, char* out) {
    std::fill_n(out, bytes, '\1');
    if (offset < 3 * kPieceBytes) return absl::OkStatus();
    EXPECT_TRUE(world_->WaitFor(1, "a piece", [](const v1::GetStatusResponse& status) {
      return MetricOf(status, "transport_received_bytes_total") >= kPieceBytes;
    }));
    CutTheTransport();
    return absl::OkStatus();
  };
  const auto connection = world_->Connect(0);
  const absl::Status put = Upload(connection.get(), begin, 4 * kPieceBytes, read, {[](int64_t) {}},
                                  {.deadline = Deadline::After(kPatience)})
                               .status();
  EXPECT_EQ(ReasonOf(put), kReasonPeerLost) << put;
  EXPECT_THAT(std::string(put.message()), HasSubstr("node n1 (" + world_->address(1) + ")"));
  EXPECT_TRUE(WaitForReason("the transport between node n"));
  EXPECT_TRUE(WaitForReason(absl::StrCat(":", kFirstPort, " did not answer (a firewall")));
  network_->Restore();
  EXPECT_TRUE(world_->WaitReady(0));
}

TEST_F(Paths, AnUnreachableSequencerIsNamedWithItsAddress) {
  network_->CutOff(0);
  world_->Start(1);
  const std::string at = absl::StrCat(network_->address(0), ":", world_->peer_port());
  EXPECT_TRUE(Eventually([&] {
    return world_->daemon(1).err().find(
               absl::StrCat("node n0 (", world_->address(0), ") has not answered at ", at,
                            " for 5s: ", at, " did not answer (a firewall")) != std::string::npos;
  }));
}

TEST_F(Paths, AWorldWhoseTransportIsCutIsNotReady) {
  CutTheTransport();
  for (int node : {0, 1}) world_->Start(node);
  EXPECT_TRUE(WaitForReason("the transport between node n"));
  network_->Restore();
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
