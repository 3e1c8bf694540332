#include "kernels/schedule/cut_demands.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
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

// The dtype in which ranks have the terms of a sum.
DType HeldDType(const Problem& problem, const Demand& sum) {
  return sum.producer == Producer::kShard ? problem.tensors[SourceOf(problem, sum.operand)].dtype
                                          : DType::kF32;
}

// The most additional bytes that a rank may receive to save a round. More cost more than the round.
constexpr int64_t kMostMoreBytes = 32 << 10;
// With more bytes, adding all terms at every rank costs more than the round that it saves.
constexpr int64_t kMostBytesEverywhere = 1 << 20;
// With more ranks, one round has too many messages.
constexpr int64_t kMostRanksEverywhere = 16;

// Returns true if all ranks of each group need everything of which they have terms, and if one
// round takes less time than two.
bool IsCheapEverywhere(const Problem& problem, const Demand& sum, const Demand& result) {
  std::map<int, std::pair<Block, int64_t>> groups;  // the block, and the number of ranks
  for (size_t rank = 0; rank < sum.needs.size(); ++rank) {
    const Blocks &terms = sum.needs[rank], &needed = result.needs[rank];
    if (terms.empty() && absl::c_all_of(needed, [](const Block& block) { return block.empty(); }))
      continue;
    if (terms.size() != 1 || needed != terms) return false;
    auto& [block, ranks] = groups[sum.groups[rank]];
    if (ranks++ > 0 && block != terms.front()) return false;
    block = terms.front();
  }
  for (const auto& [group, one] : groups) {
    const auto& [block, ranks] = one;
    if (ranks > kMostRanksEverywhere) return false;
    const int64_t elements = block.rows.size() * block.cols.size();
    const int64_t once = elements / ranks * (ranks - 1) *
                         (SizeOf(sum.terms_dtype) + SizeOf(problem.tensors[result.operand].dtype));
    const int64_t received = elements * (ranks - 1) * SizeOf(HeldDType(problem, sum));
    if (received > std::min(once + kMostMoreBytes, kMostBytesEverywhere)) return false;
  }
  return true;
}

// Lets each rank sum all elements that it needs, if that costs no more than two rounds.
void SumEverywhere(const Problem& problem, Demands& demands) {
  for (size_t i = 0; i + 1 < demands.list.size(); ++i) {
    Demand &sum = demands.list[i], &result = demands.list[i + 1];
    // The sum of an input always takes two rounds. In one, K would be whole, and a row could have
    // other bits in another batch.
    if (sum.consumer != Consumer::kSum || !problem.Writes(sum.operand) ||
        !IsCheapEverywhere(problem, sum, result))
      continue;
    // Rounded terms always take two rounds. If the size decided, a row could have other bits in
    // another batch.
    const DType held = HeldDType(problem, sum);
    if (sum.terms_dtype != DType::kF32 && sum.terms_dtype != held) continue;
    sum.terms_dtype = held;
    sum.everywhere = true;
    for (size_t rank = 0; rank < sum.has.size(); ++rank) {
      if (!sum.needs[rank].empty()) sum.has[rank] = sum.needs[rank].front();
      result.has[rank] = sum.has[rank];
    }
    result.travels = result.along_k = false;
  }
}

}  // namespace

Demands CutDemands(const Problem& problem, const Topology& topology, const Split& split,
                   const Algorithm& algorithm, int chunks, int k_chunks, DType partials,
                   bool bounded) {
  Demands demands = DemandsOf(problem, split);
  if (demands.result().travels && demands.result().producer == Producer::kMultiplies) {
    Shrink(problem, Movement(problem, topology, demands.result(), algorithm), demands);
    // A contiguous operand is multiplied as a whole.
    if (algorithm.arrivals == Arrivals::kContiguous) {
      demands.makes_twice = MakesMore(demands);
      demands.made.clear();
    }
    UpdateInputs(problem, demands);
  }
  for (Demand& demand : demands.list) demand.terms_dtype = partials;
  if (algorithm.sums_in_order && !bounded) SumEverywhere(problem, demands);
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
  const auto along_k = [&](Operand input) {
    return absl::c_any_of(demands.list, [&](const Demand& demand) {
      return demand.operand == input && demand.along_k;
    });
  };
  for (Demand& demand : demands.list) {
    const auto set = [&](Dim dim, int pieces) {
      Along(problem, demand.operand, demand.pieces, dim) = pieces;
    };
    if (problem.Writes(demand.operand)) {
      set(cut_dim, chunks * halves);
      continue;
    }
    // An open sum is cut like the input that it becomes.
    const Dim outer = OuterDim(problem, demand.operand);
    const bool cut = !demands.result_travels() || outer == cut_dim,
               slices = along_k(demand.operand);
    set(outer, (cut ? chunks : 1) * (slices ? 1 : halves));
    set(Dim::kK, k_chunks * (slices ? halves : 1));
  }
}

}  // namespace agmm
