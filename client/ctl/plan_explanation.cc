#include "client/ctl/plan_explanation.h"

#include <tuple>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/report.h"
#include "client/ctl/table.h"
#include "client/ctl/time_unit.h"
#include "kernels/base/units.h"
#include "kernels/predict/choose.h"
#include "kernels/schedule/demand.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/text.h"

namespace agmm {
namespace {

// The steps that the predictions of all splits may compare, which take some 5 s; the ones after
// that are left out.
constexpr int64_t kMostSteps = 1000000;

bool ShareAnAxis(const std::vector<int>& x, const std::vector<int>& y) {
  return absl::c_any_of(x, [&](int axis) { return absl::c_linear_search(y, axis); });
}

// "; the sum of A is closed first" if an input has an open sum, else nothing.
std::string OpenInputs(const Problem& problem) {
  std::vector<std::string> names;
  for (const Operand input : problem.Inputs()) {
    if (OpenParts(problem.mesh, problem.tensors[input]) > 1)
      names.push_back(problem.tensors[input].name);
  }
  if (names.empty()) return "";
  return absl::StrCat("; the sum", names.size() > 1 ? "s" : "", " of ",
                      absl::StrJoin(names, " and "), names.size() > 1 ? " are" : " is",
                      " closed first");
}

// Source: the four cases of "Sharded Matrices and How to Multiply Them" (How to Scale Your Model).
std::string CaseOf(const Problem& problem) {
  const Product& product = TheProduct(problem);
  const Sharding &a = problem.tensors[product.a].sharding, &b = problem.tensors[product.b].sharding,
                 &c = problem.tensors[product.c].sharding;
  const std::string m = DimensionOf(problem, Dim::kM).name, n = DimensionOf(problem, Dim::kN).name,
                    k = DimensionOf(problem, Dim::kK).name;
  if (!a.cols.empty() && a.cols == b.rows)
    return absl::StrCat("case 3: ", k, " is sharded alike in both inputs");
  if (!a.cols.empty() || !b.rows.empty())
    return absl::StrCat("case 2: ", k, " is sharded in one input, or differently in both");
  if (ShareAnAxis(a.rows, b.cols))
    return absl::StrCat("case 4: ", m, " and ", n, " are sharded over the same axis");
  if (a.rows != c.rows || b.cols != c.cols)
    return absl::StrCat("case 1, but ", problem.tensors[product.c].name,
                        " is sharded otherwise than its inputs");
  return absl::StrCat("case 1: ", k, " is whole, and ", m, " and ", n,
                      " are sharded over different axes or none");
}

SplitRow RowOf(const Problem& problem, const Split& split) {
  const bool fits = CheckDemands(problem, split, DemandsOf(problem, split)).ok();
  return {split,
          CostOf(problem, split),
          0,
          WorkOf(problem, split).summed,
          !fits,
          KeepsK(problem) && !SummedAxes(problem, split).empty(),
          !CheckSplit(problem, split).ok()};
}

bool CanBeChosen(const SplitRow& row) {
  return !row.too_large && !row.only_asked_for && !row.keeps_closed;
}

}  // namespace

std::vector<SplitRow> SplitRowsOf(const Problem& problem, const Platform& platform,
                                  const PlanOptions& asked, const Split& taken) {
  std::vector<SplitRow> rows;
  if (!HasProduct(problem)) return rows;
  for (const Split& split : Splits(problem)) rows.push_back(RowOf(problem, split));
  if (absl::c_none_of(rows, [&](const SplitRow& one) { return one.split == taken; }))
    rows.push_back(RowOf(problem, taken));
  int64_t steps = 0;
  for (SplitRow& row : rows) {
    if (row.split != taken && (!CanBeChosen(row) || steps > kMostSteps)) continue;
    PlanOptions options = asked;
    options.split = SplitText(problem, row.split);
    const absl::StatusOr<Choice> choice = Choose(problem, platform, options);
    if (!choice.ok()) continue;
    row.time_ns = choice->time_ns;
    steps += choice->compared_steps;
  }
  absl::c_stable_sort(rows, [](const SplitRow& x, const SplitRow& y) {
    const auto key = [](const SplitRow& one) {
      return std::tuple(!CanBeChosen(one), one.time_ns == 0, one.time_ns);
    };
    return key(x) != key(y) ? key(x) < key(y) : IsBetter(x.cost, y.cost);
  });
  return rows;
}

std::string ExplanationText(const Problem& problem, const std::vector<SplitRow>& rows,
                            const Split& taken, bool chosen, const std::string& limit) {
  const std::string limited = limit.empty() ? "" : absl::StrCat("\nlimited by ", limit, "\n");
  if (!HasProduct(problem)) {
    return absl::StrCat(CollectiveName(problem), ": without a product there is nothing to split\n",
                        limited);
  }
  int64_t least = 0;
  for (const SplitRow& one : rows)
    if (one.time_ns > 0 && (least == 0 || one.time_ns < least)) least = one.time_ns;
  const TimeUnit unit = TimeUnitOf(least);
  Table table({Words("split"), Number("predicted T", unit.name), Number("into busiest rank"),
               Number("into all"), Number("flops of a rank"), Number("beside its shards"),
               Words("")});
  for (const SplitRow& one : rows) {
    const std::string mark = one.split == taken   ? chosen ? "taken" : "asked for"
                             : one.keeps_closed   ? "does not leave the sum open"
                             : one.too_large      ? "too many blocks to be planned"
                             : one.only_asked_for ? "only if asked for: changes the order of sums"
                                                  : "";
    table.AddRow({SplitText(problem, one.split), one.time_ns == 0 ? "-" : InUnit(one.time_ns, unit),
                  FormatBytes(one.cost.busiest_bytes), FormatBytes(one.cost.moved_bytes),
                  absl::StrFormat("%.3g", static_cast<double>(one.cost.flops)),
                  FormatBytes(one.cost.memory_bytes), mark});
  }
  const std::string rule =
      chosen ? Wrap(
                   "the split of the plan with the lowest predicted time is taken; plans within "
                   "1 % of it are as good, and the one with the fewest steps is preferred") +
                   "\n"
             : "";
  return absl::StrCat(CaseOf(problem), OpenInputs(problem), "\n", rule, "\n", table.ToString(),
                      limited);
}

Json ExplanationJson(const Problem& problem, const std::vector<SplitRow>& rows, const Split& taken,
                     const std::string& limit) {
  if (!HasProduct(problem))
    return {{"case", CollectiveName(problem)}, {"limit", limit}, {"splits", Json::array()}};
  Json splits = Json::array();
  for (const SplitRow& one : rows) {
    splits.push_back({{"split", SplitText(problem, one.split)},
                      {"taken", one.split == taken},
                      {"time_ns", one.time_ns == 0 ? Json() : Json(one.time_ns)},
                      {"busiest_bytes", one.cost.busiest_bytes},
                      {"moved_bytes", one.cost.moved_bytes},
                      {"flops", one.cost.flops},
                      {"memory_bytes", one.cost.memory_bytes},
                      {"needs_sum", one.sums},
                      {"keeps_closed", one.keeps_closed},
                      {"too_large", one.too_large}});
  }
  return {{"case", CaseOf(problem)}, {"limit", limit}, {"splits", splits}};
}

}  // namespace agmm
