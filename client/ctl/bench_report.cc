#include "client/ctl/bench_report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/matmul_report.h"
#include "client/ctl/table.h"

namespace agmm {
namespace {

using Json = nlohmann::ordered_json;

std::string Percent(const std::optional<double>& share) {
  return share ? absl::StrFormat("%.1f", 100 * *share) : "-";
}

// "M=1024 N=1376 K=512 bf16  mesh x=2".
std::string Sizes(const Problem& p) {
  return absl::StrFormat("M=%d N=%d K=%d %s  mesh %s", p.m(), p.n(), p.k(),
                         Name(p.tensors[kA].dtype), p.mesh.ToString());
}

// "A[M_x, K] * B[K, N_x] -> C[M, N_x]".
std::string SpecOf(const Problem& p) {
  return absl::StrCat(ToString(p.mesh, p.tensors[kA]), " * ", ToString(p.mesh, p.tensors[kB]),
                      " -> ", ToString(p.mesh, p.tensors[kC]));
}

const BenchRow* AutoOf(const BenchCase& one) {
  for (const BenchRow& row : one.rows)
    if (row.algorithm == kAuto) return &row;
  return nullptr;
}

// What stands beside a row: "best", and what must not be missed.
std::string Mark(const BenchCase& one, const BenchRow& row) {
  std::vector<std::string> marks;
  if (&row == BestOf(one)) marks.push_back("best");
  if (row.exact == false) marks.push_back("WRONG C");
  if (!row.exact) marks.push_back("C not compared");
  return absl::StrJoin(marks, ", ");
}

std::optional<double> Quotient(const std::optional<double>& a, const std::optional<double>& b) {
  if (!a || !b || *b <= 0) return std::nullopt;
  return *a / *b;
}

// T of auto / T of the best.
std::optional<double> AutoRatio(const BenchCase& one) {
  const BenchRow *chosen = AutoOf(one), *best = BestOf(one);
  if (chosen == nullptr || best == nullptr) return std::nullopt;
  return Quotient(Median(chosen->runs_ms), Median(best->runs_ms));
}

std::string AutoLine(const BenchCase& one) {
  const BenchRow* chosen = AutoOf(one);
  if (chosen == nullptr) return "";
  const v1::PlanOptions& options = chosen->job.options();
  const std::string& why = chosen->job.explanation();
  return absl::StrCat("auto ran ", options.algorithm(), ", ", options.chunk_count(),
                      options.chunk_count() == 1 ? " chunk" : " chunks", " a shard",
                      why.empty() ? "" : absl::StrCat(" (", why, ")"), "\n");
}

bool EveryCIsRight(const std::vector<BenchCase>& cases) {
  return std::all_of(cases.begin(), cases.end(), [](const BenchCase& one) {
    return std::all_of(one.rows.begin(), one.rows.end(),
                       [](const BenchRow& row) { return row.exact == true; });
  });
}

}  // namespace

BenchFigures FiguresOf(const BenchCase& one, const BenchRow& row) {
  const std::optional<double> time_ms = Median(row.runs_ms);
  return {Compare(time_ms, Median(one.serial.unfused_ms),
                  {Median(one.serial.gemm_ms), Median(one.serial.gather_ms)}),
          Spread(row.runs_ms), Tflops(one.problem, time_ms)};
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
  const std::string title = absl::StrCat(one.name, "  ", Sizes(one.problem), "\n");
  if (!one.skipped.empty()) return absl::StrCat(title, Wrap("skipped: " + one.skipped, 100), "\n");
  Table table({{"algorithm", "", Column::kText},
               {"chunks"},
               {"T", "ms"},
               {"+-", "%"},
               {"R"},
               {"E"},
               {"speedup"},
               {"rate", "TFLOP/s"},
               {"", "", Column::kText}});
  Comparison bounds;
  for (const BenchRow& row : one.rows) {
    const BenchFigures figures = FiguresOf(one, row);
    const Comparison& c = figures.comparison;
    bounds = c;
    table.AddRow({row.algorithm, absl::StrCat(row.job.options().chunk_count()), Text(c.fused_ms),
                  Percent(figures.spread), Text(c.ratio), Text(c.efficiency), Text(c.speedup),
                  Text(figures.tflops), Mark(one, row)});
  }
  return absl::StrCat(title, "T_gemm ", Text(bounds.gemm_ms), " ms  T_ag ", Text(bounds.gather_ms),
                      " ms  T_lb ", Text(bounds.lower_bound_ms), " ms  T_unfused ",
                      Text(bounds.unfused_ms), " ms\n", table.ToString(), AutoLine(one));
}

std::string BenchSummary(const std::vector<BenchCase>& cases) {
  std::string text;
  if (cases.size() > 1) {
    Table table({{"product", "", Column::kLong},
                 {"M"},
                 {"N"},
                 {"K"},
                 {"T_lb", "ms"},
                 {"best", "", Column::kText},
                 {"T", "ms"},
                 {"R"},
                 {"speedup"},
                 {"auto / best"}});
    for (const BenchCase& one : cases) {
      const Problem& p = one.problem;
      std::vector<std::string> cells = {one.name, absl::StrCat(p.m()), absl::StrCat(p.n()),
                                        absl::StrCat(p.k())};
      if (const BenchRow* best = BestOf(one)) {
        const Comparison c = FiguresOf(one, *best).comparison;
        for (const std::string& cell : {Text(c.lower_bound_ms), best->algorithm, Text(c.fused_ms),
                                        Text(c.ratio), Text(c.speedup), Text(AutoRatio(one))})
          cells.push_back(cell);
      } else {
        cells.insert(cells.end(), {"", "skipped"});
      }
      table.AddRow(std::move(cells));
    }
    absl::StrAppend(&text, table.ToString());
  }
  absl::StrAppend(
      &text,
      "T is the slowest rank's median after a warm-up, +- half of the middle half of the runs;\n"
      "T_gemm, T_ag and T_unfused are of the serial jobs. T_lb = max(T_gemm, T_ag), R = T_lb / T,\n"
      "speedup = T_unfused / T, E = 1 - (T - T_gemm) / (T_unfused - T_gemm) where there is over 5 "
      "%\n"
      "of T_gemm to hide\n");
  if (EveryCIsRight(cases)) absl::StrAppend(&text, "Every C has the bits of serial's\n");
  if (std::any_of(cases.begin(), cases.end(), [](const BenchCase& c) { return c.shared_host; }))
    absl::StrAppend(&text, kSharedHostNote);
  return text;
}

std::vector<Json> ToJson(const BenchCase& one) {
  const BenchRow none;
  std::vector<const BenchRow*> rows;
  for (const BenchRow& row : one.rows) rows.push_back(&row);
  if (!one.skipped.empty()) rows = {&none};
  const auto known = [](const std::string& text) {
    return text.empty() ? Json(nullptr) : Json(text);
  };
  const Problem& p = one.problem;
  std::vector<Json> lines;
  for (const BenchRow* row : rows) {
    const v1::Job& job = row->job;
    const BenchFigures figures = FiguresOf(one, *row);
    const Comparison& c = figures.comparison;
    const bool ran = row != &none;
    lines.push_back({{"schema", "agmm.bench_result.v1"},
                     {"name", one.name},
                     {"spec", SpecOf(p)},
                     {"m", p.m()},
                     {"n", p.n()},
                     {"k", p.k()},
                     {"dtype", std::string(Name(p.tensors[kA].dtype))},
                     {"mesh", p.mesh.ToString()},
                     {"ranks", p.mesh.ranks},
                     {"shared_host", one.shared_host},
                     {"skipped", known(one.skipped)},
                     {"algorithm", known(row->algorithm)},
                     {"chosen", known(job.options().algorithm())},
                     {"chunks", ran ? Json(job.options().chunk_count()) : Json(nullptr)},
                     {"explanation", known(job.explanation())},
                     {"plan_hash", known(job.plan_hash())},
                     {"runs_ms", row->runs_ms},
                     {"time_ms", Number(c.fused_ms)},
                     {"spread", Number(figures.spread)},
                     {"unfused_ms", Number(c.unfused_ms)},
                     {"gemm_ms", Number(c.gemm_ms)},
                     {"gather_ms", Number(c.gather_ms)},
                     {"lower_bound_ms", Number(c.lower_bound_ms)},
                     {"ratio", Number(c.ratio)},
                     {"efficiency", Number(c.efficiency)},
                     {"speedup", Number(c.speedup)},
                     {"tflops", Number(figures.tflops)},
                     {"best", ran ? Json(row == BestOf(one)) : Json(nullptr)},
                     {"exact", row->exact ? Json(*row->exact) : Json(nullptr)}});
  }
  return lines;
}

absl::Status OutcomeOf(const std::vector<BenchCase>& cases) {
  std::vector<std::string> wrong;
  for (const BenchCase& one : cases) {
    for (const BenchRow& row : one.rows)
      if (row.exact == false)
        wrong.push_back(absl::StrCat(row.algorithm, " on ", Sizes(one.problem)));
  }
  if (!wrong.empty()) {
    return absl::InternalError(
        absl::StrCat("C differs from that of serial: ", absl::StrJoin(wrong, "; "),
                     "; this is a bug, please report it"));
  }
  const auto skipped = [](const BenchCase& one) { return !one.skipped.empty(); };
  if (std::all_of(cases.begin(), cases.end(), skipped)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no product fits; choose a smaller --shape or a larger --scale (",
                     cases.empty() ? "" : cases.front().skipped, ")"));
  }
  return absl::OkStatus();
}

}  // namespace agmm
