// Times and ratios of jobs, from their reports, and the error of a product. A figure that is not
// known is absent.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "agmm/v1/job.pb.h"
#include "client/files/npy.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// Returns the slowest rank's time of each reported epoch (the last 64), oldest first, in ms. Empty
// unless every rank of the mesh has reported the same number of epochs.
std::vector<double> SlowestRankMs(const v1::Job& job, const Mesh& mesh);

// Returns the quantile `share` of the values, interpolated between two of them: 0 is the least, 1
// the greatest. Absent without values.
std::optional<double> Quantile(std::vector<double> values, double share);
inline std::optional<double> Median(std::vector<double> values) {
  return Quantile(std::move(values), 0.5);
}

// Half of the interquartile range, as a share of the median. Absent for fewer than three values.
std::optional<double> SpreadOf(std::vector<double> values);

// Returns the runs without the first one, which warms up, unless it is the only one.
std::vector<double> AfterWarmUp(std::vector<double> runs);

// The times of the parts of a product, in ms: of serial jobs that ran one after the other, and of
// jobs of transfers only (GatherAlone). Times that a job does not report are left out.
struct PartRuns {
  std::vector<double> unfused_ms, gemm_ms, gather_ms;  // of serial jobs
  std::vector<double> transfers_ms;
  void AddSerial(const v1::Job& job, const Mesh& mesh);
  // Adds nothing if the daemon does not know such jobs and therefore multiplied.
  void AddTransfers(const v1::Job& job, const Mesh& mesh);
  // Returns T_ag: the faster of the two gathers.
  std::optional<double> GatherMs() const;
  PartRuns WithoutWarmUp() const;
};
// True for a job that has something to move.
bool HasTransfers(const v1::Job& job);

// Fused against unfused, in the terms of the literature on overlap (E is Flux's). Times in ms.
struct Comparison {
  std::optional<double> fused_ms, unfused_ms, gemm_ms, gather_ms;
  std::optional<double> lower_bound_ms;  // max(gemm, gather)
  std::optional<double> ratio;           // R: lower bound / fused
  std::optional<double> speedup;         // unfused / fused
  // E = 1 - (fused - gemm) / (unfused - gemm); absent unless more than 5 % of gemm can be hidden.
  std::optional<double> efficiency;
};
Comparison Compare(std::optional<double> fused_ms, std::optional<double> unfused_ms,
                   std::optional<double> gemm_ms, std::optional<double> gather_ms);

// Returns the evidence that other work ran on the machine during the measurement, or nothing. The
// evidence is a spread of the runs above 25 % if their median is at least 1 ms, because shorter
// times vary on an idle machine, too. `runs` names the runs. Ratios do not count as evidence,
// because their parts are measured, too. The load average is not used, because the daemons may be
// on other hosts and because the product itself raises it.
std::optional<std::string> BusySign(const std::vector<double>& runs_ms, absl::string_view runs);
// "the machine is busy: ...; repeat the measurement when ...", a line.
std::string BusyNote(const std::string& sign);

// Medians of the runs of one algorithm, compared with those of the parts.
struct Figures {
  Comparison comparison;
  std::optional<double> spread;
  std::optional<double> tflops;     // the rate of 2 M N K operations in the median
  std::optional<std::string> busy;  // see BusySign
};
Figures FiguresOf(const Problem& problem, const std::vector<double>& runs_ms,
                  const PartRuns& parts);

// The difference between C and A B on a sample of its elements.
struct SampleError {
  std::optional<double> relative;        // ||C - A B|| / ||A B||; absent where no element is finite
  int64_t elements = 0, non_finite = 0;  // in the sample, and those left out of the norms
};
// In the Frobenius norm over up to 1024 elements of C: 16 rows and 8 windows of 8 columns, spread
// evenly with both ends included. A B is computed in f64 from the files, so the rounding of A and B
// to a narrower dtype counts as an error. An element that is not finite in C or in A B is left out.
// Reads K short pieces of B for each window. Errors: those of reading.
absl::StatusOr<SampleError> SampledError(const MatrixReader& a, const MatrixReader& b,
                                         const MatrixReader& c);

}  // namespace agmm
