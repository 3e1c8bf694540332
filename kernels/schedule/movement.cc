#include "kernels/schedule/movement.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "kernels/base/units.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/step_op.h"

namespace agmm {
namespace {

using ChunkHop = Movement::ChunkHop;

// Returns true if ranks read the chunks in each other's memory where they can.
bool IsReadInPlace(const Demand& demand, const Algorithm& algorithm) {
  return algorithm.arrivals == Arrivals::kInPlace && demand.consumer != Consumer::kShard;
}

// Returns the number of hops of a demand in this number of pieces.
double Hops(const Demand& demand, int rows, int cols) {
  double hops = 0;
  for (const ChunkCount& count : CountChunks(demand.has, demand.needs, rows, cols))
    hops += static_cast<double>(count.received);
  return hops;
}

// Calls use(hop) for each hop of the chunk with this number.
template <typename Use>
void ForEachHop(const Problem& problem, const Topology& topology, const Demand& demand,
                const Algorithm& algorithm, const Chunk& chunk, int number, const Use& use) {
  const bool in_place = IsReadInPlace(demand, algorithm);
  for (const Source& source : chunk.sources) {
    std::vector<Hop> hops =
        algorithm.route({source.rank, source.needers, chunk.piece, problem.mesh, topology});
    const bool sums = demand.consumer == Consumer::kSum;
    if (sums) hops = Reversed(std::move(hops));
    // Ranks between two hops: they send a copy of their own, or a sum of their own.
    std::vector<Rank> between;
    if (in_place) {
      for (const Hop& hop : hops) between.push_back(sums ? hop.to : hop.from);
      std::sort(between.begin(), between.end());
    }
    for (const Hop& hop : hops) {
      use(ChunkHop{
          number, hop.from, hop.to, hop.step,
          in_place && topology.CanLoad(hop.from, hop.to) &&
              !std::binary_search(between.begin(), between.end(), sums ? hop.from : hop.to)});
    }
  }
}

// Returns the number of pieces into which `demand` cuts a chunk of its grid.
int64_t PiecesOf(const Chunk& cell, const Demand& demand) {
  return std::min<int64_t>(cell.block.rows.size(), demand.pieces.rows) *
         std::min<int64_t>(cell.block.cols.size(), demand.pieces.cols);
}

}  // namespace

Chunks RefineDemand(const Problem& problem, const Topology& topology, const Demand& demand,
                    const Algorithm& algorithm) {
  return Refine(problem.mesh, topology, demand.has, demand.needs, demand.pieces.rows,
                demand.pieces.cols, algorithm.one_a_node, demand.groups);
}

Movement::Movement(const Problem& problem, const Topology& topology, const Demand& demand,
                   const Algorithm& algorithm)
    : operand_(demand.operand),
      producer_(demand.producer),
      consumer_(demand.consumer),
      terms_dtype_(demand.terms_dtype) {
  if (!demand.travels) return;
  chunks_ = RefineDemand(problem, topology, demand, algorithm);
  for (int c = 0; c < static_cast<int>(chunks_.list.size()); ++c) {
    ForEachHop(problem, topology, demand, algorithm, chunks_.list[c], c,
               [&](const ChunkHop& hop) { hops_.push_back(hop); });
  }
  std::stable_sort(hops_.begin(), hops_.end(), [](const ChunkHop& a, const ChunkHop& b) {
    return std::tie(a.step, a.chunk) < std::tie(b.step, b.chunk);
  });
  if (consumer_ == Consumer::kSum) {
    summed_ = demand.has;
    for (int i = 0; i < static_cast<int>(hops_.size()); ++i) {
      terms_[{hops_[i].to, hops_[i].chunk}].push_back(i);
      leaving_[{hops_[i].from, hops_[i].chunk}] = i;
    }
    return;
  }
  arrivals_.reserve(hops_.size());
  for (int i = 0; i < static_cast<int>(hops_.size()); ++i)
    arrivals_.emplace(std::pair(hops_[i].to, hops_[i].chunk), i);
}

const std::vector<int>& Movement::TermsAt(Rank rank, int chunk) const {
  static const std::vector<int> kNone;
  const auto at = terms_.find({rank, chunk});
  return at == terms_.end() ? kNone : at->second;
}

std::vector<int> Movement::ChunksOf(const Block& block) const {
  std::vector<int> found;
  if (block.empty()) return found;
  const auto first = [](const std::vector<Range>& cuts, int64_t begin) {
    const auto at = std::partition_point(cuts.begin(), cuts.end(),
                                         [&](const Range& cut) { return cut.end <= begin; });
    return static_cast<int>(at - cuts.begin());
  };
  const auto& [rows, cols] = chunks_.grid;
  for (int i = first(rows, block.rows.begin);
       i < static_cast<int>(rows.size()) && rows[i].begin < block.rows.end; ++i) {
    for (int j = first(cols, block.cols.begin);
         j < static_cast<int>(cols.size()) && cols[j].begin < block.cols.end; ++j)
      found.push_back(chunks_.IndexOf(i, j));
  }
  return found;
}

double CountHops(const Demand& demand) {
  return Hops(demand, demand.pieces.rows, demand.pieces.cols);
}

double CountReductions(const Problem& problem, const Topology& topology, const Demand& demand,
                       const Algorithm& algorithm) {
  // Terms that a rank has in another dtype than the one in which they travel are converted first.
  const DType held = demand.producer == Producer::kShard
                         ? problem.tensors[TheCollective(problem).from].dtype
                         : DType::kF32;
  const bool converts = held != demand.terms_dtype;
  const bool in_place = IsReadInPlace(demand, algorithm);
  if (!in_place && !converts) return CountHops(demand);
  // All pieces of a grid cell have the same number of hops in place. But the route may depend on
  // the piece, and with it the number of ranks that send terms straight from their shards.
  Demand counted = demand;
  if (!converts) counted.pieces = {};
  if (Hops(counted, counted.pieces.rows, counted.pieces.cols) > kMostCountedHops)
    return CountHops(demand);
  double reductions = 0;
  for (const Chunk& cell : RefineDemand(problem, topology, counted, algorithm).list) {
    struct Sum {
      int received = 0, loaded = 0;  // hops
      bool sent = false;             // a hop copies it to another rank
    };
    std::map<Rank, Sum> sums;
    ForEachHop(problem, topology, counted, algorithm, cell, 0, [&](const ChunkHop& hop) {
      ++(hop.in_place ? sums[hop.to].loaded : sums[hop.to].received);
      sums[hop.from].sent |= !hop.in_place;
    });
    int64_t count = 0;
    for (const auto& [rank, sum] : sums) {
      count += sum.received;
      if (sum.loaded > 0) count += CeilDiv(sum.loaded + 1, kMostTerms - 1);
      if (converts && sum.sent && sum.received + sum.loaded == 0) ++count;
    }
    reductions += static_cast<double>(converts ? count : count * PiecesOf(cell, demand));
  }
  return reductions;
}

double CountCopies(const Problem& problem, const Topology& topology, const Demand& demand,
                   const Algorithm& algorithm) {
  if (!demand.travels) return 0;
  const bool in_place = IsReadInPlace(demand, algorithm);
  if (in_place && !algorithm.one_a_node) return 0;  // ranks can load all chunks
  if (!in_place || Hops(demand, 1, 1) > kMostCountedHops) return CountHops(demand);
  // All pieces of a grid cell have the same ranks, so each has the same number of copies.
  Demand whole = demand;
  whole.pieces = {};
  double copies = 0;
  for (const Chunk& cell : RefineDemand(problem, topology, whole, algorithm).list) {
    const int64_t pieces = PiecesOf(cell, demand);
    ForEachHop(problem, topology, whole, algorithm, cell, 0, [&](const ChunkHop& hop) {
      copies += hop.in_place ? 0 : static_cast<double>(pieces);
    });
  }
  return copies;
}

}  // namespace agmm
