#include "kernels/schedule/cut_demands.h"

#include <algorithm>

#include "kernels/schedule/cells.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/movement.h"

namespace agmm {
namespace {

// Shrinks each rank's part to the bounding box of the blocks that the rank computes. With replicas,
// some ranks compute blocks for others, and some do not.
void Shrink(const Problem& problem, const Movement& c, Demands& demands) {
  demands.made.resize(problem.mesh.size());
  for (Rank rank = 0; rank < problem.mesh.size(); ++rank) {
    LocalProduct& part = demands.work.parts[rank];
    const Block made = NeededBlock(problem, TheProduct(problem).c, part);
    Block bounds = {
        TheProduct(problem).c, {made.rows.end, made.rows.begin}, {made.cols.end, made.cols.begin}};
    for (int chunk : ChunksMadeBy(problem, c, made, rank)) {
      const Block& block = c.chunks().list[chunk].block;
      demands.made[rank].push_back(block);
      bounds.rows = {std::min(bounds.rows.begin, block.rows.begin),
                     std::max(bounds.rows.end, block.rows.end)};
      bounds.cols = {std::min(bounds.cols.begin, block.cols.begin),
                     std::max(bounds.cols.end, block.cols.end)};
    }
    part.m = Along(problem, TheProduct(problem).c, bounds, Dim::kM);
    part.n = Along(problem, TheProduct(problem).c, bounds, Dim::kN);
  }
}

// Returns true if a rank's part is larger than the blocks of C that it has to compute.
bool MakesMore(const Demands& demands) {
  for (size_t rank = 0; rank < demands.made.size(); ++rank) {
    const LocalProduct& part = demands.work.parts[rank];
    int64_t more = part.m.empty() || part.n.empty() ? 0 : part.m.size() * part.n.size();
    for (const Block& block : demands.made[rank]) more -= block.rows.size() * block.cols.size();
    if (more > 0) return true;
  }
  return false;
}

}  // namespace

Demands CutDemands(const Problem& problem, const Topology& topology, const Split& split,
                   const Algorithm& algorithm, int chunks, int k_chunks, DType partials) {
  Demands demands = DemandsOf(problem, split);
  for (Demand& demand : demands.list) demand.terms_dtype = partials;
  if (demands.result().travels && demands.result().producer == Producer::kMultiplies) {
    Shrink(problem, Movement(problem, topology, demands.result(), algorithm), demands);
    // A contiguous operand is multiplied as a whole.
    if (algorithm.arrivals == Arrivals::kContiguous) {
      demands.makes_twice = MakesMore(demands);
      demands.made.clear();
    }
    UpdateInputs(problem, demands);
  }
  SetPieces(problem, algorithm, chunks, k_chunks, demands);
  return demands;
}

void SetPieces(const Problem& problem, const Algorithm& algorithm, int chunks, int k_chunks,
               Demands& demands) {
  // Inputs are cut along the dimension that is gathered. If the result travels, it is sent in the
  // pieces in which the larger input arrives, and the other input is not cut: pieces along both M
  // and N would need a multiply for each pair of them.
  const int halves = algorithm.pieces;
  const Dim cut_dim = OuterDim(problem, LargestDemand(problem, demands).operand);
  for (Demand& demand : demands.list) {
    if (demand.consumer != Consumer::kMultiplies) {
      Along(problem, demand.operand, demand.pieces, cut_dim) = chunks * halves;
      continue;
    }
    const Dim outer = OuterDim(problem, demand.operand);
    const bool cut = !demands.result_travels() || outer == cut_dim;
    Along(problem, demand.operand, demand.pieces, outer) =
        (cut ? chunks : 1) * (demand.along_k ? 1 : halves);
    Along(problem, demand.operand, demand.pieces, Dim::kK) =
        k_chunks * (demand.along_k ? halves : 1);
  }
}

}  // namespace agmm
