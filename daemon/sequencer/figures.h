// Figures of a job that succeeded: times, rates and bytes; 0 for unknown ones. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agmm/v1/job.pb.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

inline constexpr int kNoMultiply = -2;

// The facts of a schedule that the figures need.
struct ScheduleFacts {
  // Bytes that an epoch brings from one rank to another: within islands, between islands of a node
  // through memory of the host, and between nodes.
  int64_t memory_bytes = 0, staged_bytes = 0, network_bytes = 0;
  // By rank of the mesh: the number of steps, and the index of its only multiply (-1: it has
  // several, kNoMultiply: none).
  std::vector<int> step_counts, multiplies;
  bool transfers = false;  // an epoch has transfers, even if only within a rank
  bool c_travels = false;  // some of them follow the multiply and move its result
};
ScheduleFacts FactsOf(const Problem& problem, const Topology& topology, const Schedule& schedule);

// Parts of an unfused product on its slowest rank, in microseconds; 0 if unknown.
struct PartTimes {
  double gemm_us = 0;    // T_gemm: its one multiply
  double gather_us = 0;  // T_ag: from the epoch's start to the start of that multiply, plus the
                         // time after it if C travels
};

using RankReports = std::map<int, v1::RankReport>;  // by world rank

// Computed from the steps of an epoch in which every rank multiplies once. The gather time of a
// transfers-only epoch is the epoch's time. Unknown for any other epoch, and for reports that do
// not fit the schedule.
PartTimes PartTimesOf(const ScheduleFacts& facts, const Mesh& mesh, const RankReports& reports);

// Parts, the job in which they were measured, and its end.
struct Baseline {
  PartTimes parts;
  uint64_t job = 0;  // 0: none is known
  uint64_t generation = 0;
  absl::Time end;
};
// The latest measurements of a problem.
struct Baselines {
  Baseline serial;
  Baseline gather;  // of transfers only
};
// Returns the baseline of serial, with the gather of a transfers-only job if that is faster and
// still valid. In serial, ranks that share cores delay each other's gather with their multiplies.
Baseline Combine(const Baselines& last, uint64_t generation, absl::Time now);
// Returns, as a clause, why a baseline may not be valid for the figures of a job that ended at
// `end` in `generation`; empty if it is valid.
std::string StaleText(const Baseline& baseline, const v1::JobFigures& figures, uint64_t generation,
                      absl::Time end);
// Returns true if the parts differ by more than they vary on an idle machine.
bool Differ(const PartTimes& one, const PartTimes& other);

// `parts` must be of the same problem on the same ranks.
v1::JobFigures FiguresOf(const Problem& problem, const ScheduleFacts& facts, const PartTimes& parts,
                         const RankReports& reports);

}  // namespace agmm
