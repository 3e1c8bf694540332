// What a job that succeeded has to show: times, rates and bytes. Pure. What cannot be known is 0.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "agmm/v1/job.pb.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// What of a schedule the figures need.
struct ScheduleFacts {
  // Bytes that an epoch brings from one rank to another: on one node, and between nodes.
  int64_t memory_bytes = 0, network_bytes = 0;
  // By rank of the mesh: how many steps, and which is its only multiply (-1: it has none, or
  // several).
  std::vector<int> step_counts, multiplies;
  bool transfers = false;  // an epoch has transfers at all, be they within a rank
};
ScheduleFacts FactsOf(const Topology& topology, const Schedule& schedule);

// The parts of an unfused product, microseconds, the slowest rank's; 0: not known.
struct PartTimes {
  double gemm_us = 0;    // its one multiply
  double gather_us = 0;  // from the epoch's start to that multiply's
};

using RankReports = std::map<int, v1::RankReport>;  // by world rank

// From the steps of an epoch in which every rank multiplies once. Not known for any other, nor for
// reports that do not fit the schedule.
PartTimes PartTimesOf(const ScheduleFacts& facts, const Mesh& mesh, const RankReports& reports);

// `parts`: of the same problem on the same ranks.
v1::JobFigures FiguresOf(const Problem& problem, const ScheduleFacts& facts, const PartTimes& parts,
                         const RankReports& reports);

}  // namespace agmm
