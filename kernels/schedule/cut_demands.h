// The demands of a plan: in pieces, and with one rank to make each part of the result.
#pragma once

#include "kernels/schedule/algorithm.h"
#include "kernels/schedule/demand.h"

namespace agmm {

// The demands of a split, cut into the pieces of an algorithm. If several ranks can compute the
// same block of the result, one of them does (but see makes_twice). `chunks`: number of pieces
// along M and N; `k_chunks`: along K; `partials`: as in PlanOptions; `bounded`: the
// workspace is, so no rank gets all terms of a sum at once.
Demands CutDemands(const Problem& problem, const Topology& topology, const Split& split,
                   const Algorithm& algorithm, int chunks, int k_chunks,
                   DType partials = DType::kF32, bool bounded = false);
// Cuts these demands into other numbers of pieces.
void SetPieces(const Problem& problem, const Algorithm& algorithm, int chunks, int k_chunks,
               Demands& demands);

}  // namespace agmm
