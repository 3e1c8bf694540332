#include "client/trace/job_trace.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "client/ctl/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/hash.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/plan_hash.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/text.h"
#include "proto/convert/plan_inputs.h"
#include "tests/golden/golden.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

// A ring over world ranks 2 and 3 of nodes 0 and 1, every step 10 us after its predecessor.
v1::Job TracedJob(double start_unix_us = 1'700'000'000'000'000,
                  const PlanOptions& options = {"ring", 1}) {
  const Mesh mesh = *ParseMesh("x=2", {2, 3});
  const Problem problem = *ParseProblem(kDefaultSpec, mesh, {8, 4, 4}, DType::kF32);
  const Topology topology{{0, 1}};
  const Schedule schedule = *Plan(problem, topology, options);
  v1::Job job;
  job.set_job_id(5);
  job.set_state(v1::Job::STATE_SUCCEEDED);
  job.set_spec(kDefaultSpec);
  *job.mutable_mesh() = ToProto(mesh);
  job.set_m(8);
  job.set_n(4);
  job.set_k(4);
  job.set_dtype(v1::DTYPE_F32);
  *job.mutable_options() = ToProto(options);
  job.set_plan_hash(HashHex(PlanHash(problem, schedule)));
  for (Rank rank = 0; rank < 2; ++rank) {
    v1::RankReport* report = job.add_ranks();
    report->set_rank(mesh.ranks[rank]);
    report->set_node(rank);
    report->set_epoch_start_unix_us(start_unix_us + rank * 100);
    for (size_t index = 0; index < schedule.ranks[rank].size(); ++index) {
      v1::StepTime* time = report->add_steps();
      time->set_start_us(index * 10.0);
      time->set_end_us(index * 10.0 + 8);
    }
  }
  return job;
}

// Nodes "a" and "b" with two ranks each.
v1::GetStatusResponse Status() {
  v1::GetStatusResponse status;
  for (int node : {0, 1}) {
    v1::NodeStatus* added = status.add_nodes();
    added->set_index(node);
    added->set_name(node == 0 ? "a" : "b");
    for (int rank : {2 * node, 2 * node + 1}) added->add_devices()->set_rank(rank);
  }
  return status;
}

// Returns the events of one phase ("X" for slices): the waits if `waits`, else all others.
std::vector<Json> EventsOf(const Json& trace, const std::string& phase, bool waits = false) {
  std::vector<Json> events;
  for (const Json& event : trace["traceEvents"])
    if (event["ph"] == phase && (phase != "X" || (event["cat"] == "wait") == waits))
      events.push_back(event);
  return events;
}

TEST(Trace, OfASmallRingMatchesTheGoldenFile) {
  const absl::StatusOr<Json> trace = TraceOf({TracedJob()}, Status());
  ASSERT_TRUE(trace.ok()) << trace.status();
  ExpectGolden("json/trace.json", trace->dump(1) + "\n");
}

TEST(Trace, HasEveryStepOfEveryRankOnItsNodeAndLane) {
  const v1::Job job = TracedJob();
  const Json trace = *TraceOf({job}, Status());
  std::set<std::pair<int, int>> seen;  // rank, step
  std::set<int> threads, named;
  for (const Json& event : EventsOf(trace, "M"))
    if (event["name"] == "thread_name") named.insert(event["tid"].get<int>());
  for (const Json& event : EventsOf(trace, "X")) {
    const int rank = event["args"]["rank"], step = event["args"]["step"];
    EXPECT_TRUE(seen.emplace(rank, step).second);
    EXPECT_EQ(event["pid"], rank - 2);
    EXPECT_DOUBLE_EQ(event["ts"], (rank - 2) * 100 + step * 10);
    EXPECT_DOUBLE_EQ(event["dur"], 8);
    EXPECT_EQ(event["args"]["over"], true);
    threads.insert(event["tid"].get<int>());
  }
  EXPECT_EQ(seen.size(), job.ranks(0).steps_size() + job.ranks(1).steps_size());
  EXPECT_EQ(threads, named);
}

TEST(Trace, NamesNodesAndTheWorkOfLanes) {
  const Json trace = *TraceOf({TracedJob()}, Status());
  std::set<std::string> names;
  for (const Json& event : EventsOf(trace, "M"))
    if (event["args"].contains("name")) names.insert(event["args"]["name"].get<std::string>());
  EXPECT_THAT(names, ::testing::IsSupersetOf({"node a", "node b", "rank 2 lane 0: multiply",
                                              "rank 2 lane 1: send to rank 3",
                                              "rank 3 lane 1: send to rank 2"}));
}

// Checks the structure, because no viewer is available: slices of a lane do not overlap, and each
// arrow begins and ends within a slice.
TEST(Trace, ShowsWaitsBetweenTheStepsOfALaneAndArrowsFromSignals) {
  const v1::Job job = TracedJob();
  const Json trace = *TraceOf({job}, Status());
  std::map<int, std::vector<std::pair<double, double>>> lanes;
  const auto slices = EventsOf(trace, "X"), waits = EventsOf(trace, "X", /*waits=*/true);
  EXPECT_FALSE(waits.empty());
  for (const auto& list : {slices, waits}) {
    for (const Json& event : list) {
      const double begin = event["ts"];
      lanes[event["tid"]].emplace_back(begin, begin + event["dur"].get<double>());
    }
  }
  for (auto& [tid, list] : lanes) {
    std::sort(list.begin(), list.end());
    for (size_t i = 1; i < list.size(); ++i) EXPECT_GE(list[i].first, list[i - 1].second) << tid;
  }
  for (const Json& event : waits)
    EXPECT_THAT(event["name"].get<std::string>(), HasSubstr("wait for rank"));
  const auto within_slice = [&](const Json& arrow) {
    return std::any_of(slices.begin(), slices.end(), [&](const Json& slice) {
      const double begin = slice["ts"], at = arrow["ts"];
      return slice["tid"] == arrow["tid"] && slice["pid"] == arrow["pid"] && at > begin &&
             at < begin + slice["dur"].get<double>();
    });
  };
  std::map<int, std::pair<Json, Json>> arrows;
  for (const Json& event : EventsOf(trace, "s")) arrows[event["id"]].first = event;
  for (const Json& event : EventsOf(trace, "f")) arrows[event["id"]].second = event;
  size_t signals = 0;  // waits of this epoch
  for (const Json& slice : slices)
    for (const Json& wait : slice["args"]["waits"])
      signals += absl::EndsWith(wait.get<std::string>(), "-1") ? 0 : 1;
  EXPECT_EQ(arrows.size(), signals);
  bool between_nodes = false;
  for (const auto& [id, ends] : arrows) {
    EXPECT_TRUE(within_slice(ends.first)) << ends.first;
    EXPECT_TRUE(within_slice(ends.second)) << ends.second;
    EXPECT_EQ(ends.second["bp"], "e");
    between_nodes |= ends.first["pid"] != ends.second["pid"];
  }
  EXPECT_TRUE(between_nodes);
}

// Rank 2 sends its second step, rank 3 waits for it in its first one after the join.
v1::Job UnfinishedJob(v1::Job::State state) {
  v1::Job job = TracedJob();
  job.set_state(state);
  for (v1::RankReport& report : *job.mutable_ranks()) {
    report.mutable_progress()->set_epoch(1);
    report.mutable_progress()->set_for_us(1000);
    for (int step = 1; step < report.steps_size(); ++step) report.mutable_steps(step)->Clear();
  }
  job.mutable_ranks(0)->mutable_steps(1)->set_start_us(20);
  return job;
}

TEST(Trace, OfAnUnfinishedJobEndsAtTheProgressOfItsRanks) {
  for (v1::Job::State state :
       {v1::Job::STATE_RUNNING, v1::Job::STATE_FAILED, v1::Job::STATE_CANCELLED}) {
    const v1::Job job = UnfinishedJob(state);
    const absl::StatusOr<Json> trace = TraceOf({job}, Status());
    ASSERT_TRUE(trace.ok()) << trace.status();
    EXPECT_EQ((*trace)["otherData"]["jobs"][0]["epoch"], 1);
    int open_steps = 0, open_waits = 0;
    for (const Json& slice : EventsOf(*trace, "X")) {
      if (slice["args"]["over"] == true) continue;
      ++open_steps;
      EXPECT_EQ(slice["args"]["step"], 1);
      EXPECT_DOUBLE_EQ(slice["ts"].get<double>() + slice["dur"].get<double>(), 1000);
    }
    for (const Json& slice : EventsOf(*trace, "X", /*waits=*/true)) {
      if (slice["args"]["over"] == true) continue;
      ++open_waits;
      EXPECT_DOUBLE_EQ(slice["ts"].get<double>() + slice["dur"].get<double>(),
                       1000 + (slice["pid"] == 1 ? 100 : 0));
    }
    EXPECT_EQ(open_steps, 1);
    EXPECT_GE(open_waits, 1);
  }
}

TEST(Trace, JoinsOnlyStepsOfOneEpoch) {
  v1::Job job = TracedJob();
  job.set_state(v1::Job::STATE_RUNNING);
  for (int rank : {0, 1}) job.mutable_ranks(rank)->mutable_progress()->set_epoch(4);
  EXPECT_FALSE(EventsOf(*TraceOf({job}, Status()), "s").empty());
  // Rank 3 is between two epochs; its times belong to the previous epoch.
  job.mutable_ranks(1)->mutable_progress()->set_epoch(0);
  job.mutable_ranks(1)->mutable_progress()->set_epochs_done(3);
  const Json trace = *TraceOf({job}, Status());
  for (const Json& slice : EventsOf(trace, "X"))
    EXPECT_EQ(slice["args"]["epoch"], slice["args"]["rank"] == 2 ? 4 : 3);
  std::map<int, std::set<int>> nodes;  // of each arrow
  for (const char* end : {"s", "f"})
    for (const Json& event : EventsOf(trace, end))
      nodes[event["id"]].insert(event["pid"].get<int>());
  for (const auto& [id, ends] : nodes) EXPECT_EQ(ends.size(), 1);
}

TEST(Trace, LeavesOutRanksThatDidNotReport) {
  v1::Job job = TracedJob();
  job.mutable_ranks()->RemoveLast();
  const Json trace = *TraceOf({job}, Status());
  for (const Json& slice : EventsOf(trace, "X")) EXPECT_EQ(slice["pid"], 0);
}

TEST(Trace, HasTheOptionsAsAgmmctlPrintsThem) {
  PlanOptions more{"ring", 1};
  more.split = "N=x";
  more.k_chunks = 2;
  more.partials = DType::kBF16;
  for (const PlanOptions& options : {PlanOptions{"ring", 1}, more}) {
    const v1::Job job = TracedJob(1e15, options);
    const auto trace = TraceOf({job}, Status());
    ASSERT_TRUE(trace.ok()) << trace.status();
    EXPECT_EQ((*trace)["otherData"]["jobs"][0]["options"], ToJson(job.options()));
  }
}

TEST(Trace, OfTwoJobsHasOneZero) {
  v1::Job late = TracedJob(1'700'000'000'000'050);
  late.set_job_id(6);
  const Json trace = *TraceOf({late, TracedJob()}, Status());
  double first = 1e9;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["args"]["job"] != 6) continue;
    first = std::min(first, event["ts"].get<double>());
  }
  EXPECT_DOUBLE_EQ(first, 50);
  EXPECT_EQ(trace["otherData"]["jobs"].size(), 2);
}

TEST(Trace, IsRefusedIfStepsDifferOrAreMissing) {
  v1::Job job = TracedJob();
  job.set_plan_hash("0000000000000000");
  EXPECT_THAT(TraceOf({job}, Status()).status().message(), HasSubstr("0000000000000000"));
  EXPECT_TRUE(absl::IsFailedPrecondition(TraceOf({job}, Status()).status()));

  job = TracedJob();
  for (v1::RankReport& report : *job.mutable_ranks()) report.clear_steps();
  EXPECT_THAT(TraceOf({job}, Status()).status().message(), HasSubstr("are no longer kept"));
  EXPECT_TRUE(absl::IsFailedPrecondition(TraceOf({job}, Status()).status()));
  job.set_state(v1::Job::STATE_QUEUED);
  EXPECT_THAT(TraceOf({job}, Status()).status().message(), HasSubstr("it is queued"));
  job.set_state(v1::Job::STATE_RUNNING);
  EXPECT_THAT(TraceOf({job}, Status()).status().message(), HasSubstr("did not come from any node"));
  job.set_state(v1::Job::STATE_FAILED);
  EXPECT_THAT(TraceOf({job}, Status()).status().message(), HasSubstr("the job never started"));

  job = TracedJob();
  job.mutable_ranks(0)->mutable_steps()->RemoveLast();
  EXPECT_THAT(TraceOf({job}, Status()).status().message(), HasSubstr("its plan has"));

  job = TracedJob();
  job.set_spec("A[M");
  EXPECT_TRUE(absl::IsInvalidArgument(TraceOf({job}, Status()).status()));
}

}  // namespace
}  // namespace agmm
