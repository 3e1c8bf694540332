#include "client/trace/trace_events.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/units.h"
#include "kernels/schedule/text.h"

namespace agmm {
namespace {

// A rank's lanes are threads of its node, with adjacent ids.
constexpr int kLanesOfRank = 100;
// Arrows begin and end this far inside their slices, because a viewer finds a slice by the time of
// the arrow's end, with nanosecond resolution.
constexpr double kInsideUs = 0.002;

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

// The slices and arrows of one plan.
class PlanEvents {
 public:
  PlanEvents(const TracedPlan& traced, Json* events, int* arrows)
      : traced_(traced), events_(events), arrows_(arrows) {
    for (Rank rank = 0; rank < traced.problem.mesh.size(); ++rank) {
      const std::vector<Step>& steps = traced.schedule.ranks[rank];
      for (size_t step = 0; step < steps.size(); ++step)
        for (const Slot& slot : steps[step].signals)
          producers_[slot] = {rank, static_cast<int>(step)};
    }
  }

  void Add() {
    for (Rank rank = 0; rank < traced_.problem.mesh.size(); ++rank) {
      for (int step = 0; step < StepCount(rank); ++step) {
        const TracedStep& times = Times(rank, step);
        if (!StepOf(rank, step).waits.empty() && times.begin_us > times.ready_us)
          AddWait(rank, step);
        if (times.begun) AddStep(rank, step);
      }
    }
    for (Rank rank = 0; rank < traced_.problem.mesh.size(); ++rank)
      for (int step = 0; step < StepCount(rank); ++step) AddArrows(rank, step);
  }

 private:
  int StepCount(Rank rank) const { return static_cast<int>(traced_.ranks[rank].steps.size()); }
  const TracedStep& Times(Rank rank, int step) const { return traced_.ranks[rank].steps[step]; }
  const Step& StepOf(Rank rank, int step) const { return traced_.schedule.ranks[rank][step]; }
  int ThreadOf(Rank rank, int step) const {
    return traced_.problem.mesh.ranks[rank] * kLanesOfRank + StepOf(rank, step).lane;
  }

  Json ArgsOf(Rank rank, int index) const {
    Json args = traced_.args;
    args["rank"] = traced_.problem.mesh.ranks[rank];
    args["lane"] = StepOf(rank, index).lane;
    args["step"] = index;
    args["epoch"] = traced_.ranks[rank].epoch;
    args["waits"] = WaitsOf(traced_.problem, StepOf(rank, index));
    return args;
  }

  void AddStep(Rank rank, int index) {
    const Step& step = StepOf(rank, index);
    const TracedStep& times = Times(rank, index);
    const Amount amount = AmountOf(step);
    Json signals = Json::array();
    for (const Slot& slot : step.signals) signals.push_back(SlotText(traced_.problem, slot));
    Json args = ArgsOf(rank, index);
    args["signals"] = std::move(signals);
    args[amount.unit] = amount.count;
    args["over"] = times.over;
    AddSlice(Describe(traced_.problem, step), OpName(step.op), rank, index, times.begin_us,
             times.end_us, std::move(args));
  }

  void AddWait(Rank rank, int index) {
    const TracedStep& times = Times(rank, index);
    Json args = ArgsOf(rank, index);
    args["over"] = times.begun;
    AddSlice(WaitName(rank, index), "wait", rank, index, times.ready_us, times.begin_us,
             std::move(args));
  }

  void AddSlice(const std::string& name, const std::string& category, Rank rank, int index,
                double begin_us, double end_us, Json args) {
    events_->push_back({{"ph", "X"},
                        {"name", name},
                        {"cat", category},
                        {"pid", traced_.ranks[rank].node},
                        {"tid", ThreadOf(rank, index)},
                        {"ts", begin_us},
                        {"dur", end_us - begin_us},
                        {"args", std::move(args)}});
  }

  std::string WaitName(Rank rank, int index) const {
    const Step& step = StepOf(rank, index);
    const auto it = producers_.find(step.waits.front().slot);
    if (it == producers_.end()) return "wait";
    const auto [other, producer] = it->second;
    return absl::StrFormat(
        "wait for rank %d: %s%s%s", traced_.problem.mesh.ranks[other],
        Describe(traced_.problem, StepOf(other, producer)),
        step.waits.front().lag > 0 ? " in the epoch before" : "",
        step.waits.size() > 1 ? absl::StrFormat(", and %d more", step.waits.size() - 1) : "");
  }

  void AddArrows(Rank rank, int index) {
    const TracedStep& to = Times(rank, index);
    if (!to.begun) return;
    for (const Wait& wait : StepOf(rank, index).waits) {
      const auto it = producers_.find(wait.slot);
      if (wait.lag > 0 || it == producers_.end()) continue;
      const auto [other, producer] = it->second;
      // A rank may be an epoch ahead of another; its signal belongs to its own epoch.
      if (traced_.ranks[other].steps.empty() || !Times(other, producer).over ||
          traced_.ranks[other].epoch != traced_.ranks[rank].epoch)
        continue;
      const TracedStep& from = Times(other, producer);
      ++*arrows_;
      AddEnd("s", other, producer, from.end_us - Inside(from));
      AddEnd("f", rank, index, to.begin_us + Inside(to));
    }
  }

  static double Inside(const TracedStep& step) {
    return std::min(kInsideUs, (step.end_us - step.begin_us) / 2);
  }

  void AddEnd(const char* phase, Rank rank, int index, double at_us) {
    Json event = {{"ph", phase},
                  {"name", "signal"},
                  {"cat", "signal"},
                  {"id", *arrows_},
                  {"pid", traced_.ranks[rank].node},
                  {"tid", ThreadOf(rank, index)},
                  {"ts", at_us}};
    if (*phase == 'f') event["bp"] = "e";
    events_->push_back(std::move(event));
  }

  const TracedPlan& traced_;
  Json* const events_;
  int* const arrows_;
  std::map<Slot, std::pair<Rank, int>> producers_;
};

}  // namespace

Json TraceEvents(const std::vector<TracedPlan>& plans,
                 const std::function<std::string(int node)>& node_name) {
  std::set<int> nodes;
  std::map<std::tuple<int, int, int>, LaneName> lanes;  // by node, rank of the world and lane
  Json slices = Json::array();
  int arrows = 0;
  for (const TracedPlan& traced : plans) {
    for (Rank rank = 0; rank < traced.problem.mesh.size(); ++rank) {
      const TracedRank& times = traced.ranks[rank];
      if (times.steps.empty()) continue;
      nodes.insert(times.node);
      for (const Step& step : traced.schedule.ranks[rank])
        lanes[{times.node, traced.problem.mesh.ranks[rank], step.lane}].Add(traced.problem, step);
    }
    PlanEvents(traced, &slices, &arrows).Add();
  }
  Json events = Json::array();
  for (int node : nodes)
    events.push_back(
        NameEvent("process_name", node, 0, "name", absl::StrCat("node ", node_name(node))));
  for (const auto& [place, name] : lanes) {
    const auto [node, rank, lane] = place;
    const int tid = rank * kLanesOfRank + lane;
    events.push_back(NameEvent("thread_name", node, tid, "name",
                               absl::StrFormat("rank %d lane %d: %s", rank, lane, name.Text())));
    events.push_back(NameEvent("thread_sort_index", node, tid, "sort_index", tid));
  }
  events.insert(events.end(), slices.begin(), slices.end());
  return events;
}

}  // namespace agmm
