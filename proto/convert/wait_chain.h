// The chain of waits in the progress of a job: from a step that waits, through the steps that raise
// its slots, to the step that holds up all others. Pure.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agmm/v1/job.pb.h"

namespace agmm {

// Reports of a job's ranks, by rank of the world. A rank on a node that did not answer has none.
using RankReportsView = std::map<int, const v1::RankReport*>;
RankReportsView ViewOf(const v1::Job& job);

// Returns the median of the last epochs of a rank; 0 if none has ended.
double MedianEpochUs(const v1::RankReport& rank);
// Returns true if a rank is in its first epoch, or in one that takes more than twice the usual time
// and more than a second. Otherwise nothing holds up the job.
bool IsHeldUp(const RankReportsView& ranks);

struct WaitChain {
  struct Link {
    const v1::RankReport* rank;
    const v1::LaneProgress* lane;
  };
  enum class End {
    kNothing,   // no rank has a step left
    kAtWork,    // the last link is at work
    kReady,     // the last link is ready, and neither it nor another lane of its rank is at work
    kOnItsWay,  // `producer` has finished, and its signal has not arrived at the last link
    kNotBegun,  // the rank of `producer` has not begun the epoch
    kUnknown,   // the rank of `producer` has not reported
    kCycle,     // the last link waits for an earlier one
  };
  std::vector<Link> links;  // each waits for the next one
  End end = End::kNothing;
  // The step that the last link waits for, if it waits, and the report of that step's rank, or
  // null.
  v1::StepName producer;
  const v1::RankReport* producer_rank = nullptr;
};

// Returns the chain whose last link has lasted longest, with the most links. A last link at work
// counts double, so that a wait hides it only if the wait has lasted more than twice as long. It
// refers to the reports. The reports of different nodes are from slightly different times, so a
// signal may briefly seem to be in flight.
WaitChain FollowWaits(const RankReportsView& ranks);

// "4.9 s", "120 us".
std::string TimeText(double us);

using NodeNameFn = std::function<std::string(int node)>;

// "rank 0 lane 1 step 2 on node a (send rows 0:512 of A to rank 3)".
std::string StepText(const v1::StepName& step, const std::string& node);
// A link's work or wait: "at work for 4.9 s, 16 MiB to node b at less than 3.3 MiB/s", "waits 4.9 s
// for rows 0:512 of A ...". Has no tense, because errors use it about the past.
std::string LinkText(const WaitChain::Link& link, const NodeNameFn& names);
// The end of a chain whose last link waits: "rank 2 lane 1 step 3 on node b (...) has finished; its
// data or signal has not arrived yet". Empty for the others.
std::string EndText(const WaitChain& chain, const NodeNameFn& names);
// The pairs of nodes, from and to, with bytes in flight at the end of the chain.
std::set<std::pair<int, int>> NodesAtEnd(const WaitChain& chain);
// The end of the chain, with its step: "rank 0 lane 1 step 2 on node a (send rows 0:512 of A to
// rank 3): at work for 4.9 s, ...". Empty for kNothing.
std::string CauseText(const WaitChain& chain, const NodeNameFn& names);

}  // namespace agmm
