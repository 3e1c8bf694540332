#include "daemon/config/own_node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "daemon/config/config.h"

namespace agmm {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const std::vector<std::string> kNodes = {"a", "b", "web", "web.example.org"};

// Returns the node that was found, and the source of its name: "b by --node".
std::string Found(const std::string& configured, const NodeNames& names) {
  const absl::StatusOr<OwnNode> own = FindOwnNode(kNodes, configured, names);
  EXPECT_TRUE(own.ok()) << own.status();
  return own.ok() ? kNodes[own->index] + " by " + own->named_by : "";
}

std::string ErrorOf(const std::string& configured, const NodeNames& names) {
  const absl::StatusOr<OwnNode> own = FindOwnNode(kNodes, configured, names);
  EXPECT_TRUE(absl::IsInvalidArgument(own.status())) << own.status();
  return std::string(own.status().message());
}

TEST(OwnNode, IsNamedByTheFirstGivenName) {
  const std::string host = "web";
  EXPECT_EQ(Found("a", {.option = "b", .variable = "a", .host = host}), "b by --node");
  EXPECT_EQ(Found("a", {.variable = "b", .host = host}), "b by AGMM_NODE");
  EXPECT_EQ(Found("a", {.host = host}), "a by local.node");
  EXPECT_EQ(Found("", {.host = host}), "web by the host's name");
}

TEST(OwnNode, HasTheHostsFullNameOrElseItsFirstPart) {
  EXPECT_EQ(Found("", {.host = "web.example.org"}), "web.example.org by the host's name");
  EXPECT_EQ(Found("", {.host = "web.example.com"}), "web by the host's name");
  EXPECT_EQ(Found("", {.host = "b.example.org"}), "b by the host's name");
}

TEST(OwnNode, IsFoundInAnyCaseOfTheHostsName) {
  EXPECT_EQ(Found("", {.host = "WEB"}), "web by the host's name");
  EXPECT_EQ(Found("", {.host = "Web.Example.ORG"}), "web.example.org by the host's name");
  EXPECT_EQ(Found("", {.variable = "B", .host = "web"}), "b by AGMM_NODE");
}

TEST(OwnNode, OfAWrongNameIsRefusedEvenIfALaterNameMatches) {
  const std::string rest = " does not name a node of the world; set ", list = kNodes[0] + ", b, ";
  EXPECT_THAT(ErrorOf("a", {.option = "d", .variable = "a", .host = "a"}),
              StartsWith("\"d\", from --node," + rest + "--node to one of " + list));
  EXPECT_THAT(ErrorOf("a", {.variable = "d", .host = "a"}),
              StartsWith("\"d\", from AGMM_NODE," + rest + "AGMM_NODE to one of " + list));
  EXPECT_THAT(ErrorOf("d", {.host = "a"}),
              StartsWith("\"d\", from local.node," + rest + "local.node to one of " + list));
}

TEST(OwnNode, OfAHostOutsideTheListIsRefusedWithBothNames) {
  const std::string rest = ", does not name a node of the world; set --node, AGMM_NODE or ";
  EXPECT_THAT(ErrorOf("", {.host = "d.example.org"}),
              StartsWith("the host's name, \"d.example.org\" or \"d\"" + rest));
  EXPECT_THAT(ErrorOf("", {.host = "d"}), StartsWith("the host's name, \"d\"" + rest));
  EXPECT_THAT(ErrorOf("", {.host = "d"}), HasSubstr("one of a, b, web, web.example.org"));
}

// If the name came from elsewhere, the file is right, so errors point at its list.
TEST(OwnNode, ErrorsPointAtTheListOrAtTheNameInTheFile) {
  const std::string text = R"(world {
  cluster: "demo"
  node { name: "a" devices: 1 }
}
local { socket: "/x.sock"
  node: "d"
})";
  EXPECT_THAT(std::string(ParseConfig(text, "x.conf").status().message()),
              StartsWith("x.conf:6:3: local.node: \"d\", from local.node,"));
  EXPECT_THAT(std::string(ParseConfig(text, "x.conf", {.option = "e"}).status().message()),
              StartsWith("x.conf:3:3: world.node: \"e\", from --node,"));
  const absl::StatusOr<Config> config = ParseConfig(text, "x.conf", {.variable = "a"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->named_by, "AGMM_NODE");
}

}  // namespace
}  // namespace agmm
