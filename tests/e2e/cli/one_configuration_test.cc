// One configuration for all daemons of a world: how each finds its node.
#include <unistd.h>

#include <climits>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/world.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class OneConfiguration : public ::testing::Test {
 protected:
  // Writes the configuration of two nodes, whose names no host has. `second` is the name of the
  // second one; `local` is added to that block.
  std::string Write(const std::string& second, const std::string& local) const {
    const std::string path = world_.Path("shared.txtpb");
    WriteFile(path, absl::StrFormat(R"(world {
  cluster: "shared"
  node { name: "test-0" address: "%s" devices: 1 }
  node { name: "%s" address: "%s" devices: 1 }
}
local {
  %s
  secret: "secret"
  device { kind: "cpu" heap: "32MiB" }
}
)",
                                    world_.address(0), second, world_.address(1), local));
    return path;
  }

  std::unique_ptr<Process> Start(std::vector<std::string> arguments,
                                 const std::map<std::string, std::string>& environment = {}) {
    arguments.insert(arguments.begin(), Program("agmmd"));
    return std::make_unique<Process>(arguments, world_.Path(absl::StrCat("d", ++programs_)),
                                     environment);
  }
  Ran Check(const std::string& path, const std::vector<std::string>& more,
            const std::map<std::string, std::string>& environment = {}) {
    std::vector<std::string> arguments = {"--config", path, "--check-config"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const std::unique_ptr<Process> process = Start(arguments, environment);
    const std::optional<int> code = process->Wait(kPatience);
    return {code.value_or(-1), process->out(), process->err()};
  }

  World world_{{.nodes = 2}};  // for its ports and its secret; starts no daemon itself
  int programs_ = 0;
};

TEST_F(OneConfiguration, ServesTwoDaemons) {
  const std::string path = Write("test-1", "");
  const auto first = Start({"--config", path, "--node", "test-0"});
  const auto second = Start({"--config", path}, {{"AGMM_NODE", "test-1"}});
  ASSERT_TRUE(world_.WaitReady(0)) << first->err() << second->err();
  // Each daemon listens at its address in the list, and joins as that node.
  ASSERT_TRUE(world_.WaitReady(1)) << first->err() << second->err();
  EXPECT_EQ(world_.Status(1).answering_node(), 1);
  EXPECT_THAT(first->err(), HasSubstr("node test-0 (named by --node) of cluster shared"));
  EXPECT_THAT(second->err(), HasSubstr("node test-1 (named by AGMM_NODE) of cluster shared"));
}

TEST_F(OneConfiguration, TheOptionPrecedesTheVariableWhichPrecedesTheFile) {
  const std::string path = Write("test-1", "node: \"test-1\"");
  const std::string n0 = absl::StrFormat("node 0 test-0 at %s: rank 0, sequencer, this daemon",
                                         world_.address(0)),
                    n1 = absl::StrFormat("node 1 test-1 at %s: rank 1, this daemon",
                                         world_.address(1));
  EXPECT_THAT(Check(path, {}).out, HasSubstr(n1 + " (named by local.node)\n"));
  EXPECT_THAT(Check(path, {}, {{"AGMM_NODE", "test-0"}}).out,
              HasSubstr(n0 + " (named by AGMM_NODE)\n"));
  EXPECT_THAT(Check(path, {"--node", "test-1"}, {{"AGMM_NODE", "test-0"}}).out,
              HasSubstr(n1 + " (named by --node)\n"));
  EXPECT_THAT(Check(path, {"--node", "test-0"}).out, HasSubstr("listen " + world_.address(0)));
}

TEST_F(OneConfiguration, FindsTheNodeByTheHostsName) {
  char host[HOST_NAME_MAX + 1] = {};
  ASSERT_EQ(gethostname(host, sizeof(host) - 1), 0);
  const Ran ran = Check(Write(host, ""), {});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr(", this daemon (named by the host's name)\n"));
}

TEST_F(OneConfiguration, AnUnknownNameEndsTheStartWithTheList) {
  const std::string path = Write("test-1", "");
  for (const Ran& ran :
       {Check(path, {"--node", "test-7"}), Check(path, {}, {{"AGMM_NODE", "test-7"}})}) {
    EXPECT_EQ(ran.exit_code, 2);
    EXPECT_THAT(ran.err, StartsWith("agmmd: " + path + ":3:3: world.node: \"test-7\", from "));
    EXPECT_THAT(ran.err, HasSubstr("to one of test-0, test-1\n"));
  }
  const Ran host = Check(path, {});
  EXPECT_EQ(host.exit_code, 2);
  EXPECT_THAT(host.err, HasSubstr("the host's name, \""));
}

TEST_F(OneConfiguration, ACheckNamesItsLimitsAndHeapsThatDoNotFit) {
  const auto check = [&](const std::string& heap) {
    const std::string path = world_.Path("heap.txtpb");
    WriteFile(path, absl::StrFormat(R"(world { cluster: "alone" node { name: "n" devices: 2 } }
local {
  node: "n"
  socket: "/tmp/n.sock"
  device { kind: "cpu" heap: "%s" }
  device { kind: "cuda" gpu: 14 heap: "4096TiB" }
}
)",
                                    heap));
    return Check(path, {});
  };
  const Ran fits = check("1MiB"), large = check("4096TiB");
  for (const Ran& ran : {fits, large}) {
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("\nnot checked: that the host has these GPUs, their memory"));
  }
  EXPECT_EQ(fits.err, "");
  EXPECT_THAT(large.err, StartsWith("agmmd: the cpu devices' heaps of 4096 TiB in all do not fit"));
  EXPECT_THAT(large.err, HasSubstr("give them smaller ones, unless the daemon runs elsewhere\n"));
}

TEST_F(OneConfiguration, ANodeWithoutAFileIsAMistake) {
  const auto process = Start({"--node", "test-0", "--check-config"});
  EXPECT_EQ(process->Wait(kPatience), 2);
  EXPECT_THAT(process->err(), HasSubstr("give its file with --config"));
}

}  // namespace
}  // namespace agmm
