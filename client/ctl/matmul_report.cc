#include "client/ctl/matmul_report.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/report.h"
#include "client/ctl/table.h"
#include "kernels/base/units.h"
#include "kernels/schedule/index.h"

namespace agmm {
namespace {

constexpr double kP99 = 0.99;
// Printed for CPU devices that share a host.
constexpr char kSharedHostNote[] =
    "note: CPU devices of one host share its cores and memory; times are those of\n"
    "this host, not of separate devices\n";

// "1.250", or "-" if it is not known.
std::string Text(const std::optional<double>& value) {
  return value ? absl::StrFormat("%.3f", *value) : "-";
}

// The same for a time in ms of a column: "86400000".
std::string TimeText(const std::optional<double>& ms) {
  return ms >= 1e6 ? absl::StrFormat("%.0f", *ms) : Text(ms);
}

// Cells for R and E: their values, or "busy" if the runs differ too much for the values to be
// meaningful.
std::string RatioText(const std::optional<double>& value, const std::optional<std::string>& busy) {
  return busy && value ? "busy" : Text(value);
}

// The fields of "comparison".
Json ComparisonJson(const Comparison& c) {
  return {{"fused_ms", c.fused_ms},   {"unfused_ms", c.unfused_ms},         {"gemm_ms", c.gemm_ms},
          {"gather_ms", c.gather_ms}, {"lower_bound_ms", c.lower_bound_ms}, {"ratio", c.ratio},
          {"speedup", c.speedup},     {"efficiency", c.efficiency}};
}

// "median of 4 runs after a warm-up".
std::string Basis(const MatmulResult& result) {
  const size_t runs = result.runs_ms.size();
  if (runs == 0) return "no rank reported its time";
  if (runs == 1) return "slowest rank, one run";
  return absl::StrFormat("slowest rank, median of %d run%s after a warm-up",
                         runs - (result.warm_up_dropped ? 1 : 0), runs > 2 ? "s" : "");
}

// The rate at which the busiest node sends to other nodes, in the median run. Absent where nothing
// crosses nodes.
std::optional<double> LinkMegabytes(const BenchRow& row) {
  const std::optional<double> time_ms = Median(row.runs_ms);
  if (row.link_bytes == 0 || !(time_ms > 0)) return std::nullopt;
  return static_cast<double>(row.link_bytes) / (*time_ms * 1000);
}

const BenchRow* AutoOf(const BenchCase& one) {
  for (const BenchRow& row : one.rows)
    if (row.algorithm == kAuto) return &row;
  return nullptr;
}

// The last column: "best", and warnings.
std::string Mark(const BenchCase& one, const BenchRow& row, const Figures& figures) {
  std::vector<std::string> marks;
  if (&row == BestOf(one)) marks.push_back("best");
  if (figures.comparison.ratio > 1 && !figures.busy) marks.push_back("T < T_lb");
  if (row.exact == false) marks.push_back("WRONG C");
  if (!row.exact) marks.push_back("C not compared");
  return absl::StrJoin(marks, ", ");
}

// T of auto / T of the best.
std::optional<double> AutoRatio(const BenchCase& one) {
  const BenchRow *chosen = AutoOf(one), *best = BestOf(one);
  if (chosen == nullptr || best == nullptr || chosen->runs_ms.empty()) return std::nullopt;
  const double best_ms = *Median(best->runs_ms);
  if (best_ms <= 0) return std::nullopt;
  return *Median(chosen->runs_ms) / best_ms;
}

std::string AutoLine(const BenchCase& one) {
  const BenchRow* chosen = AutoOf(one);
  if (chosen == nullptr) return "";
  const v1::Job& job = chosen->job;
  return absl::StrCat(
      Wrap("auto ran " + PlanText(job.options(), job.explanation(), job.schedule())), "\n");
}

// "1.2e-07 relative to f64, on a sample of C".
std::string ErrorText(const SampleError& error) {
  if (!error.relative) return "not known: no element of the sample of C is finite";
  const std::string others = error.non_finite > 0
                                 ? absl::StrCat(", without ", Counted(error.non_finite, "element"),
                                                " of ", error.elements, " that are not finite")
                                 : "";
  return absl::StrFormat("%.2g relative to f64, on a sample of C%s", *error.relative, others);
}

// The possible origins of elements of C that are not finite.
std::string NonFiniteNote(DType dtype) {
  return absl::StrFormat(
      "note: inf and NaN in C come from A or B, or from sums beyond the largest %s, %s\n",
      Name(dtype), TraitsOf(dtype).largest);
}

// Returns true only if every C was compared and equal.
bool EveryCIsRight(const std::vector<BenchCase>& cases) {
  bool any = false;
  for (const BenchCase& one : cases) {
    for (const BenchRow& row : one.rows) {
      if (row.exact != true) return false;
      any = true;
    }
  }
  return any;
}

}  // namespace

std::string MatmulText(const MatmulResult& result) {
  const std::string plan =
      PlanText(result.job.options(), result.job.explanation(), result.algorithm);
  const Problem& problem = result.problem;
  std::string made = absl::StrCat(result.out, ", ", ShapeOf(problem).m, " x ", ShapeOf(problem).n,
                                  " ", Name(result.out_dtype));
  if (result.non_finite > 0)
    absl::StrAppend(&made, "\n",
                    NonFiniteText(result.non_finite, ShapeOf(problem).m * ShapeOf(problem).n));
  Fields fields;
  fields.Add("algorithm", plan);
  fields.Add("plan", result.job.plan_hash());
  fields.Add("T", absl::StrCat(Text(result.figures.comparison.fused_ms), " ms, ", Basis(result)));
  fields.Add("rate", absl::StrCat(Text(result.figures.tflops), " TFLOP/s"));
  fields.Add("C", made);
  if (result.error) fields.Add("error", ErrorText(*result.error));
  std::string text = absl::StrCat(Wrap(ToString(problem)), "\n", fields.ToString());
  const Comparison& c = result.figures.comparison;
  const std::optional<std::string>& busy = result.figures.busy;
  if (result.compared) {
    Table table({Number("T", "ms"), Number("T_unfused", "ms"), Number("T_gemm", "ms"),
                 Number("T_ag", "ms"), Number("T_lb", "ms"), Number("R"), Number("speedup"),
                 Number("E")});
    table.AddRow({Text(c.fused_ms), Text(c.unfused_ms), Text(c.gemm_ms), Text(c.gather_ms),
                  Text(c.lower_bound_ms), RatioText(c.ratio, busy), Text(c.speedup),
                  RatioText(c.efficiency, busy)});
    absl::StrAppend(
        &text, "\n", table.ToString(),
        "T_lb = max(T_gemm, T_ag), R = T_lb / T (above 1: T_gemm or T_ag was measured\n"
        "too slow), speedup = T_unfused / T, E = 1 - (T - T_gemm) / (T_unfused - T_gemm)\n");
  }
  if (busy) text += BusyNote(*busy);
  if (!result.plan_agrees) {
    text +=
        "note: the daemons planned this product differently than this agmmctl, so the\n"
        "name of the algorithm may be wrong; use the agmmctl of the daemons' version\n";
  }
  if (result.non_finite > 0)
    text += NonFiniteNote(result.problem.tensors[TheProduct(result.problem).c].dtype);
  if (result.shared_host) text += kSharedHostNote;
  return text;
}

Json ToJson(const MatmulResult& result) {
  const Json job = ToJson(result.job);
  Json json = {{"schema", "agmm.matmul.v1"}};
  for (const char* key : {"spec", "m", "n", "k", "dtype", "result_dtype", "mesh", "ranks", "chunks",
                          "explanation", "plan_hash", "job_id", "generation", "repeat"})
    json[key] = job[key];
  json.update({{"algorithm", result.algorithm},
               {"plan_agrees", result.plan_agrees},
               {"runs_ms", result.runs_ms},
               {"time_ms", result.figures.comparison.fused_ms},
               {"tflops", result.figures.tflops},
               {"busy", result.figures.busy},
               {"shared_host", result.shared_host},
               {"out", result.out},
               {"out_dtype", std::string(Name(result.out_dtype))},
               {"non_finite", result.non_finite},
               {"relative_error", result.error ? result.error->relative : std::nullopt},
               {"comparison",
                result.compared ? ComparisonJson(result.figures.comparison) : Json(nullptr)}});
  return json;
}

const BenchRow* BestOf(const BenchCase& one) {
  const BenchRow* best = nullptr;
  for (const BenchRow& row : one.rows) {
    const std::optional<double> time_ms = Median(row.runs_ms);
    if (row.algorithm == kAuto || !time_ms || row.exact == false) continue;
    if (best == nullptr || *time_ms < *Median(best->runs_ms)) best = &row;
  }
  return best;
}

std::string BenchText(const BenchCase& one) {
  const std::string title = absl::StrCat(one.name, "  ", SizesText(one.problem), "\n");
  if (!one.skipped.empty()) return absl::StrCat(title, Wrap("skipped: " + one.skipped), "\n");
  Table table({LongWords("algorithm"), Number("min", "ms"), Number("T", "ms"), Number("p99", "ms"),
               Number("R"), Number("E"), Number("speedup"), Number("rate", "TFLOP/s"),
               Number("link", "MB/s"), Words("")});
  Comparison bounds;
  std::string busy;
  for (const BenchRow& row : one.rows) {
    const Figures figures = FiguresOf(one.problem, row.runs_ms, one.parts);
    const Comparison& c = figures.comparison;
    bounds = c;
    const std::optional<double> link = LinkMegabytes(row);
    table.AddRow({row.algorithm, TimeText(Quantile(row.runs_ms, 0)), TimeText(c.fused_ms),
                  TimeText(Quantile(row.runs_ms, kP99)), RatioText(c.ratio, figures.busy),
                  RatioText(c.efficiency, figures.busy), Text(c.speedup), Text(figures.tflops),
                  link ? absl::StrFormat("%.0f", *link) : "-", Mark(one, row, figures)});
    if (figures.busy && busy.empty())
      busy = BusyNote(absl::StrCat(row.algorithm, ": ", *figures.busy));
  }
  Fields left_out;
  if (!one.left_out.empty()) left_out.Add("left out", absl::StrJoin(one.left_out, "\n"));
  return absl::StrCat(title, "T_gemm ", Text(bounds.gemm_ms), " ms  T_ag ", Text(bounds.gather_ms),
                      " ms  T_lb ", Text(bounds.lower_bound_ms), " ms  T_unfused ",
                      Text(bounds.unfused_ms), " ms\n", table.ToString(), AutoLine(one),
                      left_out.ToString(), busy);
}

std::string BenchSummary(const std::vector<BenchCase>& cases) {
  std::string text;
  if (cases.size() > 1) {
    Table table({LongWords("product"), Number("M"), Number("N"), Number("K"), Number("T_lb", "ms"),
                 Words("best"), Number("T", "ms"), Number("R"), Number("speedup"),
                 Number("auto / best")});
    for (const BenchCase& one : cases) {
      const Shape shape = ShapeOf(one.problem);
      const std::string m = absl::StrCat(shape.m), n = absl::StrCat(shape.n),
                        k = absl::StrCat(shape.k);
      const BenchRow* best = BestOf(one);
      if (best == nullptr) {
        table.AddRow({one.name, m, n, k, "", "skipped"});
        continue;
      }
      const Figures figures = FiguresOf(one.problem, best->runs_ms, one.parts);
      const Comparison& c = figures.comparison;
      table.AddRow({one.name, m, n, k, Text(c.lower_bound_ms), best->algorithm, Text(c.fused_ms),
                    RatioText(c.ratio, figures.busy), Text(c.speedup), Text(AutoRatio(one))});
    }
    absl::StrAppend(&text, table.ToString());
  }
  absl::StrAppend(
      &text,
      "min, T and p99 are the minimum, median and 99th percentile of the slowest rank's\n"
      "times after a warm-up (of few runs, p99 is about the maximum). link is the rate\n"
      "at which the busiest node sends to other nodes. T_gemm and T_unfused come from\n"
      "the serial jobs. T_ag is the gather alone: the faster of serial's gather and a\n"
      "job of transfers only, by the route with the fewest bytes.\n"
      "T_lb = max(T_gemm, T_ag); R = T_lb / T (above 1: T_gemm or T_ag was measured too\n"
      "slow); speedup = T_unfused / T; E = 1 - (T - T_gemm) / (T_unfused - T_gemm), if\n"
      "more than 5 % of T_gemm can be hidden\n");
  if (EveryCIsRight(cases)) absl::StrAppend(&text, "Every C equals that of serial, bit by bit\n");
  if (absl::c_any_of(cases, [](const BenchCase& c) { return c.shared_host; }))
    absl::StrAppend(&text, kSharedHostNote);
  return text;
}

std::vector<Json> ToJson(const BenchCase& one) {
  const BenchRow none;
  std::vector<const BenchRow*> rows;
  for (const BenchRow& row : one.rows) rows.push_back(&row);
  if (!one.skipped.empty()) rows = {&none};
  const Problem& p = one.problem;
  std::vector<Json> lines;
  for (const BenchRow* row : rows) {
    const v1::Job& job = row->job;
    const Figures figures = FiguresOf(one.problem, row->runs_ms, one.parts);
    const bool ran = row != &none;
    Json json = {{"schema", "agmm.bench_result.v1"},
                 {"name", one.name},
                 {"spec", SpecText(p)},
                 {"m", ShapeOf(p).m},
                 {"n", ShapeOf(p).n},
                 {"k", ShapeOf(p).k},
                 {"dtype", std::string(Name(p.tensors[kA].dtype))},
                 {"result_dtype", std::string(Name(p.tensors[kC].dtype))},
                 {"mesh", p.mesh.ToString()},
                 {"ranks", p.mesh.ranks},
                 {"shared_host", one.shared_host},
                 {"skipped", NullIfEmpty(one.skipped)},
                 {"algorithm", NullIfEmpty(row->algorithm)},
                 {"chosen", NullIfEmpty(job.options().algorithm())},
                 {"chunks", ran ? Json(job.options().chunk_count()) : Json(nullptr)},
                 {"explanation", NullIfEmpty(job.explanation())},
                 {"plan_hash", NullIfEmpty(job.plan_hash())},
                 {"runs_ms", row->runs_ms},
                 {"time_ms", figures.comparison.fused_ms},
                 {"min_ms", Quantile(row->runs_ms, 0)},
                 {"p99_ms", Quantile(row->runs_ms, kP99)},
                 {"link_bytes", ran ? Json(row->link_bytes) : Json(nullptr)},
                 {"link_mb_per_s", LinkMegabytes(*row)},
                 {"spread", figures.spread},
                 {"tflops", figures.tflops},
                 {"busy", figures.busy},
                 {"best", ran ? Json(row == BestOf(one)) : Json(nullptr)},
                 {"exact", row->exact}};
    json.update(ComparisonJson(figures.comparison));
    json.erase("fused_ms");  // time_ms
    lines.push_back(std::move(json));
  }
  return lines;
}

absl::Status OutcomeOf(const std::vector<BenchCase>& cases) {
  std::vector<std::string> wrong;
  for (const BenchCase& one : cases) {
    for (const BenchRow& row : one.rows)
      if (row.exact == false)
        wrong.push_back(absl::StrCat(row.algorithm, " on ", SizesText(one.problem)));
  }
  if (!wrong.empty()) {
    return absl::InternalError(
        absl::StrCat("C differs from that of serial: ", absl::StrJoin(wrong, "; "),
                     "; this is a bug, please report it"));
  }
  if (absl::c_all_of(cases, [](const BenchCase& one) { return !one.skipped.empty(); })) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no product fits; choose a smaller --shape or a larger --scale (",
                     cases.empty() ? "" : cases.front().skipped, ")"));
  }
  return absl::OkStatus();
}

}  // namespace agmm
