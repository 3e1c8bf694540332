#include "proto/convert/wait_chain.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using End = WaitChain::End;

// Ranks 0 and 1 on node 0, ranks 2 and 3 on node 1. Steps are numbered within a rank, and their
// texts do not matter.
class Ranks {
 public:
  Ranks() {
    for (int rank = 0; rank < 4; ++rank) {
      v1::RankReport* report = job_.add_ranks();
      report->set_rank(rank);
      report->set_node(rank / 2);
      report->mutable_progress()->set_epoch(1);
    }
  }
  v1::RankProgress* at(int rank) { return job_.mutable_ranks(rank)->mutable_progress(); }
  // The rank's lane has worked on `step` for `seconds`.
  v1::LaneProgress* Works(int rank, int lane, int step, double seconds) {
    v1::LaneProgress* now = at(rank)->add_lanes();
    *now->mutable_step() = Name(rank, lane, step);
    now->set_for_us(seconds * 1e6);
    return now;
  }
  v1::LaneProgress* Waits(int rank, int lane, int step, double seconds,
                          const std::vector<v1::StepName>& producers) {
    v1::LaneProgress* now = Works(rank, lane, step, seconds);
    for (const v1::StepName& producer : producers) *now->add_waits()->mutable_producer() = producer;
    return now;
  }
  static v1::StepName Name(int rank, int lane, int step) {
    v1::StepName name;
    name.set_rank(rank);
    name.set_lane(lane);
    name.set_step(step);
    name.set_text("a step");
    return name;
  }
  WaitChain Follow() const { return FollowWaits(ViewOf(job_)); }
  // "3.0.5 > 2.1.2" for rank 3 lane 0 step 5, which waits for rank 2 lane 1 step 2.
  std::string Path() const {
    std::string path;
    for (const WaitChain::Link& link : Follow().links) {
      const v1::StepName& step = link.lane->step();
      absl::StrAppend(&path, path.empty() ? "" : " > ", step.rank(), ".", step.lane(), ".",
                      step.step());
    }
    return path;
  }
  std::string Cause() const {
    return CauseText(Follow(),
                     [](int node) { return std::string(1, static_cast<char>('a' + node)); });
  }
  v1::Job& job() { return job_; }

 private:
  v1::Job job_;
};

TEST(WaitChain, LeadsOverTwoRanksOfANodeToTheTransferOnTheSlowLink) {
  Ranks ranks;
  // Rank 3 waits for its neighbour's multiply, which waits for bytes from node 0.
  ranks.Waits(3, 0, 7, 5.0, {Ranks::Name(2, 1, 4)});
  ranks.Waits(2, 1, 3, 4.9, {Ranks::Name(0, 1, 2)});
  v1::LaneProgress* send = ranks.Works(0, 1, 2, 4.8);
  send->set_network_bytes(16 << 20);
  send->add_to_nodes(1);
  ranks.Works(1, 0, 0, 0.1);
  EXPECT_EQ(ranks.Path(), "3.0.7 > 2.1.3 > 0.1.2");
  EXPECT_EQ(ranks.Follow().end, End::kAtWork);
  EXPECT_EQ(ranks.Cause(),
            "rank 0 lane 1 step 2 on node a (a step): at work for 4.8 s, 16 MiB to node b at less "
            "than 3.33 MiB/s");
}

TEST(WaitChain, PrefersTheWorkThatLastsLongest) {
  Ranks ranks;
  ranks.Waits(3, 0, 0, 9.0, {Ranks::Name(0, 0, 0)});
  ranks.Works(0, 0, 0, 0.2);
  ranks.Waits(2, 0, 0, 3.0, {Ranks::Name(1, 0, 0)});
  ranks.Works(1, 0, 0, 3.0);
  EXPECT_EQ(ranks.Path(), "2.0.0 > 1.0.0");
}

TEST(WaitChain, FollowsTheWaitThatLeadsToALane) {
  Ranks ranks;
  // The first producer has finished; the second one waits itself.
  ranks.Waits(3, 0, 4, 5.0, {Ranks::Name(2, 0, 1), Ranks::Name(2, 1, 6)});
  ranks.Works(2, 0, 2, 1.0);
  ranks.Works(2, 1, 5, 5.0);
  EXPECT_EQ(ranks.Path(), "3.0.4 > 2.1.5");
}

TEST(WaitChain, FollowsACreditIntoTheEpochBefore) {
  Ranks ranks;
  ranks.at(0)->set_epoch(2);
  v1::LaneProgress* sender = ranks.Waits(0, 1, 2, 5.0, {Ranks::Name(3, 0, 5)});
  sender->mutable_waits(0)->set_credit(true);
  ranks.Works(3, 0, 1, 6.0);
  EXPECT_EQ(ranks.Path(), "0.1.2 > 3.0.1");
  // Once the receiver is in the same epoch, it has given the credit of the previous one.
  ranks.at(3)->set_epoch(2);
  ranks.at(3)->mutable_lanes(0)->set_for_us(0);
  EXPECT_EQ(ranks.Follow().end, End::kOnItsWay);
  EXPECT_THAT(ranks.Cause(), HasSubstr("its data or signal has not arrived yet"));
}

TEST(WaitChain, AMomentOfWorkDoesNotHideALongWaitThatEndsElsewhere) {
  Ranks ranks;
  ranks.Waits(3, 0, 4, 30.0, {Ranks::Name(1, 0, 1)});
  ranks.Works(0, 0, 0, 0.001);
  for (const bool begun : {true, false}) {
    ranks.at(1)->set_epoch(begun ? 1 : 0);
    EXPECT_EQ(ranks.Follow().end, begun ? End::kOnItsWay : End::kNotBegun);
    EXPECT_EQ(ranks.Path(), "3.0.4");
  }
  ranks.job().mutable_ranks(1)->clear_progress();
  EXPECT_EQ(ranks.Follow().end, End::kUnknown);
  // Work of a comparable time is the better explanation.
  ranks.at(0)->mutable_lanes(0)->set_for_us(20e6);
  EXPECT_EQ(ranks.Path(), "0.0.0");
}

TEST(WaitChain, AReadyStepIsNotAtWorkAndWaitsForTheWorkOfItsRank) {
  Ranks ranks;
  ranks.Waits(3, 0, 4, 5.0, {Ranks::Name(1, 0, 1)});
  v1::LaneProgress* ready = ranks.Works(1, 0, 1, 5.0);
  ready->set_ready(true);
  ready->set_network_bytes(16 << 20);
  ready->add_to_nodes(1);
  EXPECT_EQ(ranks.Follow().end, End::kReady);
  EXPECT_EQ(ranks.Cause(),
            "rank 1 lane 0 step 1 on node a (a step): ready for up to 5.0 s, and no worker has "
            "begun it");
  EXPECT_TRUE(NodesAtEnd(ranks.Follow()).empty());
  ranks.Works(1, 1, 6, 4.0);
  ranks.Waits(1, 2, 7, 4.5, {Ranks::Name(1, 1, 6)});
  EXPECT_EQ(ranks.Path(), "3.0.4 > 1.0.1 > 1.1.6");
  EXPECT_EQ(ranks.Follow().end, End::kAtWork);
}

TEST(WaitChain, ReportsUnknownCauses) {
  Ranks ranks;
  ranks.Waits(3, 0, 4, 5.0, {Ranks::Name(1, 0, 1)});
  ranks.at(1)->set_epoch(0);
  EXPECT_EQ(ranks.Follow().end, End::kNotBegun);
  EXPECT_THAT(ranks.Cause(),
              HasSubstr("rank 1 lane 0 step 1 on node a (a step) has not begun this epoch;"));
  ranks.at(1)->set_behind(true);
  EXPECT_THAT(ranks.Cause(), HasSubstr("because its rank first runs epochs of other jobs"));
  ranks.job().mutable_ranks(1)->clear_progress();
  EXPECT_EQ(ranks.Follow().end, End::kUnknown);
  EXPECT_THAT(ranks.Cause(), HasSubstr("no progress report covers rank 1 lane 0 step 1"));
}

TEST(WaitChain, HoldsUpAJobInItsFirstEpochOrInASlowOne) {
  Ranks ranks;
  const RankReportsView view = ViewOf(ranks.job());
  EXPECT_TRUE(IsHeldUp(view));
  for (v1::RankReport& rank : *ranks.job().mutable_ranks())
    for (double epoch_us : {9e6, 4e6, 5e6}) rank.add_epoch_us(epoch_us);
  ranks.at(2)->set_for_us(9e6);
  EXPECT_FALSE(IsHeldUp(view));
  ranks.at(2)->set_for_us(11e6);
  EXPECT_TRUE(IsHeldUp(view));
  ranks.at(2)->set_epoch(0);
  EXPECT_FALSE(IsHeldUp(view));
  // Short epochs vary by more than twice on a busy host.
  ranks.job().mutable_ranks(1)->clear_epoch_us();
  ranks.job().mutable_ranks(1)->add_epoch_us(100);
  ranks.at(1)->set_for_us(9e5);
  EXPECT_FALSE(IsHeldUp(view));
}

TEST(WaitChain, EndsAtACircleAndWithoutSteps) {
  Ranks ranks;
  EXPECT_EQ(ranks.Follow().end, End::kNothing);
  EXPECT_EQ(ranks.Cause(), "");
  ranks.Waits(0, 0, 0, 1.0, {Ranks::Name(1, 0, 0)});
  ranks.Waits(1, 0, 0, 1.0, {Ranks::Name(0, 0, 0)});
  EXPECT_EQ(ranks.Follow().end, End::kCycle);
  EXPECT_THAT(ranks.Cause(), HasSubstr("bug"));
  EXPECT_EQ(ranks.Follow().links.size(), 2);
}

TEST(WaitChain, ARingOfManyRanksIsFollowedOnce) {
  // A step for each pair of ranks, each waiting for its predecessor: as many links as lanes.
  constexpr int kRanks = 256, kLanes = 20;
  v1::Job job;
  for (int rank = 0; rank < kRanks; ++rank) {
    v1::RankReport* report = job.add_ranks();
    report->set_rank(rank);
    report->mutable_progress()->set_epoch(1);
    for (int lane = 0; lane < kLanes; ++lane) {
      v1::LaneProgress* now = report->mutable_progress()->add_lanes();
      *now->mutable_step() = Ranks::Name(rank, lane, 0);
      now->set_for_us(1e6);
      const int before = rank * kLanes + lane - 1;
      if (before >= 0)
        *now->add_waits()->mutable_producer() = Ranks::Name(before / kLanes, before % kLanes, 0);
    }
  }
  const WaitChain chain = FollowWaits(ViewOf(job));
  EXPECT_EQ(chain.end, End::kAtWork);
  EXPECT_EQ(chain.links.size(), kRanks * kLanes);
}

}  // namespace
}  // namespace agmm
