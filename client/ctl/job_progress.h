// The progress of a job, for people and machines: its epochs, the step or the wait of each rank,
// and the chain of waits that holds it up. Pure.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/job.pb.h"
#include "client/ctl/json.h"
#include "client/trace/world_view.h"
#include "proto/convert/wait_chain.h"

namespace agmm {

// A row for each rank: its epoch, and its lane that has worked or waited longest.
std::string ProgressTable(const v1::Job& job, const NodeNameFn& names);

// The throughput of a path between nodes.
struct PathRate {
  double bytes_per_s = 0, over_s = 0;
  int64_t waiting_bytes = 0;  // at the end of that time, likewise the next
  double silent_us = 0;
};
// Keyed by the nodes from and to. Covers the paths that both states of the job report.
using PathRates = std::map<std::pair<int, int>, PathRate>;
PathRates RatesOf(const v1::Job& before, const v1::Job& now);
// Returns true if the job's chain of waits ends at a path between nodes, so that its throughput is
// worth measuring.
bool HangsOnPath(const v1::Job& job);

// `jobs`: a job, the job that it waits for, and so on.
std::string WhyText(const std::vector<v1::Job>& jobs, const PathRates& rates,
                    const v1::GetStatusResponse& status);
// "agmm.job_why.v1".
Json WhyJson(const std::vector<v1::Job>& jobs, const PathRates& rates,
             const v1::GetStatusResponse& status);

// Returns one line about a job that runs or is queued, for a terminal. `before` is an earlier state
// of it.
std::string ProgressLineText(const v1::Job& before, const v1::Job& job, const NodeNameFn& names);

}  // namespace agmm
