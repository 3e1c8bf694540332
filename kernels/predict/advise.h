// The best shardings of the operands of a product, or of products in a row, on a platform.
// Estimates by closed forms choose the candidates that are simulated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/predict/advice_request.h"
#include "kernels/predict/platform.h"
#include "kernels/predict/predicted_plans.h"
#include "kernels/predict/shardings.h"

namespace agmm {

struct AdvisedProduct {
  Problem problem;  // with the shardings
  PredictedPlan plan;
  std::vector<OperandMove> moves;
  int64_t gemm_ns = 0;         // T_gemm
  int64_t received_bytes = 0;  // SplitCost::busiest_bytes
};

struct Advice {
  std::vector<AdvisedProduct> products;
  // The position from 1. Entries share the first position of those whose times differ by at most
  // 1 %. If M and N are equal, a combination and its transposed one also share it: the plan of one
  // would serve the other, and their times differ only because the planner orders the sends of rows
  // and of columns differently.
  int place = 0;
  bool is_shared = false;
  // Sums over the products; memory is that of a rank, as in AdviceRequest.
  int64_t time_ns = 0, gemm_ns = 0, received_bytes = 0, memory_bytes = 0;
};

struct AdviceAnswer {
  std::vector<Advice> ranked;  // best first; empty if no candidate fits the memory
  std::string why;             // why the first one is the best
  // Candidates: shardings with a split each. Equal axes give one candidate for all their orders.
  // Longer rows of products are examined in part: between two products, the ones with the lowest
  // estimates and the ones with the least memory go on.
  int64_t candidates = 0, too_large = 0, simulated = 0;
  int64_t least_bytes = 0;  // the smallest memory of a candidate, as far as it is known
};

// Errors: INVALID_ARGUMENT if the axes of the mesh make too many candidates, and for
// products that do not meet the conditions above.
absl::StatusOr<AdviceAnswer> Advise(const AdviceRequest& request, const Platform& platform);

}  // namespace agmm
