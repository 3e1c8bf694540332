// The reasons for a plan's split: the case of the product, and every split with its costs and its
// predicted time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/ctl/json.h"
#include "kernels/predict/platform.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/split.h"

namespace agmm {

struct SplitRow {
  Split split;
  SplitCost cost;
  int64_t time_ns = 0;  // predicted for the best plan of this split; 0: not predicted
  // Ranks add up terms; too many blocks to plan; only if asked for, because it changes the order of
  // sums; does not leave an open sum open.
  bool sums = false, too_large = false, only_asked_for = false, keeps_closed = false;
};

// Returns every split, and `taken`, which may name its axes in another order: the ones that can be
// chosen first, by time. `asked`: the other options of their plans.
std::vector<SplitRow> SplitRowsOf(const Problem& problem, const Platform& platform,
                                  const PlanOptions& asked, const Split& taken);

// `taken` is marked; `chosen`: by prediction, so the text gives the rule. A collective has no
// splits to compare. `limit`: the busiest resource of the plan.
std::string ExplanationText(const Problem& problem, const std::vector<SplitRow>& rows,
                            const Split& taken, bool chosen, const std::string& limit);
// {"case", "limit", "splits": [{"split", "taken", "time_ns", "busiest_bytes", "moved_bytes",
//                               "flops", "memory_bytes", "needs_sum", "keeps_closed",
//                               "too_large"}]}
Json ExplanationJson(const Problem& problem, const std::vector<SplitRow>& rows, const Split& taken,
                     const std::string& limit);

}  // namespace agmm
