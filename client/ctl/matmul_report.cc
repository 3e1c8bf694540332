#include "client/ctl/matmul_report.h"

#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/table.h"

namespace agmm {
namespace {

using Json = nlohmann::ordered_json;

// "median of 4 runs after a warm-up".
std::string Basis(const MatmulResult& result) {
  const size_t runs = result.runs_ms.size();
  if (runs == 0) return "no rank reported its time";
  if (runs == 1) return "slowest rank, one run";
  return absl::StrFormat("slowest rank, median of %d run%s after a warm-up",
                         runs - (result.warm_up_dropped ? 1 : 0), runs > 2 ? "s" : "");
}

// As `agmmctl plan` says it: "ring, 8 chunks a shard (auto is ...)".
std::string How(const MatmulResult& result) {
  const v1::PlanOptions& options = result.job.options();
  if (result.algorithm != options.algorithm())
    return absl::StrCat(result.algorithm, " (nothing has to move)");
  const std::string& why = result.job.explanation();
  return absl::StrCat(result.algorithm, ", ", options.chunk_count(),
                      options.chunk_count() == 1 ? " chunk" : " chunks", " a shard",
                      why.empty() ? "" : absl::StrCat(" (", why, ")"));
}

}  // namespace

std::string Text(const std::optional<double>& value) {
  return value ? absl::StrFormat("%.3f", *value) : "-";
}

Json Number(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

void PrintForPeople(const MatmulResult& result) {
  std::cout << ToString(result.problem) << "\n"
            << "algorithm  " << How(result) << "\n"
            << "plan       " << result.job.plan_hash() << "\n"
            << "T          " << Text(result.time_ms) << " ms, " << Basis(result) << "\n"
            << "rate       " << Text(Tflops(result.problem, result.time_ms)) << " TFLOP/s\n"
            << "C          " << result.out << ", " << result.problem.m() << " x "
            << result.problem.n() << " " << Name(result.out_dtype) << "\n";
  if (result.comparison) {
    const Comparison& c = *result.comparison;
    Table table({{"T", "ms"},
                 {"T_unfused", "ms"},
                 {"T_gemm", "ms"},
                 {"T_ag", "ms"},
                 {"T_lb", "ms"},
                 {"R"},
                 {"speedup"},
                 {"E"}});
    table.AddRow({Text(c.fused_ms), Text(c.unfused_ms), Text(c.gemm_ms), Text(c.gather_ms),
                  Text(c.lower_bound_ms), Text(c.ratio), Text(c.speedup), Text(c.efficiency)});
    std::cout << "\n"
              << table.ToString()
              << "T_lb = max(T_gemm, T_ag), R = T_lb / T, speedup = T_unfused / T\n";
  }
  if (!result.plan_agrees) {
    std::cout << "note: the daemons' plan is not the one this agmmctl makes, so the times of its "
                 "steps cannot "
                 "be told apart; use the agmmctl of their version\n";
  }
  if (result.shared_host) std::cout << kSharedHostNote;
}

Json ToJson(const MatmulResult& result) {
  const Problem& p = result.problem;
  Json comparison = nullptr;
  if (result.comparison) {
    const Comparison& c = *result.comparison;
    comparison = {{"fused_ms", Number(c.fused_ms)},
                  {"unfused_ms", Number(c.unfused_ms)},
                  {"gemm_ms", Number(c.gemm_ms)},
                  {"gather_ms", Number(c.gather_ms)},
                  {"lower_bound_ms", Number(c.lower_bound_ms)},
                  {"ratio", Number(c.ratio)},
                  {"speedup", Number(c.speedup)},
                  {"efficiency", Number(c.efficiency)}};
  }
  const absl::string_view dtype = Name(p.tensors[kA].dtype), out_dtype = Name(result.out_dtype);
  return {{"schema", "agmm.matmul.v1"},
          {"spec", result.job.spec()},
          {"m", p.m()},
          {"n", p.n()},
          {"k", p.k()},
          {"dtype", std::string(dtype)},
          {"mesh", p.mesh.ToString()},
          {"ranks", p.mesh.ranks},
          {"algorithm", result.algorithm},
          {"chunks", result.job.options().chunk_count()},
          {"explanation", result.job.explanation()},
          {"plan_hash", result.job.plan_hash()},
          {"plan_agrees", result.plan_agrees},
          {"job_id", result.job.job_id()},
          {"generation", result.job.generation()},
          {"repeat", result.job.repeat_count()},
          {"runs_ms", result.runs_ms},
          {"time_ms", Number(result.time_ms)},
          {"tflops", Number(Tflops(result.problem, result.time_ms))},
          {"shared_host", result.shared_host},
          {"out", result.out},
          {"out_dtype", std::string(out_dtype)},
          {"comparison", std::move(comparison)}};
}

}  // namespace agmm
