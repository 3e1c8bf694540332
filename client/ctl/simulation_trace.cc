#include "client/ctl/simulation_trace.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/trace/trace_events.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

constexpr int kTimedEpoch = 2;

double Micros(int64_t ns) { return static_cast<double>(ns) / 1000; }

}  // namespace

Json TraceOf(const Problem& problem, const Topology& topology, const Schedule& schedule,
             const Simulation& simulation, const std::string& machine) {
  // Steps of relay lanes may begin before their epoch.
  int64_t zero_ns = 0;
  for (const std::vector<StepTimes>& steps : simulation.steps)
    for (const StepTimes& times : steps)
      zero_ns = std::min({zero_ns, times.ready_ns, times.start_ns});
  TracedPlan traced = {problem, schedule, {}};
  for (Rank rank = 0; rank < topology.rank_count(); ++rank) {
    TracedRank& of_rank = traced.ranks.emplace_back();
    of_rank.node = topology.node_of_rank[rank];
    of_rank.epoch = kTimedEpoch;
    for (const StepTimes& times : simulation.steps[rank]) {
      of_rank.steps.push_back({Micros(times.ready_ns - zero_ns), Micros(times.start_ns - zero_ns),
                               Micros(times.end_ns - zero_ns), /*begun=*/true, /*over=*/true});
    }
  }
  return {{"schema", "agmm.trace.v1"},
          {"displayTimeUnit", "ms"},
          {"otherData",
           {{"machine", machine},
            {"spec", SpecText(problem)},
            {"algorithm", schedule.algorithm},
            {"epoch_begin_us", Micros(-zero_ns)}}},
          {"traceEvents",
           TraceEvents({std::move(traced)}, [](int node) { return absl::StrCat(node); })}};
}

}  // namespace agmm
