#include "client/ctl/job_progress.h"

#include <algorithm>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/connect/job_watch.h"
#include "client/ctl/report.h"
#include "client/ctl/table.h"
#include "kernels/base/units.h"
#include "proto/convert/plan_inputs.h"
#include "proto/convert/rpc_status.h"

namespace agmm {
namespace {

using Link = WaitChain::Link;

// Returns the most telling lane of a rank: the one that has worked longest, unless another has
// waited or was ready for more than twice as long. Null if no lane has steps left.
const v1::LaneProgress* TellingLane(const v1::RankProgress& rank) {
  const auto weight = [](const v1::LaneProgress& lane) {
    return lane.waits().empty() && !lane.ready() ? 2 * lane.for_us() : lane.for_us();
  };
  const auto& lanes = rank.lanes();
  const auto most = absl::c_max_element(
      lanes, [&](const auto& a, const auto& b) { return weight(a) < weight(b); });
  return most == lanes.end() ? nullptr : &*most;
}

std::string RankState(const v1::RankReport& rank, int total, const NodeNameFn& names) {
  const v1::RankProgress& progress = rank.progress();
  if (progress.epoch() == 0) {
    if (progress.epochs_done() >= total) return "done";
    if (progress.behind()) return "waits until its device has run epochs of other jobs";
    return progress.epochs_done() > 0 ? "between two epochs" : "has not begun";
  }
  const v1::LaneProgress* lane = TellingLane(progress);
  if (lane == nullptr) {
    return progress.in_flight_count() > 0
               ? absl::StrCat("its steps are over, with ", progress.in_flight_count(),
                              progress.in_flight_count() == 1 ? " message" : " messages",
                              " to other nodes on the way")
               : "its steps are over";
  }
  return absl::StrFormat("lane %d step %d (%s): %s", lane->step().lane(), lane->step().step(),
                         lane->step().text(), LinkText({&rank, lane}, names));
}

// "job 5 is running: 2 of 10 epochs done, ..." or how it ended.
std::string StateText(const v1::Job& job) {
  if (HasEnded(job)) {
    const absl::Status error = FromProto(job.error());
    return absl::StrFormat(
        "job %s has %s%s", JobId(job),
        job.state() == v1::Job::STATE_CANCELLED ? "been cancelled" : EnumName(job.state()),
        error.ok() ? "" : absl::StrCat(": ", std::string(error.message())));
  }
  std::string text = absl::StrFormat("job %d is %s", job.job_id(), EnumName(job.state()));
  if (job.waits_for().reason().empty()) return absl::StrCat(text, ": ", EpochsText(job));
  absl::StrAppend(&text, ": it waits for ", job.waits_for().reason());
  if (job.waits_for().ranks_size() > 0)
    absl::StrAppend(&text, ", on ", job.waits_for().ranks_size() == 1 ? "rank " : "ranks ",
                    FormatRanks({job.waits_for().ranks().begin(), job.waits_for().ranks().end()}));
  return text;
}

// "a (10.0.0.1:7301)".
std::string Where(int node, const v1::GetStatusResponse& status) {
  for (const v1::NodeStatus& known : status.nodes()) {
    if (known.index() != node) continue;
    const std::string& endpoint =
        known.transport_endpoint().empty() ? known.address() : known.transport_endpoint();
    return absl::StrFormat("%s (%s)", known.name(), endpoint);
  }
  return absl::StrCat(node);
}

// "1.2 MiB/s over the last 0.5 s", or "nothing acknowledged for 3.2 s, and 2 MiB wait".
std::string RateOf(const PathRate& rate) {
  if (rate.bytes_per_s > 0)
    return absl::StrFormat("%s/s over the last %s",
                           FormatBytes(static_cast<int64_t>(rate.bytes_per_s)),
                           TimeText(rate.over_s * 1e6));
  if (rate.waiting_bytes == 0)
    return absl::StrFormat("nothing sent in the last %s", TimeText(rate.over_s * 1e6));
  return absl::StrFormat("nothing acknowledged for %s, and %s wait for it",
                         TimeText(std::max(rate.silent_us, rate.over_s * 1e6)),
                         FormatBytes(rate.waiting_bytes));
}

void AppendChain(const v1::Job& job, const PathRates& rates, const v1::GetStatusResponse& status,
                 std::string* text) {
  const RankReportsView ranks = ViewOf(job);
  const WaitChain chain = FollowWaits(ranks);
  const NodeNameFn names = NamesOf(status);
  for (const Link& link : chain.links) {
    absl::StrAppend(text, "  ", StepText(link.lane->step(), names(link.rank->node())), "\n    ",
                    LinkText(link, names), "\n");
  }
  if (const std::string end = EndText(chain, names); !end.empty())
    absl::StrAppend(text, "  ", end, "\n");
  for (const auto& path : NodesAtEnd(chain)) {
    absl::StrAppendFormat(text, "    path: %s -> %s", Where(path.first, status),
                          Where(path.second, status));
    if (const auto it = rates.find(path); it != rates.end())
      absl::StrAppend(text, ", ", RateOf(it->second));
    absl::StrAppend(text, "\n");
  }
  for (const std::string& silent : job.silent_nodes())
    absl::StrAppend(text, "  no progress report from node ", silent, "\n");
}

}  // namespace

std::string ProgressTable(const v1::Job& job, const NodeNameFn& names) {
  const bool begun = absl::c_any_of(job.ranks(), [](const v1::RankReport& rank) {
    return rank.progress().epoch() > 0 || rank.progress().epochs_done() > 0;
  });
  if (!begun) return "";
  Table table({Number("rank"), LongWords("node"), Number("epoch"), WrappedWords("")});
  const int total = std::max(job.repeat_count(), 1);
  for (const auto& [number, rank] : ViewOf(job)) {
    if (!rank->has_progress()) continue;
    const v1::RankProgress& progress = rank->progress();
    table.AddRow({absl::StrCat(number), names(rank->node()),
                  absl::StrCat(progress.epoch() > 0 ? progress.epoch() : progress.epochs_done()),
                  RankState(*rank, total, names)});
  }
  return table.ToString();
}

PathRates RatesOf(const v1::Job& before, const v1::Job& now) {
  std::map<std::pair<int, int>, const v1::NodePath*> earlier;
  for (const v1::NodePath& path : before.node_paths())
    earlier[{path.from_node(), path.to_node()}] = &path;
  PathRates rates;
  for (const v1::NodePath& path : now.node_paths()) {
    const auto it = earlier.find({path.from_node(), path.to_node()});
    if (it == earlier.end() || path.at_us() <= it->second->at_us()) continue;
    PathRate& rate = rates[it->first];
    rate.over_s = (path.at_us() - it->second->at_us()) * 1e-6;
    // A connection that was opened again counts from zero.
    const int64_t bytes = path.acked_bytes() - it->second->acked_bytes();
    rate.bytes_per_s = std::max<double>(0, bytes / rate.over_s);
    rate.waiting_bytes = path.waiting_bytes();
    rate.silent_us = path.silent_us();
  }
  return rates;
}

bool HangsOnPath(const v1::Job& job) {
  const RankReportsView ranks = ViewOf(job);
  return !NodesAtEnd(FollowWaits(ranks)).empty();
}

std::string WhyText(const std::vector<v1::Job>& jobs, const PathRates& rates,
                    const v1::GetStatusResponse& status) {
  std::string text;
  for (const v1::Job& job : jobs) {
    absl::StrAppend(&text, StateText(job), "\n");
    AppendChain(job, rates, status, &text);
  }
  return text;
}

Json WhyJson(const std::vector<v1::Job>& jobs, const PathRates& rates,
             const v1::GetStatusResponse& status) {
  Json list = Json::array();
  for (const v1::Job& job : jobs) {
    const RankReportsView ranks = ViewOf(job);
    const WaitChain chain = FollowWaits(ranks);
    Json links = Json::array();
    for (const Link& link : chain.links) {
      Json step = ToJson(*link.lane);
      step["node"] = link.rank->node();
      links.push_back(std::move(step));
    }
    Json paths = Json::array();
    for (const auto& path : NodesAtEnd(chain)) {
      const auto it = rates.find(path);
      std::optional<double> bytes_per_s;
      if (it != rates.end()) bytes_per_s = it->second.bytes_per_s;
      paths.push_back({{"from", Where(path.first, status)},
                       {"to", Where(path.second, status)},
                       {"bytes_per_s", bytes_per_s}});
    }
    const EpochCount epochs = CountEpochs(job);
    list.push_back(
        {{"job_id", job.job_id()},
         {"state", EnumName(job.state())},
         {"epochs_done", epochs.done},
         {"epochs", epochs.total},
         {"epoch_us", epochs.epoch_us},
         {"waits_for", job.has_waits_for() ? ToJson(job.waits_for()) : Json(nullptr)},
         {"chain", std::move(links)},
         {"paths", std::move(paths)},
         {"cause", NullIfEmpty(CauseText(chain, NamesOf(status)))},
         {"silent_nodes",
          Json(std::vector<std::string>(job.silent_nodes().begin(), job.silent_nodes().end()))},
         {"error", job.has_error() ? ToJson(FromProto(job.error()))["error"] : Json(nullptr)}});
  }
  return {{"schema", "agmm.job_why.v1"}, {"jobs", std::move(list)}};
}

std::string ProgressLineText(const v1::Job& before, const v1::Job& job, const NodeNameFn& names) {
  if (!job.waits_for().reason().empty())
    return absl::StrCat("waits for ", job.waits_for().reason());
  if (job.state() != v1::Job::STATE_RUNNING) return EnumName(job.state());
  std::string text = EpochsText(job);
  const RankReportsView ranks = ViewOf(job);
  if (CountEpochs(job).current_us < 1e6 || !IsHeldUp(ranks)) return text;
  const WaitChain chain = FollowWaits(ranks);
  // The line is short, so the path and its throughput come first.
  const PathRates rates = RatesOf(before, job);
  for (const auto& path : NodesAtEnd(chain)) {
    absl::StrAppendFormat(&text, "; %s -> %s", names(path.first), names(path.second));
    if (const auto it = rates.find(path); it != rates.end())
      absl::StrAppend(&text, " ", RateOf(it->second));
  }
  const std::string cause = CauseText(chain, names);
  return cause.empty() ? text : absl::StrCat(text, "; ", cause);
}

}  // namespace agmm
