#include "client/ctl/explain.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/table.h"
#include "kernels/base/units.h"
#include "kernels/schedule/demand.h"
#include "kernels/schedule/index.h"

namespace agmm {
namespace {

bool ShareAnAxis(const std::vector<int>& x, const std::vector<int>& y) {
  return absl::c_any_of(x, [&](int axis) { return absl::c_linear_search(y, axis); });
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

struct Candidate {
  Split split;
  SplitCost cost;
  bool needs_sum = false, too_large = false;
};

Candidate CandidateOf(const Problem& problem, const Split& split) {
  const bool needs_sum = !CheckNoSum(problem, split).ok();
  const bool fits = needs_sum || CheckDemands(problem, split, DemandsOf(problem, split)).ok();
  return {split, CostOf(problem, split), needs_sum, !fits};
}

// Returns the cheapest first, and the ones that cannot be chosen last. Includes `taken`, which may
// name its axes in another order than the splits it is compared with.
std::vector<Candidate> Candidates(const Problem& problem, const Split& taken) {
  std::vector<Candidate> candidates;
  for (const Split& split : Splits(problem)) candidates.push_back(CandidateOf(problem, split));
  if (absl::c_none_of(candidates, [&](const Candidate& one) { return one.split == taken; }))
    candidates.push_back(CandidateOf(problem, taken));
  absl::c_stable_sort(candidates, [](const Candidate& x, const Candidate& y) {
    const auto key = [](const Candidate& one) { return std::pair(one.needs_sum, one.too_large); };
    return key(x) != key(y) ? key(x) < key(y) : IsBetter(x.cost, y.cost);
  });
  return candidates;
}

}  // namespace

std::string ExplainText(const Problem& problem, const Split& taken, bool chosen) {
  Table table({Words("split"), Number("into busiest rank"), Number("into all"),
               Number("flops of a rank"), Number("bytes + flops/1000"), Number("beside its shards"),
               Words("")});
  for (const Candidate& one : Candidates(problem, taken)) {
    const std::string mark = one.split == taken ? chosen ? "taken" : "asked for"
                             : one.needs_sum    ? "needs a sum between ranks: not planned yet"
                             : one.too_large    ? "too many blocks to be planned"
                                                : "";
    table.AddRow({SplitText(problem, one.split), FormatBytes(one.cost.busiest_bytes),
                  FormatBytes(one.cost.moved_bytes),
                  absl::StrFormat("%.3g", static_cast<double>(one.cost.flops)),
                  FormatBytes(one.cost.time_bytes()), FormatBytes(one.cost.memory_bytes), mark});
  }
  const std::string rule =
      chosen
          ? Wrap(absl::StrFormat(
                "chosen among the splits that need no sum: one that moves nothing; otherwise the "
                "one with the lowest cost, which is the bytes into its busiest rank plus a byte "
                "for every %d flops of a rank; if equal, the one with the fewest flops, then one "
                "that leaves %s where it is made",
                kFlopsPerByte, problem.tensors[TheProduct(problem).c].name)) +
                "\n"
          : "";
  return absl::StrCat(CaseOf(problem), "\n", rule, "\n", table.ToString());
}

Json ExplainJson(const Problem& problem, const Split& taken) {
  Json splits = Json::array();
  for (const Candidate& one : Candidates(problem, taken)) {
    splits.push_back({{"split", SplitText(problem, one.split)},
                      {"taken", one.split == taken},
                      {"busiest_bytes", one.cost.busiest_bytes},
                      {"moved_bytes", one.cost.moved_bytes},
                      {"flops", one.cost.flops},
                      {"time_bytes", one.cost.time_bytes()},
                      {"memory_bytes", one.cost.memory_bytes},
                      {"needs_sum", one.needs_sum},
                      {"too_large", one.too_large}});
  }
  return {{"case", CaseOf(problem)}, {"splits", splits}};
}

}  // namespace agmm
