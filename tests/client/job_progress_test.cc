#include "client/ctl/job_progress.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A job on ranks 0 and 1 of nodes 0 and 1, named a and b. Rank 1 has waited for 4 s for bytes that
// rank 0 has sent.
class JobProgress : public ::testing::Test {
 protected:
  JobProgress() {
    for (int node : {0, 1}) {
      v1::NodeStatus* added = status_.add_nodes();
      added->set_index(node);
      added->set_name(node == 0 ? "a" : "b");
      added->set_address(node == 0 ? "10.0.0.1:7101" : "10.0.0.2:7101");
    }
    job_.set_job_id(7);
    job_.set_state(v1::Job::STATE_RUNNING);
    job_.set_repeat_count(10);
    job_.mutable_mesh()->add_axes()->set_size(2);
    for (int rank : {0, 1}) {
      v1::RankReport* report = job_.add_ranks();
      report->set_rank(rank);
      report->set_node(rank);
      report->mutable_progress()->set_epoch(3);
      report->mutable_progress()->set_epochs_done(2);
      report->mutable_progress()->set_for_us(4e6);
    }
    v1::LaneProgress* lane = job_.mutable_ranks(1)->mutable_progress()->add_lanes();
    lane->mutable_step()->set_rank(1);
    lane->mutable_step()->set_text("multiply A");
    lane->set_for_us(4e6);
    lane->add_waits()->mutable_producer()->set_text("send A to rank 1");
  }
  // Returns the job in a state in which `bytes` of node 0 were acknowledged by `at_us`.
  v1::Job At(double at_us, int64_t bytes, int64_t waiting = 0, double silent_us = 0) const {
    v1::Job job = job_;
    v1::NodePath* path = job.add_node_paths();
    path->set_from_node(0);
    path->set_to_node(1);
    path->set_acked_bytes(bytes);
    path->set_waiting_bytes(waiting);
    path->set_silent_us(silent_us);
    path->set_at_us(at_us);
    return job;
  }
  std::string Why(const v1::Job& before, const v1::Job& now) const {
    return WhyText({now}, RatesOf(before, now), status_);
  }
  std::string Line(const v1::Job& before, const v1::Job& now) const {
    return ProgressLineText(before, now, NamesOf(status_));
  }

  v1::GetStatusResponse status_;
  v1::Job job_;
};

TEST_F(JobProgress, OfAPathIsItsThroughputBetweenTwoAnswers) {
  EXPECT_TRUE(HangsOnPath(job_));
  const v1::Job before = At(1e6, 1 << 20), now = At(1.5e6, 3 << 20);
  EXPECT_THAT(Why(before, now),
              HasSubstr("path: a (10.0.0.1:7101) -> b (10.0.0.2:7101), 4 MiB/s over the last "
                        "500 ms\n"));
  EXPECT_THAT(Line(before, now), HasSubstr("; a -> b 4 MiB/s over the last 500 ms; rank 0 "));
  const Json why = WhyJson({now}, RatesOf(before, now), status_)["jobs"][0];
  EXPECT_EQ(why["paths"][0]["bytes_per_s"], 4 << 20);
  EXPECT_EQ(why["epochs_done"], 2);
  // A single answer gives no throughput, and neither does the same answer twice.
  for (const v1::Job& same : {job_, now}) {
    EXPECT_TRUE(RatesOf(same, now).empty());
    EXPECT_THAT(Why(same, now), HasSubstr("-> b (10.0.0.2:7101)\n"));
    EXPECT_TRUE(WhyJson({now}, {}, status_)["jobs"][0]["paths"][0]["bytes_per_s"].is_null());
  }
}

TEST_F(JobProgress, OfAStalledPathReportsTheTime) {
  const v1::Job before = At(1e6, 3 << 20, 1 << 20);
  EXPECT_THAT(Why(before, At(1.5e6, 3 << 20, 2 << 20, 2.1e6)),
              HasSubstr("nothing acknowledged for 2.1 s, and 2 MiB wait for it"));
  EXPECT_THAT(Why(before, At(1.5e6, 3 << 20)), HasSubstr("nothing sent in the last 500 ms"));
  // A connection that was opened again counts from zero.
  EXPECT_THAT(Why(before, At(1.5e6, 100)), HasSubstr("nothing sent in the last 500 ms"));
}

TEST_F(JobProgress, OfRanksCountsThoseThatReported) {
  EXPECT_EQ(EpochsText(job_), "2 of 10 epochs done, the next one for 4.0 s");
  job_.mutable_ranks()->RemoveLast();
  job_.add_silent_nodes("b");
  EXPECT_THAT(EpochsText(job_), HasSubstr("2 of 10 epochs done on the ranks that reported, "));
  EXPECT_THAT(Why(job_, job_), HasSubstr("no progress report from node b\n"));
}

TEST_F(JobProgress, OfARankWithoutAnEpochSaysWhy) {
  v1::RankProgress* const rank = job_.mutable_ranks(0)->mutable_progress();
  rank->set_epoch(0);
  const auto table = [&] { return ProgressTable(job_, NamesOf(status_)); };
  EXPECT_THAT(table(), HasSubstr("between two epochs"));
  EXPECT_THAT(table(), HasSubstr("lane 0 step 0 (multiply A): waits 4.0 s"));
  rank->set_epochs_done(0);
  EXPECT_THAT(table(), HasSubstr("has not begun"));
  rank->set_behind(true);
  EXPECT_THAT(table(), HasSubstr("waits until its device has run epochs of other jobs"));
  rank->set_epochs_done(10);
  rank->set_behind(false);
  EXPECT_THAT(table(), HasSubstr("done"));
  EXPECT_THAT(table(), Not(HasSubstr("begun")));
}

}  // namespace
}  // namespace agmm
