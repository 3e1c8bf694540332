// Bounds on clients' resources, in total and for each owner.
#include "daemon/link/owner_quota.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kernels/base/reason.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

TEST(OwnerQuota, AllConnectionsOfAHostAreOneOwner) {
  EXPECT_EQ(OwnerOf("ipv4:10.0.0.1:4321"), "ipv4:10.0.0.1");
  EXPECT_EQ(OwnerOf("ipv6:[::1]:4321"), "ipv6:[::1]");
  EXPECT_EQ(OwnerOf("uid:1000"), "uid:1000");
}

TEST(OwnerQuota, OneOwnerLeavesRoomForTheOthers) {
  OwnerQuota quota({"sessions", "are open at this daemon", "close some"},
                   {.all = 3, .hosts = 2, .owner = 2});
  EXPECT_TRUE(quota.Take("uid:1").ok());
  EXPECT_TRUE(quota.Take("uid:1").ok());
  const absl::Status refusal = quota.Take("uid:1");
  EXPECT_TRUE(absl::IsResourceExhausted(refusal));
  EXPECT_EQ(ReasonOf(refusal), kReasonQuotaFull);
  EXPECT_EQ(refusal.message(),
            "2 sessions of uid:1 are open at this daemon, and 2 is the limit for one owner; close "
            "some");
  EXPECT_TRUE(quota.Take("uid:2").ok());
  EXPECT_THAT(std::string(quota.Take("uid:2").message()),
              HasSubstr("3 sessions are open at this daemon, and 3 is the limit; close some"));
  quota.Return("uid:1");
  EXPECT_TRUE(quota.Take("uid:3").ok()) << "what was returned is anyone's";
}

TEST(OwnerQuota, HostsTogetherLeaveRoomForTheUsersOfTheSocket) {
  OwnerQuota quota({"chunks", "wait here", "wait for some", /*bytes=*/true},
                   {.all = 4 << 20, .hosts = 3 << 20, .owner = 2 << 20});
  EXPECT_TRUE(quota.Take("ipv4:10.0.0.1:1", 2 << 20).ok());
  EXPECT_EQ(quota.Take("ipv4:10.0.0.1:2", 1).message(),
            "2 MiB of chunks of ipv4:10.0.0.1 wait here, and 2 MiB is the limit for one owner; "
            "wait for some");
  EXPECT_TRUE(quota.Take("ipv6:[::2]:1", 1 << 20).ok());
  EXPECT_EQ(quota.Check("ipv6:[::2]:1", 1).message(),
            "3 MiB of chunks of other hosts wait here, and 3 MiB is the limit for all of them "
            "together; wait for some");
  EXPECT_TRUE(quota.Take("uid:0", 1 << 20).ok());
  EXPECT_EQ(quota.taken(), 4 << 20);
  quota.Return("ipv4:10.0.0.1:7", 2 << 20);
  EXPECT_TRUE(quota.Check("ipv4:10.0.0.3:1", 2 << 20).ok());
  EXPECT_EQ(quota.taken(), 2 << 20);
}

TEST(OwnerQuota, AQuarterIsAtLeastOne) {
  EXPECT_EQ(OwnerQuota::Quarters(4096).owner, 1024);
  EXPECT_EQ(OwnerQuota::Quarters(4096).hosts, 3072);
  EXPECT_EQ(OwnerQuota::Quarters(1).owner, 1);
  EXPECT_EQ(OwnerQuota::Quarters(1).hosts, 1);
}

}  // namespace
}  // namespace agmm
