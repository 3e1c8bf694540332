// The memory of a mapped shard, over a file as a daemon makes it.
#include "client/connect/shard_memory.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
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
      all &= at < (int64_t{512} << 20) ? value != value : value == 0;
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

// The last two need several pieces of NaNs; their files have two pages that were written.
INSTANTIATE_TEST_SUITE_P(Sizes, ShardMemoryOfAFile,
                         ::testing::Values(int64_t{100}, int64_t{300} << 10, int64_t{300} << 20,
                                           (int64_t{3} << 30) + 4096));

// Returns the number of mappings of this process.
int64_t CountMappings() {
  std::ifstream maps("/proc/self/maps");
  return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
}

TEST(ShardMemory, HiddenOnesTakeFewOfTheMappingsOfTheProcess) {
  constexpr int64_t kBytes = int64_t{3} << 30;
  const int file = memfd_create("shard", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, kBytes), 0);
  const int64_t before = CountMappings();
  std::vector<ShardMemory> memory;
  for (int i = 0; i < 20; ++i) {
    memory.push_back(*ShardMemory::Map(file, 0, kBytes, true));
    ASSERT_TRUE(memory.back().Hide());
  }
  EXPECT_LE(CountMappings() - before, 20 * 20);
  close(file);
}

// Ends by a fault: by its signal, or as a sanitizer ends. 0: this machine has room for more
// mappings.
bool Faulted(int status) {
  return !WIFEXITED(status) || WEXITSTATUS(status) < 2 || WEXITSTATUS(status) > 5;
}

// In a child, because it leaves the process without room for mappings.
TEST(ShardMemoryDeathTest, WithoutRoomForMappingsAUseFaultsAndTheAddressesStay) {
  const auto run = [] {
    constexpr int64_t kBytes = int64_t{8} << 20;
    const int file = memfd_create("shard", MFD_CLOEXEC);
    if (ftruncate(file, kBytes) != 0) _exit(2);
    ShardMemory memory = *ShardMemory::Map(file, 0, kBytes, true);
    *memory.data() = std::byte{7};
    // Each page takes a mapping, because its neighbours have other rights.
    const int64_t pages = 70'000;
    auto* const filler =
        static_cast<std::byte*>(mmap(nullptr, pages * kPageBytes, PROT_READ,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    bool full = false;
    for (int64_t i = 0; i < pages; i += 2)
      full = full || mprotect(filler + i * kPageBytes, kPageBytes, PROT_NONE) != 0;
    if (!full) _exit(0);
    if (memory.Drop()) _exit(3);
    // Another mapping does not get the addresses.
    for (int i = 0; i < 100; ++i) {
      auto* const other = static_cast<std::byte*>(
          mmap(nullptr, kPageBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      if (other >= memory.data() && other < memory.data() + kBytes) _exit(4);
    }
    *memory.data() = std::byte{1};
    _exit(5);
  };
  EXPECT_EXIT(run(), Faulted, "");
}

TEST(ShardMemory, AFileThatCannotBeMappedIsAnError) {
  EXPECT_FALSE(ShardMemory::Map(-1, 0, 4096, true).ok());
}

}  // namespace
}  // namespace agmm
