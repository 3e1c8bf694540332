#include "proto/convert/wait_chain.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

using Link = WaitChain::Link;
using End = WaitChain::End;

const v1::LaneProgress* LongestOf(const v1::RankProgress& rank) {
  const auto& lanes = rank.lanes();
  const auto longest =
      std::max_element(lanes.begin(), lanes.end(),
                       [](const auto& a, const auto& b) { return a.for_us() < b.for_us(); });
  return longest == lanes.end() ? nullptr : &*longest;
}

// The lane that has to go on before `wait` of a step in `epoch` is over; if no lane has to,
// sets the chain's end.
Link Behind(const RankReportsView& ranks, const v1::SlotWait& wait, int epoch, WaitChain* chain) {
  const v1::StepName& producer = wait.producer();
  const int wanted = epoch - (wait.credit() ? 1 : 0);
  chain->producer = producer;
  const auto it = ranks.find(producer.rank());
  chain->producer_rank = it == ranks.end() ? nullptr : it->second;
  if (it == ranks.end() || !it->second->has_progress()) {
    chain->end = End::kUnknown;
    return {};
  }
  const v1::RankReport* rank = it->second;
  const v1::RankProgress& progress = rank->progress();
  const int at = progress.epoch() > 0 ? progress.epoch() : progress.epochs_done() + 1;
  chain->end = End::kOnItsWay;
  if (at > wanted) return {};
  if (progress.epoch() == 0) {
    chain->end = End::kNotBegun;
    return {};
  }
  for (const v1::LaneProgress& lane : progress.lanes()) {
    if (lane.step().lane() != producer.lane()) continue;
    if (at == wanted && lane.step().step() > producer.step()) return {};
    return {rank, &lane};
  }
  // The lane is over in this epoch. If it is not the wanted one, the rank's other lanes keep it
  // from the next.
  const v1::LaneProgress* const other = at < wanted ? LongestOf(progress) : nullptr;
  return other == nullptr ? Link{} : Link{rank, other};
}

WaitChain ChainFrom(const RankReportsView& ranks, Link link) {
  WaitChain chain;
  while (true) {
    const bool seen = std::any_of(chain.links.begin(), chain.links.end(),
                                  [&](const Link& earlier) { return earlier.lane == link.lane; });
    if (seen) {
      chain.end = End::kCycle;
      return chain;
    }
    chain.links.push_back(link);
    if (link.lane->waits().empty()) {
      chain.end = End::kAtWork;
      return chain;
    }
    // If one of several waits leads to a lane, the chain goes on there.
    Link next = {};
    for (const v1::SlotWait& wait : link.lane->waits()) {
      next = Behind(ranks, wait, link.rank->progress().epoch(), &chain);
      if (next.lane != nullptr) break;
    }
    if (next.lane == nullptr) return chain;
    link = next;
  }
}

// Chains are compared by it, and the greatest is reported.
std::pair<double, double> WeightOf(const WaitChain& chain) {
  const double at_work = chain.end == End::kAtWork ? chain.links.back().lane->for_us() : -1;
  return {at_work, at_work >= 0 ? static_cast<double>(chain.links.size())
                                : chain.links.front().lane->for_us()};
}

}  // namespace

std::string TimeText(double us) {
  return us >= 1e6 ? absl::StrFormat("%.1f s", us * 1e-6) : FormatMicros(us);
}

RankReportsView ViewOf(const v1::Job& job) {
  RankReportsView view;
  for (const v1::RankReport& rank : job.ranks()) view[rank.rank()] = &rank;
  return view;
}

double MedianEpochUs(const v1::RankReport& rank) {
  std::vector<double> times(rank.epoch_us().begin(), rank.epoch_us().end());
  if (times.empty()) return 0;
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

bool IsHeldUp(const RankReportsView& ranks) {
  return std::any_of(ranks.begin(), ranks.end(), [](const auto& entry) {
    const v1::RankReport& rank = *entry.second;
    const double usual_us = MedianEpochUs(rank);
    return rank.progress().epoch() > 0 &&
           (usual_us == 0 || rank.progress().for_us() > std::max(2 * usual_us, 1e6));
  });
}

WaitChain FollowWaits(const RankReportsView& ranks) {
  WaitChain best;
  for (const auto& [number, rank] : ranks) {
    for (const v1::LaneProgress& lane : rank->progress().lanes()) {
      WaitChain chain = ChainFrom(ranks, {rank, &lane});
      if (best.links.empty() || WeightOf(best) < WeightOf(chain)) best = std::move(chain);
    }
  }
  return best;
}

std::string StepText(const v1::StepName& step, const std::string& node) {
  return absl::StrFormat("rank %d lane %d step %d%s (%s)", step.rank(), step.lane(), step.step(),
                         node.empty() ? "" : absl::StrCat(" on node ", node), step.text());
}

std::string LinkText(const Link& link, const NodeNameFn& names) {
  const v1::LaneProgress& lane = *link.lane;
  if (!lane.waits().empty()) {
    const v1::SlotWait& wait = lane.waits(0);
    return absl::StrFormat("waits %s for %sslot %d:%d of %s", TimeText(lane.for_us()),
                           wait.credit() ? "the last epoch in " : "", lane.step().rank(),
                           wait.slot(), StepText(wait.producer(), ""));
  }
  std::string text = absl::StrCat("at work for ", TimeText(lane.for_us()));
  if (lane.network_bytes() > 0) {
    std::vector<std::string> to;
    for (int node : lane.to_nodes()) to.push_back(names(node));
    std::sort(to.begin(), to.end());
    to.erase(std::unique(to.begin(), to.end()), to.end());
    absl::StrAppendFormat(&text, ", %s to node %s", FormatBytes(lane.network_bytes()),
                          absl::StrJoin(to, " and "));
    if (lane.for_us() >= 1e5) {
      // Not all of them have left.
      absl::StrAppendFormat(
          &text, " at less than %s/s",
          FormatBytes(static_cast<int64_t>(lane.network_bytes() / lane.for_us() * 1e6)));
    }
  }
  return text;
}

std::string EndText(const WaitChain& chain, const NodeNameFn& names) {
  const std::string producer = StepText(
      chain.producer, chain.producer_rank == nullptr ? "" : names(chain.producer_rank->node()));
  switch (chain.end) {
    case End::kNothing:
    case End::kAtWork: return "";
    case End::kOnItsWay:
      return absl::StrCat(producer, " is over, and its bytes or its signal are on the way");
    case End::kNotBegun:
      return absl::StrCat(producer, " has not begun, because its rank runs epochs of other jobs");
    case End::kUnknown: return absl::StrCat("nothing is known of ", producer);
    case End::kCycle: return "the waits form a circle, which is a bug";
  }
  return "";
}

std::set<std::pair<int, int>> NodesAtEnd(const WaitChain& chain) {
  std::set<std::pair<int, int>> nodes;
  if (chain.links.empty()) return nodes;
  const Link& last = chain.links.back();
  const int node = last.rank->node();
  if (chain.end == End::kAtWork) {
    for (int to : last.lane->to_nodes()) nodes.emplace(node, to);
  } else if (chain.end == End::kOnItsWay && chain.producer_rank->node() != node) {
    nodes.emplace(chain.producer_rank->node(), node);
  }
  return nodes;
}

std::string CauseText(const WaitChain& chain, const NodeNameFn& names) {
  if (chain.links.empty()) return "";
  const Link& last = chain.links.back();
  const std::string step = StepText(last.lane->step(), names(last.rank->node()));
  if (chain.end == End::kAtWork) return absl::StrCat(step, ": ", LinkText(last, names));
  return absl::StrFormat("%s; %s waits %s for it", EndText(chain, names), step,
                         TimeText(last.lane->for_us()));
}

}  // namespace agmm
