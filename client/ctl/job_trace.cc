#include "client/ctl/job_trace.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/connect/job_watch.h"
#include "client/ctl/job_progress.h"
#include "client/ctl/matmul_figures.h"
#include "client/ctl/product.h"
#include "client/ctl/ready_world.h"
#include "client/ctl/report.h"
#include "kernels/base/status.h"
#include "kernels/schedule/text.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

// A rank's lanes are threads of its node, with adjacent ids.
constexpr int kLanesOfRank = 100;
// Arrows begin and end this far inside their slices, because a viewer finds a slice by the time of
// the arrow's end, with nanosecond resolution.
constexpr double kInsideUs = 0.002;

struct TracedJob {
  const v1::Job* job;
  Problem problem;
  Schedule schedule;
  std::vector<const v1::RankReport*> reports;  // by rank of the mesh; null: without times
};

bool HasTimes(const v1::RankReport* report) {
  return report != nullptr && !report->steps().empty() && report->epoch_start_unix_us() > 0;
}

// Returns the epoch that the step times of a rank belong to.
int EpochOf(const v1::Job& job, const v1::RankReport& report) {
  if (!report.has_progress()) return std::max(job.repeat_count(), 1);
  const v1::RankProgress& progress = report.progress();
  return progress.epoch() > 0 ? progress.epoch() : progress.epochs_done();
}

absl::Status NoTimesError(const v1::Job& job) {
  const char* why = "are no longer kept; run the job again and trace it right after";
  if (job.state() == v1::Job::STATE_QUEUED) {
    why = "do not exist yet, because it is queued; `agmmctl job why` says what it waits for";
  } else if (!HasEnded(job)) {
    why = "did not come from any node; `agmmctl job why` says which ones are silent";
  } else if (job.state() != v1::Job::STATE_SUCCEEDED) {
    why = "are not available: the job never started, a node was lost, or newer jobs displaced them";
  }
  return absl::FailedPreconditionError(
      absl::StrFormat("the times of the steps of job %d %s", job.job_id(), why));
}

absl::StatusOr<TracedJob> StepsOf(const v1::Job& job, const v1::GetStatusResponse& status) {
  TracedJob traced{&job};
  AGMM_ASSIGN_OR_RETURN(traced.problem, ProblemOf(job));
  const Mesh& mesh = traced.problem.mesh;
  traced.reports = ReportsByRank(job, mesh);
  const Topology world = TopologyOfWorld(status);
  Topology topology;
  for (Rank rank = 0; rank < mesh.size(); ++rank) {
    const v1::RankReport*& report = traced.reports[rank];
    const size_t number = mesh.ranks[rank];
    if (report != nullptr) {
      topology.node_of_rank.push_back(report->node());
      topology.island_of_rank.push_back(report->island());
    } else if (number < world.node_of_rank.size()) {
      topology.node_of_rank.push_back(world.node_of_rank[number]);
      topology.island_of_rank.push_back(world.island_of_rank[number]);
    } else {
      return NoTimesError(job);
    }
    if (!HasTimes(report)) report = nullptr;
  }
  if (absl::c_count(traced.reports, nullptr) == mesh.size()) return NoTimesError(job);
  AGMM_ASSIGN_OR_RETURN(traced.schedule, PlanAgain(traced.problem, topology, job));
  for (size_t rank = 0; rank < traced.reports.size(); ++rank) {
    const int want = static_cast<int>(traced.schedule.ranks[rank].size());
    if (traced.reports[rank] != nullptr && traced.reports[rank]->steps_size() != want) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "job %d (%s) has times of %d steps on rank %d, but its plan has %d steps", job.job_id(),
          job.options().algorithm(), traced.reports[rank]->steps_size(), mesh.ranks[rank], want));
    }
  }
  return traced;
}

std::string SlotText(const Problem& problem, const Slot& slot) {
  return absl::StrCat(problem.mesh.ranks[slot.rank], ":", slot.index);
}

Json WaitsOf(const Problem& problem, const Step& step) {
  Json waits = Json::array();
  for (const Wait& wait : step.waits)
    waits.push_back(SlotText(problem, wait.slot) + (wait.lag > 0 ? "-1" : ""));
  return waits;
}

Json NameEvent(const char* what, int pid, int tid, const char* key, Json value) {
  return {{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", {{key, value}}}};
}

// The name of a lane, from its steps: "multiply", "send to rank 3", "copy, reduce".
class LaneName {
 public:
  void Add(const Problem& problem, const Step& step) {
    const auto* transfer = std::get_if<Transfer>(&step.op);
    if (transfer == nullptr) {
      if (!std::holds_alternative<Join>(step.op)) what_.insert(OpName(step.op));
      return;
    }
    for (const Place& to : transfer->to) {
      if (to.rank == transfer->from.rank) {
        what_.insert("copy");
      } else {
        to_.insert(problem.mesh.ranks[to.rank]);
      }
    }
  }
  std::string Text() const {
    std::vector<std::string> parts(what_.begin(), what_.end());
    if (!to_.empty()) {
      parts.push_back(absl::StrCat(to_.size() == 1 ? "send to rank " : "send to ranks ",
                                   FormatRanks({to_.begin(), to_.end()})));
    }
    return parts.empty() ? "join" : absl::StrJoin(parts, ", ");
  }

 private:
  std::set<std::string> what_;
  std::set<int> to_;
};

// The slices and arrows of one job.
class JobEvents {
 public:
  JobEvents(const TracedJob& traced, double zero_unix_us, Json* events, int* arrows)
      : traced_(traced), zero_unix_us_(zero_unix_us), events_(events), arrows_(arrows) {
    for (Rank rank = 0; rank < traced.problem.mesh.size(); ++rank) {
      const std::vector<Step>& steps = traced.schedule.ranks[rank];
      slices_.emplace_back(steps.size());
      for (size_t step = 0; step < steps.size(); ++step)
        for (const Slot& slot : steps[step].signals)
          producers_[slot] = {rank, static_cast<int>(step)};
    }
  }

  void Add() {
    for (Rank rank = 0; rank < traced_.problem.mesh.size(); ++rank)
      if (traced_.reports[rank] != nullptr) AddRank(rank);
    for (Rank rank = 0; rank < traced_.problem.mesh.size(); ++rank) {
      for (size_t step = 0; step < slices_[rank].size(); ++step)
        AddArrows(rank, static_cast<int>(step));
    }
  }

 private:
  struct Slice {
    int pid = 0, tid = 0;
    double begin = 0, end = 0;
    bool begun = false, over = false;
  };

  void AddRank(Rank rank) {
    const v1::RankReport& report = *traced_.reports[rank];
    const double zero = report.epoch_start_unix_us() - zero_unix_us_;
    double last_us = std::max(0.0, report.progress().for_us());
    for (const v1::StepTime& time : report.steps())
      last_us = std::max({last_us, time.start_us(), time.end_us()});
    std::set<int> at_work;
    for (const v1::LaneProgress& lane : report.progress().lanes())
      if (lane.waits().empty()) at_work.insert(lane.step().step());
    std::map<int, double> lanes;        // the end of the last step of each
    std::map<int, bool> lane_is_stuck;  // a step of it has not ended
    for (int index = 0; index < report.steps_size(); ++index) {
      const Step& step = traced_.schedule.ranks[rank][index];
      const v1::StepTime& time = report.steps(index);
      if (lane_is_stuck[step.lane]) continue;
      Slice& slice = slices_[rank][index];
      slice.pid = report.node();
      slice.tid = report.rank() * kLanesOfRank + step.lane;
      slice.begun = time.start_us() > 0 || time.end_us() > 0;
      // The first part of a step may be over, and not the step.
      slice.over = time.end_us() > 0 && at_work.count(index) == 0;
      lane_is_stuck[step.lane] = !slice.over;
      const double begin = slice.begun ? time.start_us() : last_us;
      const double end = slice.over ? std::max(begin, time.end_us()) : last_us;
      slice.begin = zero + begin;
      slice.end = zero + end;
      double& ready = lanes[step.lane];
      if (!step.waits.empty() && begin > ready)
        AddWait(rank, index, slice, zero + ready, zero + begin);
      if (slice.begun) AddStep(rank, index, slice);
      ready = end;
    }
  }

  int EpochOf(Rank rank) const { return agmm::EpochOf(*traced_.job, *traced_.reports[rank]); }

  Json ArgsOf(Rank rank, int index) const {
    const Step& step = traced_.schedule.ranks[rank][index];
    return {{"job", traced_.job->job_id()},
            {"rank", traced_.problem.mesh.ranks[rank]},
            {"lane", step.lane},
            {"step", index},
            {"epoch", EpochOf(rank)},
            {"waits", WaitsOf(traced_.problem, step)}};
  }

  void AddStep(Rank rank, int index, const Slice& slice) {
    const Step& step = traced_.schedule.ranks[rank][index];
    const Amount amount = AmountOf(step);
    Json signals = Json::array();
    for (const Slot& slot : step.signals) signals.push_back(SlotText(traced_.problem, slot));
    Json args = ArgsOf(rank, index);
    args["signals"] = std::move(signals);
    args[amount.unit] = amount.count;
    args["over"] = slice.over;
    AddSlice(Describe(traced_.problem, step), OpName(step.op), slice, slice.begin, slice.end,
             std::move(args));
  }

  void AddWait(Rank rank, int index, const Slice& slice, double begin, double end) {
    Json args = ArgsOf(rank, index);
    args["over"] = slice.begun;
    AddSlice(WaitName(rank, index), "wait", slice, begin, end, std::move(args));
  }

  void AddSlice(const std::string& name, const std::string& category, const Slice& place,
                double begin, double end, Json args) {
    events_->push_back({{"ph", "X"},
                        {"name", name},
                        {"cat", category},
                        {"pid", place.pid},
                        {"tid", place.tid},
                        {"ts", begin},
                        {"dur", end - begin},
                        {"args", std::move(args)}});
  }

  std::string WaitName(Rank rank, int index) const {
    const Step& step = traced_.schedule.ranks[rank][index];
    const auto it = producers_.find(step.waits.front().slot);
    if (it == producers_.end()) return "wait";
    const auto [other, producer] = it->second;
    return absl::StrFormat(
        "wait for rank %d: %s%s%s", traced_.problem.mesh.ranks[other],
        Describe(traced_.problem, traced_.schedule.ranks[other][producer]),
        step.waits.front().lag > 0 ? " in the epoch before" : "",
        step.waits.size() > 1 ? absl::StrFormat(", and %d more", step.waits.size() - 1) : "");
  }

  void AddArrows(Rank rank, int index) {
    const Slice& to = slices_[rank][index];
    if (!to.begun) return;
    for (const Wait& wait : traced_.schedule.ranks[rank][index].waits) {
      const auto it = producers_.find(wait.slot);
      if (wait.lag > 0 || it == producers_.end()) continue;
      const Slice& from = slices_[it->second.first][it->second.second];
      // A rank may be an epoch ahead of another; its signal belongs to its own epoch.
      if (!from.over || EpochOf(it->second.first) != EpochOf(rank)) continue;
      const int id = ++*arrows_;
      const auto add = [&](const char* phase, const Slice& slice, double at) {
        Json event = {{"ph", phase},      {"name", "signal"}, {"cat", "signal"}, {"id", id},
                      {"pid", slice.pid}, {"tid", slice.tid}, {"ts", at}};
        if (*phase == 'f') event["bp"] = "e";
        events_->push_back(std::move(event));
      };
      const auto inside = [](const Slice& slice) {
        return std::min(kInsideUs, (slice.end - slice.begin) / 2);
      };
      add("s", from, from.end - inside(from));
      add("f", to, to.begin + inside(to));
    }
  }

  const TracedJob& traced_;
  const double zero_unix_us_;
  Json* const events_;
  int* const arrows_;
  std::map<Slot, std::pair<Rank, int>> producers_;
  std::vector<std::vector<Slice>> slices_;  // by rank and step
};

}  // namespace

absl::StatusOr<Json> TraceOf(const std::vector<v1::Job>& jobs,
                             const v1::GetStatusResponse& status) {
  std::vector<TracedJob> all;
  std::vector<double> starts;
  Json list = Json::array();
  for (const v1::Job& job : jobs) {
    AGMM_ASSIGN_OR_RETURN(TracedJob traced, StepsOf(job, status));
    int epoch = 0;
    for (const v1::RankReport* report : traced.reports) {
      if (report == nullptr) continue;
      starts.push_back(report->epoch_start_unix_us());
      epoch = std::max(epoch, EpochOf(job, *report));
    }
    list.push_back({{"job_id", job.job_id()},
                    {"state", EnumName(job.state())},
                    {"spec", job.spec()},
                    {"algorithm", traced.schedule.algorithm},
                    {"options", ToJson(job.options())},
                    {"plan_hash", job.plan_hash()},
                    {"epoch", epoch}});
    all.push_back(std::move(traced));
  }
  if (all.empty()) return absl::InvalidArgumentError("a trace needs at least one job");
  const double zero_unix_us = *absl::c_min_element(starts);
  const NodeNameFn names = NamesOf(status);
  std::set<int> nodes;
  std::map<std::tuple<int, int, int>, LaneName> lanes;  // by node, rank of the world and lane
  Json slices = Json::array();
  int arrows = 0;
  for (const TracedJob& traced : all) {
    for (Rank rank = 0; rank < traced.problem.mesh.size(); ++rank) {
      const v1::RankReport* report = traced.reports[rank];
      if (report == nullptr) continue;
      nodes.insert(report->node());
      for (const Step& step : traced.schedule.ranks[rank])
        lanes[{report->node(), report->rank(), step.lane}].Add(traced.problem, step);
    }
    JobEvents(traced, zero_unix_us, &slices, &arrows).Add();
  }
  Json events = Json::array();
  for (int node : nodes)
    events.push_back(
        NameEvent("process_name", node, 0, "name", absl::StrCat("node ", names(node))));
  for (const auto& [place, name] : lanes) {
    const auto [node, rank, lane] = place;
    const int tid = rank * kLanesOfRank + lane;
    events.push_back(NameEvent("thread_name", node, tid, "name",
                               absl::StrFormat("rank %d lane %d: %s", rank, lane, name.Text())));
    events.push_back(NameEvent("thread_sort_index", node, tid, "sort_index", tid));
  }
  events.insert(events.end(), slices.begin(), slices.end());
  return Json{{"schema", "agmm.trace.v1"},
              {"displayTimeUnit", "ms"},
              {"otherData", {{"zero_unix_us", zero_unix_us}, {"jobs", std::move(list)}}},
              {"traceEvents", std::move(events)}};
}

}  // namespace agmm
