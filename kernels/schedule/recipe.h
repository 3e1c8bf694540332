// All choices that determine a plan, as values.
#pragma once

#include "kernels/schedule/algorithm.h"
#include "kernels/schedule/split.h"

namespace agmm {

// With one problem and one topology, equal recipes give equal schedules. ResolveOptions makes
// recipes; PlanOptions are their form in text.
struct Recipe {
  const Algorithm* algorithm = nullptr;  // never null; need not be one of Algorithms()
  Split split;
  int chunks = 1, k_chunks = 1;  // pieces along M or N, and along K
  int workspace_shards = 0;      // 0: room for all
  bool carried = false;
  bool transfers_only = false;
  bool operator==(const Recipe&) const = default;
};

}  // namespace agmm
