// Memory limits, read from trees like /sys/fs/cgroup, and the group, read from a file like
// /proc/self/cgroup.
#include "kernels/base/host_limits.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace agmm {
namespace {

// Version 1 shows this number without a limit.
constexpr char kNoLimit[] = "9223372036854771712";

class Memory : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text << "\n";
  }
  void SetGroups(const std::string& lines) const { Write("proc", lines); }
  int64_t Limit() const { return MemoryOfGroups(folder_ / "proc", folder_ / "fs"); }

  const TempFolder folder_{"memory"};
};

TEST_F(Memory, OfAGroupIsItsOwnLimit) {
  SetGroups("0::/a/b");
  Write("fs/a/b/memory.max", "1000");
  EXPECT_EQ(Limit(), 1000);
  Write("fs/a/other/memory.max", "10");
  EXPECT_EQ(Limit(), 1000);
}

TEST_F(Memory, OfAGroupIsLimitedByItsParents) {
  SetGroups("0::/a/b");
  Write("fs/a/b/memory.max", "max");
  EXPECT_EQ(Limit(), 0);
  Write("fs/a/memory.max", "3000");
  EXPECT_EQ(Limit(), 3000);
  Write("fs/a/b/memory.max", "4000");
  EXPECT_EQ(Limit(), 3000);
  // In a container, the limit is at the root.
  Write("fs/memory.max", "2000");
  EXPECT_EQ(Limit(), 2000);
}

TEST_F(Memory, OfVersion1IsThatOfItsMemoryController) {
  SetGroups("5:cpu,cpuacct:/wrong\n4:hugetlb,memory:/docker/x\n1:name=systemd:/wrong");
  Write("fs/memory/wrong/memory.limit_in_bytes", "10");
  Write("fs/memory/docker/x/memory.limit_in_bytes", "5000");
  Write("fs/memory/memory.limit_in_bytes", kNoLimit);
  EXPECT_EQ(Limit(), 5000);
}

TEST_F(Memory, OfBothVersionsIsTheLesserOne) {
  SetGroups("4:memory:/x\n0::/y");
  Write("fs/memory/x/memory.limit_in_bytes", "5000");
  Write("fs/y/memory.max", "6000");
  EXPECT_EQ(Limit(), 5000);
  Write("fs/y/memory.max", "4000");
  EXPECT_EQ(Limit(), 4000);
}

TEST_F(Memory, IsUnlimitedWithoutAReadableLimit) {
  EXPECT_EQ(Limit(), 0) << "without the files";
  SetGroups("0::/a");
  for (const char* text : {"", "max", "-1", "0", "much", "1000 2000"}) {
    Write("fs/a/memory.max", text);
    EXPECT_EQ(Limit(), 0) << text;
  }
}

TEST_F(Memory, OfThisProcessIsAtMostTheHosts) {
  const int64_t host = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  EXPECT_GT(UsableMemory(), 0);
  EXPECT_LE(UsableMemory(), host);
}

TEST(Cgroup, IsFoundInItsHierarchy) {
  const TempFolder folder("cgroup");
  std::ofstream(folder / "groups") << "12:memory:/m:1\nnoise\n3:cpu,cpuacct:/c\n0::/two\n";
  EXPECT_EQ(GroupOf(folder / "groups", "memory"), "/m:1");
  EXPECT_EQ(GroupOf(folder / "groups", "cpuacct"), "/c");
  EXPECT_EQ(GroupOf(folder / "groups", ""), "/two");
  EXPECT_EQ(GroupOf(folder / "groups", "pids"), "");
  EXPECT_EQ(GroupOf(folder / "missing", ""), "");
}

}  // namespace
}  // namespace agmm
