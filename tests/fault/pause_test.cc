// A daemon that was itself stopped for some seconds reports this to its clients, and does not blame
// the others.
#include <signal.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/world.h"

namespace agmm {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Paused : public ::testing::TestWithParam<int> {};

TEST_P(Paused, ADaemonNamesItselfInTheErrorsOfItsClients) {
  World world({.nodes = 2});
  ASSERT_NO_FATAL_FAILURE(world.StartAll());
  const int paused = GetParam(), other = 1 - paused;
  for (const auto& [name, sharding] : {std::pair("X", "[M_x, K]"), {"W", "[K, N_x]"}}) {
    const Ran ran =
        world.Ctl(paused, {"tensor", "fill", name, "--shape", "256x256", "--sharding", sharding});
    ASSERT_EQ(ran.exit_code, 0) << ran.err;
  }
  const auto job = world.StartCtl(paused, {"job", "submit", "--bind", "A=X,B=W,C=Y", "--repeat",
                                           "1000000", "--timeout", "10m", "--wait"});
  ASSERT_TRUE(world.WaitFor(other, "the job to run", [&](const v1::GetStatusResponse& status) {
    return std::any_of(status.metrics().begin(), status.metrics().end(),
                       [](const v1::Metric& metric) {
                         return metric.name() == "runner_launches_total" && metric.value() > 0;
                       });
  }));
  world.daemon(paused).Stop();
  EXPECT_TRUE(world.WaitFor(other, "the loss", [&](const v1::GetStatusResponse& status) {
    return paused == 0 ? absl::StrContains(status.reason(), "was lost") : !status.ready();
  }));
  world.daemon(paused).Signal(SIGCONT);
  EXPECT_EQ(job->Wait(kPatience), 7) << job->err();
  const auto name = [&](int node) {
    return absl::StrCat("node n", node, " (", world.address(node), ")");
  };
  // If another node has the record of the job, that error may arrive first. It names this node,
  // too.
  EXPECT_THAT(job->err(), AnyOf(HasSubstr(name(paused) + " was paused for "),
                                HasSubstr(name(1) + " was lost: no message for 2.5s")));
  EXPECT_THAT(job->err(), Not(HasSubstr(name(other) + " was lost")));
  EXPECT_THAT(world.daemon(paused).err(), AllOf(HasSubstr(name(paused) + " was paused for "),
                                                HasSubstr("its process was stopped"),
                                                Not(HasSubstr(name(other) + " was lost"))));
  EXPECT_TRUE(world.WaitReady(paused));
}

INSTANTIATE_TEST_SUITE_P(Nodes, Paused, ::testing::Values(0, 1));

}  // namespace
}  // namespace agmm
