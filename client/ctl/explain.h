// Which of its splits a product takes, and why.
#pragma once

#include <string>

#include "client/ctl/json.h"
#include "kernels/schedule/split.h"

namespace agmm {

// The case of the product by its shardings, and every split with its costs; `taken` is marked.
// `chosen`: by the planner, whose rule the text then gives.
std::string ExplainText(const Problem& problem, const Split& taken, bool chosen);
// {"case", "splits": [{"split", "taken", "busiest_bytes", "moved_bytes", "flops", "time_bytes",
//                      "memory_bytes", "needs_sum", "too_large"}]}
Json ExplainJson(const Problem& problem, const Split& taken);

}  // namespace agmm
