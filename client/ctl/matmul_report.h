// What agmmctl matmul prints.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "agmm/v1/job.pb.h"
#include "client/ctl/matmul_figures.h"
#include "kernels/schedule/problem.h"

namespace agmm {

// Of a result where CPU devices of one host took part.
inline constexpr char kSharedHostNote[] =
    "note: CPU devices of one host share its cores and memory; times are those of this host, not "
    "of\n"
    "devices of their own\n";

// "1.250"; "-" and null for what is not known.
std::string Text(const std::optional<double>& value);
nlohmann::ordered_json Number(const std::optional<double>& value);

struct MatmulResult {
  Problem problem;
  v1::Job job;                    // the last one of the asked algorithm; its C is the output
  std::string algorithm;          // what its schedule is called
  bool plan_agrees = true;        // planned here, the job's schedule has the job's hash
  std::vector<double> runs_ms;    // slowest rank, in order, the warm-up first
  bool warm_up_dropped = false;   // ... unless it is so long ago that it is not among them
  std::optional<double> time_ms;  // median of them without the warm-up
  std::optional<Comparison> comparison;
  bool shared_host = false;  // CPU devices of one host take part: they share its cores
  std::string out;
  DType out_dtype = DType::kF32;
};

void PrintForPeople(const MatmulResult& result);

// {"schema": "agmm.matmul.v1", "spec", "m", "n", "k", "dtype", "mesh": "x=4",
//  "ranks": [world rank], "algorithm", "chunks", "explanation", "plan_hash", "plan_agrees",
//  "job_id", "generation", "repeat", "runs_ms": [number], "time_ms", "tflops", "shared_host",
//  "out", "out_dtype", "comparison": null or {"fused_ms", "unfused_ms", "gemm_ms", "gather_ms",
//  "lower_bound_ms",
//                         "ratio", "speedup", "efficiency"}}
// A number that is not known is null.
nlohmann::ordered_json ToJson(const MatmulResult& result);

}  // namespace agmm
