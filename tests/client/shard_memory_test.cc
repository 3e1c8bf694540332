// The memory of a mapped shard, over a file as a daemon makes it.
#include "client/connect/shard_memory.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace agmm {
namespace {

constexpr int64_t kPageBytes = 4096;

class ShardMemoryOfAFile : public ::testing::TestWithParam<int64_t> {
 protected:
  ShardMemoryOfAFile() {
    EXPECT_EQ(ftruncate(file_, kOffset + bytes() + kPageBytes), 0);
    Set(0, 1.5f);
    Set(bytes() - 4, 2.5f);
  }
  ~ShardMemoryOfAFile() override { close(file_); }
  static int64_t bytes() { return GetParam(); }
  void Set(int64_t at, float value) { EXPECT_EQ(pwrite(file_, &value, 4, kOffset + at), 4); }
  float InFile(int64_t at) const {
    float value = 0;
    EXPECT_EQ(pread(file_, &value, 4, kOffset + at), 4);
    return value;
  }
  ShardMemory Map(bool writable) const {
    return *ShardMemory::Map(file_, kOffset, bytes(), writable);
  }
  static float* At(const ShardMemory& memory, int64_t at) {
    return reinterpret_cast<float*>(memory.data() + at);
  }
  static bool IsNan(const ShardMemory& memory) {
    bool all = true;
    for (const int64_t at : {int64_t{0}, bytes() / 8 * 4, bytes() - 4}) {
      const float value = *At(memory, at);
      all &= value != value;
    }
    return all;
  }

  static constexpr int64_t kOffset = 3 * kPageBytes;
  const int file_ = memfd_create("shard", MFD_CLOEXEC);
};

TEST_P(ShardMemoryOfAFile, ShowsTheFile) {
  const ShardMemory memory = Map(true);
  EXPECT_EQ(*At(memory, 0), 1.5f);
  EXPECT_EQ(*At(memory, bytes() - 4), 2.5f);
  *At(memory, 0) = 7;
  EXPECT_EQ(InFile(0), 7);
}

TEST_P(ShardMemoryOfAFile, IsNanWhileItIsHidden) {
  ShardMemory memory = Map(true);
  const std::byte* const data = memory.data();
  for (int round = 1; round <= 3; ++round) {
    ASSERT_TRUE(memory.Hide());
    EXPECT_TRUE(IsNan(memory));
    *At(memory, 0) = 9;
    EXPECT_EQ(*At(memory, 0), 9);
    EXPECT_EQ(InFile(bytes() - 4), 2.5f);
    Set(0, static_cast<float>(round));
    ASSERT_TRUE(memory.Show());
    EXPECT_EQ(memory.data(), data);
    // It has the writes of others meanwhile, and not those of this process.
    EXPECT_EQ(*At(memory, 0), static_cast<float>(round));
    EXPECT_EQ(*At(memory, bytes() - 4), 2.5f);
  }
}

TEST_P(ShardMemoryOfAFile, StaysReadOnly) {
  ShardMemory memory = Map(false);
  ASSERT_TRUE(memory.Hide());
  ASSERT_TRUE(memory.Show());
  EXPECT_EQ(*At(memory, 0), 1.5f);
  EXPECT_DEATH(*At(memory, 0) = 1, "");
}

TEST_P(ShardMemoryOfAFile, IsNanOnceItIsDropped) {
  for (const bool hidden : {false, true}) {
    ShardMemory memory = Map(true);
    if (hidden) ASSERT_TRUE(memory.Hide());
    ASSERT_TRUE(memory.Drop());
    EXPECT_TRUE(IsNan(memory));
    *At(memory, 0) = 9;
    EXPECT_EQ(InFile(0), 1.5f);
  }
}

TEST_P(ShardMemoryOfAFile, AForkedChildDoesNotInheritIt) {
  ShardMemory shown = Map(true), hidden = Map(true);
  ASSERT_TRUE(hidden.Hide());
  const auto child_ends_with = [](const std::function<void()>& use) {
    const pid_t child = fork();
    if (child == 0) {
      use();
      _exit(0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status;
  };
  EXPECT_NE(child_ends_with([&] { *At(shown, 0) = 9; }), 0);
  EXPECT_EQ(child_ends_with([&] { *At(hidden, 0) = 9; }), 0);
  ASSERT_TRUE(hidden.Show());
  EXPECT_EQ(*At(hidden, 0), 1.5f);
}

// The last one needs several pieces of NaNs; its file has two pages that were written.
INSTANTIATE_TEST_SUITE_P(Sizes, ShardMemoryOfAFile,
                         ::testing::Values(int64_t{100}, int64_t{300} << 10, int64_t{9} << 20,
                                           (int64_t{3} << 30) + 4096));

TEST(ShardMemory, AFileThatCannotBeMappedIsAnError) {
  EXPECT_FALSE(ShardMemory::Map(-1, 0, 4096, true).ok());
}

}  // namespace
}  // namespace agmm
