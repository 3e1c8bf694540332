#include <gtest/gtest.h>

#include "kernels/schedule/plan.h"
#include "tests/schedule/verify_fixture.h"

namespace agmm::test {
namespace {

// Returns the closed schedule, and checks that it is still right.
Schedule Closed(const Hand& hand) {
  EXPECT_EQ(hand.Check(), absl::OkStatus());
  Hand closed = hand;
  closed.schedule = Close(hand.schedule);
  EXPECT_EQ(closed.Check(), absl::OkStatus());
  EXPECT_EQ(Close(closed.schedule), closed.schedule) << "not idempotent";
  return closed.schedule;
}

TEST(Close, KeepsNeededWaits) {
  for (const Hand& h : {Hand::Push(), Hand::Load()}) {
    const Schedule closed = Closed(h);
    for (Rank r : {0, 1}) {
      ASSERT_EQ(closed.ranks[r].size(), h.schedule.ranks[r].size());
      for (size_t s = 0; s < closed.ranks[r].size(); ++s) {
        EXPECT_EQ(closed.ranks[r][s].waits.size(), h.schedule.ranks[r][s].waits.size());
        EXPECT_EQ(closed.ranks[r][s].signals.size(), h.schedule.ranks[r][s].signals.size());
      }
    }
  }
}

TEST(Close, RemovesWaitsThatTheLaneImplies) {
  Hand h = Hand::Push();
  const Schedule lean = Closed(h);
  h.At(0, 0).signals.push_back({0, 7});
  h.At(0, 1).waits.push_back({{0, 7}});
  EXPECT_EQ(Closed(h), lean);
}

TEST(Close, RemovesWaitsThatTheLaunchImplies) {
  Hand h = Hand::Push();
  const Schedule lean = Closed(h);
  h.At(0, 0).signals.push_back({0, 7});
  h.At(0, 2).waits.push_back({{0, 7}, 1});
  EXPECT_EQ(Closed(h), lean);
}

TEST(Close, RemovesWaitsThatAnotherWaitImplies) {
  Hand h = Hand::Push();
  const Schedule lean = Closed(h);
  // Rank 0's first product comes before its second, which is awaited.
  h.At(1, 2).waits.push_back({{1, 7}, 1});
  h.At(0, 0).signals.push_back({1, 7});
  EXPECT_EQ(Closed(h), lean);
}

TEST(Close, RemovesTheSameWaitTwiceOnlyOnce) {
  Hand h = Hand::Push();
  const Schedule lean = Closed(h);
  h.At(0, 1).waits.push_back(h.At(0, 1).waits[0]);
  EXPECT_EQ(Closed(h), lean);
}

TEST(Close, RemovesSignalsWithoutAWaiter) {
  Hand h = Hand::Push();
  const Schedule lean = Closed(h);
  h.At(0, 1).signals.push_back({1, 9});
  h.At(0, 2).signals.push_back({0, 9});
  EXPECT_EQ(Closed(h), lean);
}

TEST(Close, KeepsTheSignalsOfArrivalsInTheirPlaces) {
  Hand h = Hand::Push();
  // Its own copy comes first, with a signal that no step waits for.
  h.Op<Transfer>(0, 2).to.insert(h.Op<Transfer>(0, 2).to.begin(), Hand::Work(0, 4096));
  h.At(0, 2).signals.insert(h.At(0, 2).signals.begin(), {0, 9});
  const Schedule closed = Closed(h);
  ASSERT_EQ(closed.ranks[0][2].signals.size(), 2u);
  EXPECT_EQ(closed.ranks[0][2].signals[1].rank, 1);
}

TEST(Close, DropsIdleJoinsAndCarriersFollow) {
  Hand h = Hand::Push();
  h.Op<Transfer>(0, 2).carrier = 0;
  const Schedule lean = Closed(h);
  h.schedule.ranks[0].insert(h.schedule.ranks[0].begin(), Step{Join(), 3});
  h.Op<Transfer>(0, 3).carrier = 1;
  EXPECT_EQ(Closed(h), lean);
}

TEST(Close, HandsTheWaitsOfASilentJoinToTheNextStep) {
  Hand h = Hand::Push();
  const Schedule lean = Closed(h);
  h.schedule.ranks[0].insert(h.schedule.ranks[0].begin() + 1, Step{Join(), 0});
  std::swap(h.At(0, 1).waits, h.At(0, 2).waits);
  EXPECT_EQ(Closed(h), lean);
}

TEST(Close, KeepsOneOfTwoExitJoinsForTheSameReader) {
  Hand h = Hand::Load();
  h.Add(0, Transfer{h.A(0), h.Own(h.A(0), 0), {Hand::Work(0)}}, 2);
  const Schedule lean = Closed(h);
  h.Add(0, Join(), 2, {{{0, 1}}});
  const Schedule closed = Closed(h);
  EXPECT_EQ(closed.ranks[0].size(), lean.ranks[0].size());
}

TEST(Close, CarriedWaitIsKeptIfTheTransferOrItsCarrierNeedsIt) {
  // The push has a wait that its lane implies; the multiply that carries it has no other reason to
  // wait.
  Hand h = Hand::Push();
  h.Add(0, Join(), 1, {}, {{0, 7}});
  std::swap(h.At(0, 2), h.At(0, 3));
  h.Op<Transfer>(0, 3).carrier = 0;
  h.At(0, 3).waits.push_back({{0, 7}});
  EXPECT_EQ(Closed(h).ranks[0][3].waits.size(), 2u);
  h.Op<Transfer>(0, 3).carrier = -1;
  EXPECT_EQ(Closed(h).ranks[0].size(), 3u);
}

TEST(Close, NumbersSlotsDenselyInTheOrderOfTheirProducers) {
  Hand h = Hand::Push();
  const Schedule lean = Closed(h);
  for (auto& steps : h.schedule.ranks) {
    for (Step& step : steps) {
      for (Wait& wait : step.waits) wait.slot.index = 100 - 7 * wait.slot.index;
      for (Slot& slot : step.signals) slot.index = 100 - 7 * slot.index;
    }
  }
  EXPECT_EQ(Closed(h), lean);
  EXPECT_EQ(SlotCounts(lean), (std::vector<int>{2, 2}));
}

TEST(Close, DoesNotChangeSchedulesThatCannotRun) {
  Hand h = Hand::Push();
  h.At(0, 2).waits[0].lag = 0;
  EXPECT_EQ(Close(h.schedule), h.schedule);
  h.At(0, 2).signals.clear();
  EXPECT_EQ(Close(h.schedule), h.schedule);
}

}  // namespace
}  // namespace agmm::test
