#include "proto/convert/wait_chain.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
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
  const auto longest = absl::c_max_element(
      lanes, [](const auto& a, const auto& b) { return a.for_us() < b.for_us(); });
  return longest == lanes.end() ? nullptr : &*longest;
}

// Returns the lane that has kept a worker busy for the longest time, or null.
const v1::LaneProgress* LongestAtWork(const v1::RankProgress& rank) {
  const v1::LaneProgress* longest = nullptr;
  for (const v1::LaneProgress& lane : rank.lanes()) {
    if (!lane.waits().empty() || lane.ready()) continue;
    if (longest == nullptr || longest->for_us() < lane.for_us()) longest = &lane;
  }
  return longest;
}

// Returns the lane that has to continue before `wait` of a step in `epoch` is over. Without such a
// lane, sets the chain's end.
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
  // The lane has no steps left in this epoch. If this is not the wanted epoch, the rank's other
  // lanes delay the next one.
  const v1::LaneProgress* const other = at < wanted ? LongestOf(progress) : nullptr;
  return other == nullptr ? Link{} : Link{rank, other};
}

// The chains from all lanes. Each lane waits for at most one other lane, so the end of a lane's
// chain is computed once.
class Chains {
 public:
  explicit Chains(const RankReportsView& ranks) {
    for (const auto& [number, rank] : ranks)
      for (const v1::LaneProgress& lane : rank->progress().lanes())
        hops_[&lane] = HopOf(ranks, {rank, &lane});
    for (auto& [lane, hop] : hops_) FindEnd(&hop);
  }

  // Returns the end and the links of the chain from `lane`.
  WaitChain From(const v1::LaneProgress* lane) const {
    const Hop* hop = &hops_.at(lane);
    WaitChain chain = hop->last->tail;
    for (; hop != hop->last; hop = &hops_.at(hop->next)) chain.links.push_back(hop->link);
    chain.links.push_back(hop->link);
    return chain;
  }

  // The weight by which chains are compared; the greatest is reported. The end that has lasted
  // longest holds up the job. Work counts double, because it is a cause, while other ends mean that
  // the cause is unknown.
  std::pair<double, int> WeightOf(const v1::LaneProgress* lane) const {
    const Hop& hop = hops_.at(lane);
    const double for_us = hop.last->link.lane->for_us();
    return {hop.last->tail.end == End::kAtWork ? 2 * for_us : for_us, hop.length};
  }

 private:
  struct Hop {
    Link link;
    const v1::LaneProgress* next = nullptr;
    WaitChain tail;  // has no links; set if the lane has no next one
    const Hop* last = nullptr;
    int length = 0;
    bool on_path = false;
  };

  static Hop HopOf(const RankReportsView& ranks, const Link& link) {
    Hop hop{link};
    Link next = {};
    if (link.lane->waits().empty()) {
      hop.tail.end = link.lane->ready() ? End::kReady : End::kAtWork;
      if (link.lane->ready()) next.lane = LongestAtWork(link.rank->progress());
    }
    // If one of several waits leads to a lane, the chain continues there.
    for (const v1::SlotWait& wait : link.lane->waits()) {
      next = Behind(ranks, wait, link.rank->progress().epoch(), &hop.tail);
      if (next.lane != nullptr) break;
    }
    hop.next = next.lane;
    return hop;
  }

  void FindEnd(Hop* hop) {
    std::vector<Hop*> path;
    while (hop->last == nullptr) {
      path.push_back(hop);
      hop->on_path = true;
      Hop* const next = hop->next == nullptr ? nullptr : &hops_.at(hop->next);
      if (next != nullptr && (next->last != nullptr || !next->on_path)) {
        hop = next;
        continue;
      }
      if (next != nullptr) hop->tail.end = End::kCycle;
      hop->last = hop;
      hop->length = 1;
      path.pop_back();
      break;
    }
    for (; !path.empty(); path.pop_back()) {
      path.back()->last = hop->last;
      path.back()->length = hop->length + 1;
      hop = path.back();
    }
  }

  std::map<const v1::LaneProgress*, Hop> hops_;
};

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
  return absl::c_any_of(ranks, [](const auto& entry) {
    const v1::RankReport& rank = *entry.second;
    const double usual_us = MedianEpochUs(rank);
    return rank.progress().epoch() > 0 &&
           (usual_us == 0 || rank.progress().for_us() > std::max(2 * usual_us, 1e6));
  });
}

WaitChain FollowWaits(const RankReportsView& ranks) {
  const Chains chains(ranks);
  const v1::LaneProgress* best = nullptr;
  for (const auto& [number, rank] : ranks) {
    for (const v1::LaneProgress& lane : rank->progress().lanes())
      if (best == nullptr || chains.WeightOf(best) < chains.WeightOf(&lane)) best = &lane;
  }
  return best == nullptr ? WaitChain() : chains.From(best);
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
  if (lane.ready()) {
    return absl::StrFormat("ready for up to %s, and no worker has begun it",
                           TimeText(lane.for_us()));
  }
  std::string text = absl::StrCat("at work for ", TimeText(lane.for_us()));
  if (lane.network_bytes() > 0) {
    std::set<std::string> to;
    for (int node : lane.to_nodes()) to.insert(names(node));
    absl::StrAppendFormat(&text, ", %s to node %s", FormatBytes(lane.network_bytes()),
                          absl::StrJoin(to, " and "));
    if (lane.for_us() >= 1e5) {
      // An upper bound, because not all of these bytes have left.
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
    case End::kAtWork:
    case End::kReady: return "";
    case End::kOnItsWay:
      return absl::StrCat(producer, " has finished; its data or signal has not arrived yet");
    case End::kNotBegun:
      return absl::StrCat(producer, chain.producer_rank->progress().behind()
                                        ? " has not begun, because its rank first runs epochs of "
                                          "other jobs"
                                        : " has not begun this epoch");
    case End::kUnknown:
      return absl::StrCat("no progress report covers ", producer,
                          "; its node does not answer, or does not run the job yet");
    case End::kCycle: return "the waits form a cycle, which is a bug in agmm";
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
  if (chain.end == End::kAtWork || chain.end == End::kReady)
    return absl::StrCat(step, ": ", LinkText(last, names));
  return absl::StrFormat("%s; %s waits %s for it", EndText(chain, names), step,
                         TimeText(last.lane->for_us()));
}

}  // namespace agmm
