// Commands that lose a node name it, through any daemon.
#include <signal.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/usage.h"
#include "tests/e2e/world.h"
#include "tests/support/matrix.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kThree = 3;                     // nodes
constexpr int kNoDaemon = 3, kJobFailed = 7;  // exit codes
constexpr int kSize = 2048;                   // 16 MiB, more than what sockets hold

// The node that is lost, and the node that the command connects to.
class LostPeer : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  void SetUp() override {
    WriteNpy(world_.Path("W.npy"), SmallIntegers(kSize, kSize, 1));
    ASSERT_NO_FATAL_FAILURE(world_.StartAll());
  }
  // Runs agmmctl, and fails the test unless it succeeds.
  void Ctl(const std::vector<std::string>& arguments) {
    const Ran ran = world_.Ctl(asked_, arguments);
    ASSERT_EQ(ran.exit_code, 0) << ran.err;
  }
  void Fill(const std::string& name, const std::string& sharding) {
    Ctl({"tensor", "fill", name, "--shape", absl::StrCat(kSize, "x", kSize), "--sharding",
         sharding});
  }
  double Metric(const std::string& name) { return MetricOf(world_.Status(asked_), name); }

  // Runs a command, kills the node once `under_way` returns true and the command has printed
  // `printed`, and expects `exit_code`.
  void ExpectNamed(const std::vector<std::string>& arguments, int exit_code,
                   const std::function<bool(const v1::GetStatusResponse&)>& under_way,
                   const std::string& printed = "") {
    const std::unique_ptr<Process> command = world_.StartCtl(asked_, arguments);
    ASSERT_TRUE(world_.WaitFor(asked_, "the command to be under way",
                               [&](const v1::GetStatusResponse& status) {
                                 return under_way(status) &&
                                        absl::StrContains(command->out(), printed);
                               }))
        << command->err();
    // It goes on once the loss is known.
    command->Signal(SIGSTOP);
    world_.Kill(lost_);
    if (asked_ != lost_) {
      EXPECT_TRUE(world_.WaitFor(
          asked_, "the loss", [](const v1::GetStatusResponse& status) { return !status.ready(); }));
    }
    command->Signal(SIGCONT);
    EXPECT_EQ(command->Wait(kPatience), asked_ == lost_ ? kNoDaemon : exit_code) << command->err();
    EXPECT_THAT(command->err(), HasSubstr(asked_ == lost_ ? "ask another daemon of its world"
                                                          : "`agmmctl status --ready` waits"));
    for (int node = 0; node < kThree; ++node) {
      if (node == lost_) {
        EXPECT_THAT(command->err(), HasSubstr(world_.address(node)));
        if (asked_ != lost_) {
          EXPECT_THAT(command->err(), HasSubstr(absl::StrCat("node n", node)));
        }
      } else {
        EXPECT_THAT(command->err(), Not(HasSubstr(absl::StrCat("node n", node))));
      }
    }
  }

  const int lost_ = std::get<0>(GetParam()), asked_ = std::get<1>(GetParam());
  // The node that is lost never reads or writes a tensor's bytes for a client, so a put and a get
  // are certain to be under way when it dies. With "[M, K_x]" each piece has bytes on every node.
  World world_{{.nodes = kThree, .heap = "64MiB", .node_failpoints = {{lost_, "store.hold=*"}}}};
};

TEST_P(LostPeer, IsNamedByAPut) {
  ExpectNamed({"tensor", "put", "W", world_.Path("W.npy"), "--sharding", "[M, K_x]"}, kNoDaemon,
              [](const v1::GetStatusResponse& status) { return TensorBytes(status) > 0; });
}

TEST_P(LostPeer, IsNamedByAGet) {
  ASSERT_NO_FATAL_FAILURE(Fill("W", "[M, K_x]"));
  const double before = Metric("transport_received_bytes_total");
  ExpectNamed({"tensor", "get", "W", world_.Path("out.npy")}, kNoDaemon,
              [&](const v1::GetStatusResponse& status) {
                return MetricOf(status, "transport_received_bytes_total") > before;
              });
}

TEST_P(LostPeer, IsNamedByAJob) {
  ASSERT_NO_FATAL_FAILURE(Fill("X", "[M_x, K]"));
  ASSERT_NO_FATAL_FAILURE(Fill("W", "[K, N_x]"));
  ExpectNamed(
      {"job", "submit", "--bind", "A=X,B=W,C=Y", "--repeat", "1000000", "--timeout", "10m",
       "--wait"},
      kJobFailed,
      [](const v1::GetStatusResponse& status) {
        return MetricOf(status, "runner_launches_total") > 0;
      },
      "running");  // so its watch is open, and not only its submit answered
}

INSTANTIATE_TEST_SUITE_P(Nodes, LostPeer,
                         ::testing::Values(std::tuple(1, 0), std::tuple(1, 1), std::tuple(1, 2),
                                           std::tuple(0, 2)),
                         [](const auto& info) {
                           return absl::StrFormat("Lost%dAsked%d", std::get<0>(info.param),
                                                  std::get<1>(info.param));
                         });

}  // namespace
}  // namespace agmm
