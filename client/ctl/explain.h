// Explains which split of a product was chosen, and why.
#pragma once

#include <string>

#include "client/ctl/json.h"
#include "kernels/schedule/split.h"

namespace agmm {

// Returns the case of the product by its shardings, and every split with its costs; `taken` is
// marked. If `chosen`, the planner chose it, and the text gives the planner's rule.
std::string ExplainText(const Problem& problem, const Split& taken, bool chosen);
// {"case", "splits": [{"split", "taken", "busiest_bytes", "moved_bytes", "flops", "time_bytes",
//                      "memory_bytes", "needs_sum", "too_large"}]}
Json ExplainJson(const Problem& problem, const Split& taken);

}  // namespace agmm
