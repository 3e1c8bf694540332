// The results of agmmctl matmul and bench as text and JSON. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agmm/v1/job.pb.h"
#include "client/ctl/json.h"
#include "client/ctl/matmul_figures.h"
#include "kernels/schedule/problem.h"

namespace agmm {

struct MatmulResult {
  Problem problem;
  v1::Job job;                   // the last one of the asked algorithm; its C is the output
  std::string algorithm;         // the name of its schedule
  bool plan_agrees = true;       // the job's schedule, planned here, has the job's hash
  std::vector<double> runs_ms;   // the slowest rank's times in order, the warm-up first
  bool warm_up_dropped = false;  // runs_ms begins with the warm-up, and the figures leave it out
  Figures figures;               // without the warm-up
  bool compared = false;         // with serial
  std::optional<SampleError> error;  // of C, where it was compared
  int64_t non_finite = 0;            // elements of C that are infinite or not a number
  bool shared_host = false;          // CPU devices of one host share its cores
  std::string out;
  DType out_dtype = DType::kF32;
};

std::string MatmulText(const MatmulResult& result);

// {"schema": "agmm.matmul.v1", "spec", "m", "n", "k", "dtype", "result_dtype", "mesh": "x=4",
//  "ranks": [world rank], "chunks", "explanation", "plan_hash", "job_id", "generation", "repeat",
//  "algorithm", "plan_agrees", "runs_ms": [number], "time_ms", "tflops", "busy": null or why,
//  "shared_host", "out", "out_dtype", "non_finite": elements of C, "relative_error": with
//  --compare, "comparison": null or {"fused_ms", "unfused_ms", "gemm_ms", "gather_ms",
//  "lower_bound_ms", "ratio", "speedup", "efficiency"}}
// A number that is not known is null.
Json ToJson(const MatmulResult& result);

// A row of this name says which algorithm was chosen.
inline constexpr char kAuto[] = "auto";

// One algorithm on one product.
struct BenchRow {
  std::string algorithm;        // as requested: "auto", "ring"
  v1::Job job;                  // the last one
  std::vector<double> runs_ms;  // the slowest rank's times without the warm-up
  std::optional<bool> exact;    // C equals serial's bit by bit; absent: not compared
  int64_t link_bytes = 0;       // bytes that the busiest node sends to other nodes in an epoch
};

struct BenchCase {
  std::string name;
  Problem problem;
  bool shared_host = false;     // CPU devices of one host take part
  int64_t workspace_bytes = 0;  // the most that any of its plans needs on a rank
  std::string skipped;          // the reason if it was not run
  // The reasons why other algorithms have no row: "ring, direct: nothing has to move".
  std::vector<std::string> left_out;
  std::vector<BenchRow> rows;  // serial, the unfused product, is the first
  PartRuns parts;
};

// The row with the least T, without auto and wrong products; null if no row has a T.
const BenchRow* BestOf(const BenchCase& one);

// A table of the algorithms, or the reason why the case was skipped.
std::string BenchText(const BenchCase& one);
// A line for each of several cases, and the meaning of the columns.
std::string BenchSummary(const std::vector<BenchCase>& cases);

// A row:
// {"schema": "agmm.bench_result.v1", "name", "spec", "m", "n", "k", "dtype", "result_dtype",
//  "mesh": "x=4", "ranks": [world rank], "shared_host", "skipped": null or why, "algorithm",
//  "chosen", "chunks", "explanation", "plan_hash", "runs_ms": [number], "time_ms", "spread",
//  "unfused_ms", "gemm_ms", "gather_ms", "min_ms", "p99_ms", "link_bytes", "link_mb_per_s",
//  "lower_bound_ms", "ratio", "efficiency", "speedup", "tflops", "busy": null or why, "best",
//  "exact"}
// A value that is not known is null. A skipped case is one such document, without an algorithm.
std::vector<Json> ToJson(const BenchCase& one);

// Returns an error if a C was wrong or nothing could be run.
absl::Status OutcomeOf(const std::vector<BenchCase>& cases);

}  // namespace agmm
