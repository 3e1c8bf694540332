// The submission of kernels that wait for each other, and calls that may block.
#include "kernels/cuda/launch_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>

#include "tests/support/patience.h"

namespace agmm {
namespace {

constexpr absl::Duration kLong = absl::Minutes(1), kNone = absl::ZeroDuration();

class LaunchGroupTest : public testing::Test {
 protected:
  LaunchGroupTest() {
    for (int member = 0; member < 2; ++member) group_->Join([this] { ++wakes_; });
  }
  void Open(uint64_t epoch) {
    group_->Arrive(epoch, 2);
    group_->Arrive(epoch, 2);
    EXPECT_TRUE(group_->IsOpen(epoch));
  }
  void Submit(uint64_t epoch) {
    group_->Submitted(epoch);
    group_->Submitted(epoch);
    EXPECT_TRUE(group_->HaveAllSubmitted(epoch));
  }
  // True if a call that may block would have to wait.
  static bool IsAnyOpen() { return !QuietLaunches(kNone).status().ok(); }

  std::atomic<int> wakes_ = 0;
  const std::shared_ptr<LaunchGroup> group_ = std::make_shared<LaunchGroup>();
};

TEST_F(LaunchGroupTest, OpensOnceAllMembersCanSubmit) {
  group_->Arrive(1, 2);
  EXPECT_FALSE(group_->IsOpen(1));
  EXPECT_EQ(wakes_, 0);
  group_->Arrive(1, 2);
  EXPECT_TRUE(group_->IsOpen(1));
  EXPECT_EQ(wakes_, 2);
  EXPECT_FALSE(group_->IsOpen(2));
  Submit(1);
}

TEST_F(LaunchGroupTest, ClosesOnceAllHaveSubmitted) {
  Open(1);
  group_->Submitted(1);
  EXPECT_FALSE(group_->HaveAllSubmitted(1));
  EXPECT_TRUE(IsAnyOpen());
  group_->Submitted(1);
  EXPECT_TRUE(group_->HaveAllSubmitted(1));
  EXPECT_EQ(wakes_, 4);
  EXPECT_FALSE(IsAnyOpen());
  Open(2);
  Submit(2);
}

TEST_F(LaunchGroupTest, DoesNotOpenBesideACallThatMayBlock) {
  {
    const QuietLaunches one(kLong), other(kLong);
    group_->Arrive(1, 2);
    group_->Arrive(1, 2);
    EXPECT_FALSE(group_->IsOpen(1));
    EXPECT_EQ(wakes_, 0);
  }
  EXPECT_EQ(wakes_, 2);
  EXPECT_TRUE(group_->IsOpen(1));
  Submit(1);
}

TEST_F(LaunchGroupTest, ACallThatMayBlockWaitsUntilItCloses) {
  Open(1);
  std::future<bool> is_closed = std::async(std::launch::async, [this] {
    const QuietLaunches quiet(kLong);
    return group_->HaveAllSubmitted(1);
  });
  // Another group can no longer open, so the call waits.
  const auto other = std::make_shared<LaunchGroup>();
  uint64_t epoch = 0;
  EXPECT_TRUE(Eventually([&] {
    other->Arrive(++epoch, 1);
    const bool opened = other->IsOpen(epoch);
    if (opened) other->Submitted(epoch);
    return !opened;
  }));
  Submit(1);
  EXPECT_TRUE(is_closed.get());
  EXPECT_TRUE(other->IsOpen(epoch));
  other->Submitted(epoch);
}

// Otherwise, calls in a row would keep a group closed.
TEST_F(LaunchGroupTest, TakesTurnsWithCallsThatMayBlock) {
  std::future<bool> is_closed;
  {
    const QuietLaunches first(kLong);
    group_->Arrive(1, 2);
    group_->Arrive(1, 2);
    EXPECT_FALSE(group_->IsOpen(1));
    is_closed = std::async(std::launch::async, [this] {
      const QuietLaunches second(kLong);
      return group_->HaveAllSubmitted(1);
    });
  }
  EXPECT_TRUE(group_->IsOpen(1));
  Submit(1);
  EXPECT_TRUE(is_closed.get());
}

TEST_F(LaunchGroupTest, DoesNotHoldUpCallsOnceItCannotOpen) {
  {
    const QuietLaunches first(kLong);
    group_->Arrive(1, 2);
    group_->Arrive(1, 2);
    EXPECT_FALSE(group_->IsOpen(1));
    group_->Withdraw(1);
  }
  EXPECT_TRUE(QuietLaunches(kNone).status().ok());
}

TEST_F(LaunchGroupTest, ACallThatMayBlockGivesUpInTheEnd) {
  Open(1);
  const QuietLaunches quiet(kNone);
  EXPECT_EQ(quiet.status().code(), absl::StatusCode::kUnavailable);
  Submit(1);
}

// The kernels of the others wait for its own until they are aborted.
TEST_F(LaunchGroupTest, WithAMemberThatFailsIsOpenUntilAllRunsAreOver) {
  Open(1);
  group_->Submitted(1);
  group_->Withdraw(1);
  group_->Over(1);
  EXPECT_TRUE(IsAnyOpen());
  group_->Over(1);
  EXPECT_FALSE(IsAnyOpen());
}

TEST_F(LaunchGroupTest, WithAMemberThatFailsBeforeNeverOpens) {
  group_->Arrive(1, 2);
  group_->Withdraw(1);
  group_->Arrive(1, 2);
  EXPECT_FALSE(group_->IsOpen(1));
  group_->Over(1);
  group_->Over(1);
  EXPECT_FALSE(IsAnyOpen());
}

}  // namespace
}  // namespace agmm
