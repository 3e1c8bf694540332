// What agmmctl bench has seen of a product, and what it prints of it. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agmm/v1/job.pb.h"
#include "client/ctl/matmul_figures.h"
#include "kernels/schedule/problem.h"

namespace agmm {

// The algorithm that is not one: its row says what it chose.
inline constexpr char kAuto[] = "auto";

// One algorithm on one product.
struct BenchRow {
  std::string algorithm;        // as it was asked for: "auto", "ring"
  v1::Job job;                  // the last one, for what ran and why
  std::vector<double> runs_ms;  // of the slowest rank, without the warm-up
  std::optional<bool> exact;    // C has the bits of serial's; absent: not compared
};

struct BenchCase {
  std::string name;
  Problem problem;
  bool shared_host = false;    // CPU devices of one host take part
  std::string skipped;         // why it was not run; empty: it was
  std::vector<BenchRow> rows;  // serial, the unfused one, is the first
  SerialRuns serial;
};

// What follows of a row.
struct BenchFigures {
  Comparison comparison;
  std::optional<double> spread, tflops;
};
BenchFigures FiguresOf(const BenchCase& one, const BenchRow& row);
// The row with the least T of those that an algorithm was named for; null where none has a T.
const BenchRow* BestOf(const BenchCase& one);

// A table of the algorithms; or why there is none.
std::string BenchText(const BenchCase& one);
// One line each, where there are several, and what holds for all.
std::string BenchSummary(const std::vector<BenchCase>& cases);

// A row:
// {"schema": "agmm.bench_result.v1", "name", "spec", "m", "n", "k", "dtype", "mesh": "x=4",
//  "ranks": [world rank], "shared_host", "skipped": null or why, "algorithm", "chosen", "chunks",
//  "explanation", "plan_hash", "runs_ms": [number], "time_ms", "spread", "unfused_ms", "gemm_ms",
//  "gather_ms", "lower_bound_ms", "ratio", "efficiency", "speedup", "tflops", "best", "exact"}
// What is not known is null. A case that was skipped is one such document, without an algorithm.
std::vector<nlohmann::ordered_json> ToJson(const BenchCase& one);

// An error where a C was wrong, or where nothing could be run.
absl::Status OutcomeOf(const std::vector<BenchCase>& cases);

}  // namespace agmm
