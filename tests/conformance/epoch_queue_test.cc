// The queue of a device, driven by hand: order, deadlines, failures and reports.
#include "kernels/device/epoch_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace agmm::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A run whose end the test decides.
class FakeRun {
 public:
  void Fail(const absl::Status& status) {
    if (!failed()) report_.status = status;
  }
  bool failed() const { return !report_.status.ok(); }
  const absl::Status& status() const { return report_.status; }
  RankState State(bool) const {
    RankState state;
    state.epoch = 1;
    return state;
  }
  std::string Stall() const { return "it waits"; }
  const EpochReport& Close() { return report_; }

 private:
  EpochReport report_;
};

using FakeEpochs = EpochQueue<FakeRun>;

// Counts as locked while the queue holds it.
struct FakeLock {
  void lock() { locked = true; }
  void unlock() { locked = false; }
  bool locked = true;
};

class EpochQueueTest : public testing::Test {
 protected:
  static constexpr int kMost = 2;

  struct Plan {
    explicit Plan(std::string name, int rank = 0) : name(std::move(name)) {
      target.rank = rank;
      target.failure = absl::OkStatus();
      for (FakeRun& run : runs) target.idle.push_back(&run);
    }
    const std::string name;
    FakeRun runs[kMost];
    FakeEpochs::Target target;
  };

  void Push(Plan& plan, uint64_t epoch, Deadline deadline = Deadline::Infinite()) {
    plan.target.pending.Add();
    queue_.Push(
        {&plan.target, epoch, {}, deadline, [this, &plan, epoch](const EpochReport& report) {
           EXPECT_FALSE(lock_.locked);
           ended_.push_back(absl::StrCat(plan.name, epoch));
           last_ = report.status;
         }});
  }
  // The epoch that begins next, or 0.
  uint64_t Next() {
    const FakeEpochs::Launch* const launch = queue_.TakeNext();
    return launch == nullptr ? 0 : launch->epoch;
  }
  void ReportDead() {
    while (FakeEpochs::Launch* const dead = queue_.FindDead(MonotonicNanos())) {
      queue_.Report(*dead, lock_);
    }
  }
  static Deadline Past() { return Deadline::After(absl::ZeroDuration()); }

  FakeEpochs queue_{kMost};
  FakeLock lock_;
  std::vector<std::string> ended_;  // by name and epoch, in the order of their `done`
  absl::Status last_;               // of the last of these
};

TEST_F(EpochQueueTest, EpochsBeginInOrderUntilTheBoundIsReached) {
  Plan a("a"), b("b");
  Push(a, 1);
  Push(b, 2);
  Push(a, 3);
  EXPECT_EQ(Next(), 1);
  EXPECT_EQ(Next(), 2);
  EXPECT_EQ(Next(), 0);
  queue_.Report(*queue_.oldest(), lock_);
  EXPECT_EQ(Next(), 3);
  EXPECT_EQ(queue_.oldest()->epoch, 2);
}

TEST_F(EpochQueueTest, OnlyTheFirstEpochOfAnExecutorCanBeLate) {
  Plan a("a");
  Push(a, 1);
  Push(a, 2, Past());
  EXPECT_EQ(Next(), 1);
  ReportDead();
  EXPECT_FALSE(queue_.oldest()->run->failed());
  queue_.Report(*queue_.oldest(), lock_);
  ReportDead();
  EXPECT_THAT(ended_, ElementsAre("a1", "a2"));
  EXPECT_EQ(last_.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(EpochQueueTest, AnEpochThatWillNeverBeginIsReportedBeforeThoseInFront) {
  Plan a("a"), b("b", /*rank=*/10);
  Push(a, 1);
  Push(b, 7, Past());
  Push(b, 8);
  EXPECT_EQ(Next(), 1);
  ReportDead();
  EXPECT_THAT(ended_, ElementsAre("b7", "b8"));
  EXPECT_THAT(std::string(last_.message()), HasSubstr("rank 10 had not begun after 0.0 s"));
  EXPECT_THAT(std::string(last_.message()), HasSubstr(", epoch 7"));
  EXPECT_FALSE(queue_.oldest()->run->failed());
}

TEST_F(EpochQueueTest, ALateEpochInProgressDrainsFirst) {
  Plan a("a");
  Push(a, 1, Past());
  EXPECT_EQ(Next(), 1);
  ReportDead();
  EXPECT_THAT(ended_, IsEmpty());
  EXPECT_EQ(queue_.oldest()->run->status(), absl::DeadlineExceededError("it waits"));
}

TEST_F(EpochQueueTest, TheAlarmIsTheNextDeadline) {
  Plan a("a"), b("b");
  const Deadline soon = Deadline::After(absl::Hours(1)), late = Deadline::After(absl::Hours(2));
  Push(a, 1, late);
  Push(b, 1, soon);
  ReportDead();
  EXPECT_EQ(queue_.alarm(), soon);
  queue_.Cancel(&b.target, absl::CancelledError("enough"));
  ReportDead();
  EXPECT_EQ(queue_.alarm(), late);
}

TEST_F(EpochQueueTest, ACanceledEpochInProgressGivesItsStallToTheLaterOnes) {
  Plan a("a"), b("b");
  Push(a, 1);
  Push(a, 2);
  Push(a, 3);
  EXPECT_EQ(Next(), 1);
  EXPECT_EQ(Next(), 2);
  queue_.Cancel(&a.target, absl::CancelledError("enough"));
  queue_.Cancel(&a.target, absl::CancelledError("again"));
  const absl::Status canceled = absl::CancelledError("enough: it waits");
  for (const FakeEpochs::Launch* launch : queue_.in_progress())
    EXPECT_EQ(launch->run->status(), canceled);
  ReportDead();
  EXPECT_THAT(ended_, IsEmpty());
  for (int i = 0; i < 2; ++i) queue_.Report(*queue_.oldest(), lock_);
  ReportDead();
  EXPECT_THAT(ended_, ElementsAre("a1", "a2", "a3"));
  EXPECT_EQ(last_, canceled);
}

TEST_F(EpochQueueTest, ACanceledEpochThatHasNotBegunReportsTheReason) {
  Plan a("a"), b("b");
  Push(a, 1);
  Push(b, 1);
  queue_.Cancel(&b.target, absl::CancelledError("enough"));
  ReportDead();
  EXPECT_THAT(ended_, ElementsAre("b1"));
  EXPECT_EQ(last_, absl::CancelledError("enough"));
  EXPECT_EQ(a.target.failure, absl::OkStatus());
}

TEST_F(EpochQueueTest, CancelWithoutEpochsDoesNothing) {
  Plan a("a");
  queue_.Cancel(&a.target, absl::CancelledError("too early"));
  Push(a, 1);
  EXPECT_EQ(Next(), 1);
  queue_.Report(*queue_.oldest(), lock_);
  EXPECT_EQ(last_, absl::OkStatus());
}

TEST_F(EpochQueueTest, CancelSparesAnEpochThatIsBeingReported) {
  Plan a("a");
  a.target.pending.Add();
  queue_.Push({&a.target, 1, {}, {}, [&](const EpochReport&) {
                 EXPECT_EQ(queue_.oldest(), nullptr);
                 EXPECT_EQ(queue_.Observe(&a.target, false).epoch, 0);
                 queue_.Cancel(&a.target, absl::CancelledError("too late"));
               }});
  EXPECT_EQ(Next(), 1);
  queue_.Report(*queue_.oldest(), lock_);
  EXPECT_EQ(a.target.failure, absl::OkStatus());
}

TEST_F(EpochQueueTest, AFailedRunFailsTheLaterEpochsOfItsExecutorAlone) {
  Plan a("a"), b("b");
  Push(a, 1);
  Push(b, 1);
  Push(a, 2);
  EXPECT_EQ(Next(), 1);
  queue_.oldest()->run->Fail(absl::UnavailableError("a message was not sent"));
  queue_.Report(*queue_.oldest(), lock_);
  ReportDead();
  EXPECT_THAT(ended_, ElementsAre("a1", "a2"));
  EXPECT_EQ(last_, absl::UnavailableError("a message was not sent"));
  EXPECT_EQ(b.target.failure, absl::OkStatus());
}

TEST_F(EpochQueueTest, DoneIsFreedBeforeTheEpochCountsAsOver) {
  Plan a("a");
  auto held = std::make_shared<int>();
  const std::weak_ptr<int> seen = held;
  a.target.pending.Add();
  queue_.Push({&a.target, 1, {}, {}, [held = std::move(held)](const EpochReport&) {}});
  EXPECT_EQ(Next(), 1);
  struct {
    const std::weak_ptr<int>& seen;
    void lock() { EXPECT_TRUE(seen.expired()); }
    void unlock() {}
  } lock{seen};
  queue_.Report(*queue_.oldest(), lock);
  a.target.pending.Drain();
}

TEST_F(EpochQueueTest, AnEpochKnowsWhetherItIsBehindOtherPlans) {
  Plan a("a"), b("b");
  EXPECT_FALSE(queue_.Observe(&a.target, false).behind);
  Push(a, 1);
  Push(b, 1);
  EXPECT_FALSE(queue_.Observe(&a.target, false).behind);
  EXPECT_TRUE(queue_.Observe(&b.target, false).behind);
  EXPECT_EQ(Next(), 1);
  EXPECT_EQ(queue_.Observe(&a.target, false).epoch, 1);
}

TEST_F(EpochQueueTest, AnExecutorThatIsNotPreparedFailsItsEpochs) {
  FakeEpochs::Target target;
  target.pending.Add();
  absl::Status status;
  queue_.Push({&target, 1, {}, {}, [&](const EpochReport& report) { status = report.status; }});
  ReportDead();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace agmm::test
