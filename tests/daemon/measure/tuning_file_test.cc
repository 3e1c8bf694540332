#include "daemon/measure/tuning_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/schedule/spec.h"
#include "tests/support/patience.h"
#include "tests/support/temp_folder.h"

namespace agmm::measure {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

TunedPlan PlanWithRows(int64_t m) {
  TunedPlan plan;
  plan.key.spec = kDefaultSpec;
  plan.key.dtypes = {DType::kF32, DType::kF32, DType::kF32};
  plan.key.mesh = "x=2";
  plan.key.ranks_per_node = {2};
  plan.key.m = m;
  plan.key.n = plan.key.k = 64;
  plan.key.hardware = "cpu";
  plan.options = {"ring", 1, 1, "N=x"};
  plan.time_us = 10;
  plan.date = "2026-11-27";
  return plan;
}

class TuningFileTest : public testing::Test {
 protected:
  const TempFolder temp_{"tuning"};
  TuningFile file_{temp_ / "made"};
};

TEST_F(TuningFileTest, WithoutAFileTheTableIsEmpty) {
  const auto read = file_.Read();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->entries, IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(temp_ / "made"));
}

// Daemons of several users may share the folder. Users outside its group must not hold the lock.
TEST_F(TuningFileTest, TheTableHasTheModeOfNewFilesAndItsLockIsTheGroups) {
  const mode_t before = umask(0002);
  const auto added = file_.Add({PlanWithRows(8)});
  umask(before);
  ASSERT_TRUE(added.ok()) << added.status();
  EXPECT_EQ(std::filesystem::status(temp_ / "made/tuning.textproto").permissions(),
            std::filesystem::perms{0664});
  EXPECT_EQ(std::filesystem::status(temp_ / "made/tuning.textproto.lock").permissions(),
            std::filesystem::perms{0660});
}

TEST_F(TuningFileTest, ReadsWhatWasAdded) {
  ASSERT_TRUE(file_.Add({PlanWithRows(8)}).ok());
  const auto added = file_.Add({PlanWithRows(16), PlanWithRows(8)});
  ASSERT_TRUE(added.ok()) << added.status();
  EXPECT_EQ(added->entries.size(), 2u);
  const auto read = TuningFile(temp_ / "made").Read();
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->entries.size(), 2u);
  EXPECT_EQ(read->entries[0].plan, PlanWithRows(16));
  EXPECT_EQ(read->entries[1].plan, PlanWithRows(8));
}

TEST_F(TuningFileTest, LeavesNoDraft) {
  ASSERT_TRUE(file_.Add({PlanWithRows(8)}).ok());
  for (const auto& entry : std::filesystem::directory_iterator(temp_ / "made"))
    EXPECT_THAT(entry.path().filename(),
                testing::AnyOf("tuning.textproto", "tuning.textproto.lock"));
}

TEST_F(TuningFileTest, WithoutAFolderTheTableIsInMemory) {
  TuningFile memory("");
  EXPECT_EQ(memory.path(), "");
  ASSERT_TRUE(memory.Add({PlanWithRows(8)}).ok());
  EXPECT_EQ(memory.Add({PlanWithRows(16)})->entries.size(), 2u);
  EXPECT_EQ(memory.Read()->entries.size(), 2u);
}

// Each daemon reads the file again before it writes.
TEST_F(TuningFileTest, DaemonsThatShareItLoseNoPlan) {
  constexpr int kDaemons = 4, kPlans = 16;
  std::vector<std::thread> daemons;
  for (int daemon = 0; daemon < kDaemons; ++daemon) {
    daemons.emplace_back([&, daemon] {
      TuningFile file(temp_ / "made", absl::Minutes(1));
      for (int i = 0; i < kPlans; ++i) {
        const auto added = file.Add({PlanWithRows(1 + daemon * kPlans + i)});
        EXPECT_TRUE(added.ok()) << added.status();
      }
    });
  }
  for (std::thread& daemon : daemons) daemon.join();
  EXPECT_EQ(file_.Read()->entries.size(), size_t{kDaemons * kPlans});
}

TEST_F(TuningFileTest, AWriteFailsWhileAnotherDaemonHoldsTheLock) {
  TuningFile file(temp_.path(), absl::ZeroDuration());
  const std::string lock = temp_ / "tuning.textproto.lock";
  const int fd = open(lock.c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  const absl::Status held = file.Add({PlanWithRows(8)}).status();
  EXPECT_TRUE(absl::IsUnavailable(held)) << held;
  EXPECT_THAT(std::string(held.message()), HasSubstr(lock));
  close(fd);
  EXPECT_TRUE(file.Add({PlanWithRows(8)}).ok());
}

// Runs `run` on a thread without capabilities: root, too, can then do only what modes allow.
void RunAsModesAllow(const std::function<void()>& run) {
  std::thread([&] {
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    const __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
    ASSERT_EQ(syscall(SYS_capset, &header, none), 0);
    run();
  }).join();
}

// With the umask 0022 the owner's file is read-only for the group.
TEST_F(TuningFileTest, ALockThatCanOnlyBeReadIsHeld) {
  TuningFile file(temp_.path(), absl::ZeroDuration());
  const int fd =
      open((temp_ / "tuning.textproto.lock").c_str(), O_RDONLY | O_CREAT | O_CLOEXEC, 0440);
  RunAsModesAllow([&] {
    EXPECT_EQ(access((temp_ / "tuning.textproto.lock").c_str(), W_OK), -1);
    const absl::Status free = file.Add({PlanWithRows(8)}).status();
    EXPECT_TRUE(free.ok()) << free;
    ASSERT_EQ(flock(fd, LOCK_EX | LOCK_NB), 0) << "Add returned, so the lock is free";
    EXPECT_TRUE(absl::IsUnavailable(file.Add({PlanWithRows(16)}).status()));
  });
  close(fd);
}

// A FIFO blocks if it is opened for reads alone, and nothing writes it.
TEST_F(TuningFileTest, ALockThatIsNoRegularFileIsAnErrorAndBlocksNothing) {
  TuningFile file(temp_.path());
  const std::string lock = temp_ / "tuning.textproto.lock";
  ASSERT_EQ(mkfifo(lock.c_str(), 0440), 0);
  std::atomic<bool> ended = false;
  absl::Status fifo;
  std::thread add([&] {
    RunAsModesAllow([&] { fifo = file.Add({PlanWithRows(8)}).status(); });
    ended = true;
  });
  EXPECT_TRUE(Eventually([&] { return ended.load(); })) << "it waits for a writer";
  chmod(lock.c_str(), 0660);
  const int writer = open(lock.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  add.join();
  close(writer);
  EXPECT_TRUE(absl::IsFailedPrecondition(fifo)) << fifo;
  EXPECT_THAT(std::string(fifo.message()), StartsWith(lock));
  EXPECT_FALSE(std::filesystem::exists(file.path()));
}

TEST_F(TuningFileTest, AFileThatIsTooLargeIsAnErrorAndStaysAsItIs) {
  const TempFolder folder("tuning");
  TuningFile file(folder.path());
  std::ofstream(file.path()) << std::string(kMaxTuningBytes + 1, '\n');
  EXPECT_TRUE(absl::IsResourceExhausted(file.Read().status()));
  EXPECT_TRUE(absl::IsResourceExhausted(file.Add({PlanWithRows(8)}).status()));
  EXPECT_EQ(std::filesystem::file_size(file.path()), static_cast<uint64_t>(kMaxTuningBytes + 1));
}

TEST_F(TuningFileTest, PlansThatDoNotFitAreAnErrorAndTheFileStaysAsItIs) {
  const TempFolder folder("tuning");
  TuningFile file(folder.path());
  std::ofstream(file.path()) << std::string(kMaxTuningBytes, '\n');
  const absl::Status full = file.Add({PlanWithRows(8)}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(std::string(full.message()), StartsWith(file.path()));
  EXPECT_EQ(std::filesystem::file_size(file.path()), static_cast<uint64_t>(kMaxTuningBytes));
}

TEST_F(TuningFileTest, AFolderThatCannotBeMadeIsAnErrorWithItsFile) {
  std::ofstream(temp_ / "file") << "";
  TuningFile file(temp_ / "file");
  EXPECT_THAT(std::string(file.Add({PlanWithRows(8)}).status().message()),
              HasSubstr(temp_ / "file"));
}

}  // namespace
}  // namespace agmm::measure
