// What a job's reports say about time. Pure. What cannot be known is absent, never guessed.
#pragma once

#include <optional>
#include <vector>

#include "agmm/v1/job.pb.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// The slowest rank's time of each epoch that is reported (the last 64), oldest first, in ms. Empty
// where a rank of the mesh has no report or fewer epochs than the others.
std::vector<double> SlowestRankMs(const v1::Job& job, const Mesh& mesh);

// Of an even number of values the mean of the two in the middle. Absent for none.
std::optional<double> Median(std::vector<double> values);

// Half of the middle half of the values, as a share of their median. Absent for fewer than three.
std::optional<double> Spread(std::vector<double> values);

// 2 M N K in so many ms.
std::optional<double> Tflops(const Problem& problem, std::optional<double> time_ms);

// Without the first run, which warms up, where there are others.
std::vector<double> AfterWarmUp(std::vector<double> runs);

// What serial jobs took, one after the other, in ms; what a job does not know of itself is left
// out.
struct SerialRuns {
  std::vector<double> unfused_ms, gemm_ms, gather_ms;
  void Add(const v1::Job& job, const Mesh& mesh);
};

// The two halves of a serial job, in ms.
struct SerialParts {
  std::optional<double> gemm_ms, gather_ms;
};

// Fused against unfused, as the overlap literature has it (Flux's E). Times in ms.
struct Comparison {
  std::optional<double> fused_ms, unfused_ms, gemm_ms, gather_ms;
  std::optional<double> lower_bound_ms;  // max(gemm, gather)
  std::optional<double> ratio;           // R: lower bound / fused
  std::optional<double> speedup;         // unfused / fused
  // E = 1 - (fused - gemm) / (unfused - gemm); absent where there is no more than 5 % of gemm to
  // hide.
  std::optional<double> efficiency;
};
Comparison Compare(std::optional<double> fused_ms, std::optional<double> unfused_ms,
                   SerialParts parts);

}  // namespace agmm
