#include "client/connect/endpoint.h"

#include <unistd.h>

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

TEST(Endpoint, TakesSocketsAndHosts) {
  for (const char* text : {"unix:/run/a.sock", "/run/a.sock", "unix:///run/a.sock"}) {
    const auto endpoint = ResolveEndpoint(text);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    EXPECT_EQ(endpoint->text, "unix:/run/a.sock");
    EXPECT_EQ(endpoint->target, "unix:/run/a.sock");
    EXPECT_EQ(endpoint->socket_path, "/run/a.sock");
  }
  for (const char* text : {"10.0.0.1:7101", "host-a:7101", "[::1]:7101"}) {
    const auto endpoint = ResolveEndpoint(text);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    EXPECT_EQ(endpoint->text, text);
    EXPECT_EQ(endpoint->target, std::string("dns:///") + text);
    EXPECT_EQ(endpoint->socket_path, "");
  }
}

TEST(Endpoint, RefusesAndQuotesInvalidEndpoints) {
  for (const char* text :
       {"host", "host:", ":7101", "host:0", "host:65536", "host:-1", "host:port", "::1:7101"}) {
    const auto endpoint = ResolveEndpoint(text);
    EXPECT_EQ(endpoint.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(endpoint.status().message()),
                HasSubstr(std::string("\"") + text + "\""));
  }
  EXPECT_FALSE(ResolveEndpoint("unix:").ok());
  EXPECT_FALSE(ResolveEndpoint("/" + std::string(107, 'x')).ok());
  EXPECT_TRUE(ResolveEndpoint("/" + std::string(106, 'x')).ok());
}

TEST(Endpoint, DefaultsToTheEnvironmentThenTheLocalSocket) {
  setenv("AGMM_ENDPOINT", "a:1", 1);
  EXPECT_EQ(ResolveEndpoint("")->text, "a:1");
  EXPECT_EQ(ResolveEndpoint("b:2")->text, "b:2");
  unsetenv("AGMM_ENDPOINT");
  setenv("XDG_RUNTIME_DIR", "/run/user/1000", 1);
  EXPECT_EQ(ResolveEndpoint("")->text,
            geteuid() == 0 ? "unix:/run/agmm/agmmd.sock" : "unix:/run/user/1000/agmm/agmmd.sock");
}

}  // namespace
}  // namespace agmm
