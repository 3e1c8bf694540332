#include "daemon/measure/epoch_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace agmm::measure {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr double kStartUs = 1e15;

// Adds a rank that begins after `begin_us` and runs epochs without a pause.
void AddRank(int rank, double begin_us, int epochs, double epoch_us, v1::LaunchDone* done) {
  v1::RankReport* const report = done->add_ranks();
  report->set_rank(rank);
  for (int i = 0; i < epochs; ++i) report->add_epoch_us(epoch_us);
  report->set_start_unix_us(kStartUs + begin_us);
  report->set_epoch_start_unix_us(kStartUs + begin_us + (epochs - 1) * epoch_us);
}

auto Takes(int rank, double time_ns) { return Pair(rank, DoubleNear(time_ns, 0.01 * time_ns)); }

TEST(EpochTimes, TheFirstEpochDoesNotCount) {
  v1::LaunchDone done;
  AddRank(3, 0, 5, 400, &done);
  done.mutable_ranks(0)->set_epoch_us(0, 900);
  done.mutable_ranks(0)->set_epoch_start_unix_us(kStartUs + 900 + 3 * 400);
  EXPECT_THAT(MeanEpochNs(done), ElementsAre(Takes(3, 400e3)));
}

TEST(EpochTimes, ASingleEpochCounts) {
  v1::LaunchDone done;
  AddRank(0, 0, 1, 250, &done);
  EXPECT_THAT(MeanEpochNs(done), ElementsAre(Takes(0, 250e3)));
}

TEST(EpochTimes, RanksAtTheSameTimeHaveTheirOwnTimes) {
  v1::LaunchDone done;
  AddRank(0, 0, 9, 500, &done);
  AddRank(1, 40, 9, 750, &done);
  EXPECT_THAT(MeanEpochNs(done), ElementsAre(Takes(0, 500e3), Takes(1, 750e3)));
}

TEST(EpochTimes, RanksInTurnsHaveTheTimeOfBoth) {
  v1::LaunchDone done;
  AddRank(0, 0, 65, 50, &done);
  AddRank(1, 65 * 50, 65, 50, &done);
  EXPECT_THAT(MeanEpochNs(done), ElementsAre(Takes(0, 100e3), Takes(1, 100e3)));
}

// 64 epochs take less time than a rank may begin late.
TEST(EpochTimes, ALateBeginOfShortEpochsIsNoTurn) {
  v1::LaunchDone done;
  AddRank(0, 0, 65, 2, &done);
  AddRank(1, 90, 65, 2, &done);
  EXPECT_THAT(MeanEpochNs(done), ElementsAre(Takes(0, 2e3), Takes(1, 2e3)));
}

TEST(EpochTimes, FiguresThatAreNoNumbersAreLeftOut) {
  v1::LaunchDone done;
  AddRank(0, 0, 3, NAN, &done);
  AddRank(1, INFINITY, 3, 5, &done);
  done.add_ranks()->set_rank(2);
  EXPECT_THAT(MeanEpochNs(done), IsEmpty());
  AddRank(4, 0, 3, 700, &done);
  EXPECT_THAT(MeanEpochNs(done), ElementsAre(Takes(4, 700e3)));
}

}  // namespace
}  // namespace agmm::measure
