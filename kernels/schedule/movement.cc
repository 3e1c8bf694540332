#include "kernels/schedule/movement.h"

#include <algorithm>
#include <tuple>

namespace agmm {

Chunks RefineDemand(const Problem& problem, const Topology& topology, const Demand& demand,
                    const Algorithm& algorithm) {
  return Refine(problem.mesh, topology, demand.has, demand.needs, demand.pieces.rows,
                demand.pieces.cols, algorithm.one_a_node);
}

Movement::Movement(const Problem& problem, const Topology& topology, const Demand& demand,
                   const Algorithm& algorithm)
    : operand_(demand.operand), producer_(demand.producer), consumer_(demand.consumer) {
  if (!demand.travels) return;
  chunks_ = RefineDemand(problem, topology, demand, algorithm);
  for (int c = 0; c < static_cast<int>(chunks_.list.size()); ++c) {
    const Chunk& chunk = chunks_.list[c];
    for (const Source& source : chunk.sources) {
      for (const Hop& hop :
           algorithm.route({source.rank, source.needers, chunk.piece, problem.mesh, topology})) {
        hops_.push_back({c, hop.from, hop.to, hop.step});
      }
    }
  }
  std::stable_sort(hops_.begin(), hops_.end(), [](const ChunkHop& a, const ChunkHop& b) {
    return std::tie(a.step, a.chunk) < std::tie(b.step, b.chunk);
  });
  arrivals_.reserve(hops_.size());
  for (int i = 0; i < static_cast<int>(hops_.size()); ++i)
    arrivals_.emplace(std::pair(hops_[i].to, hops_[i].chunk), i);
}

std::vector<int> Movement::ChunksOf(const Block& block) const {
  std::vector<int> found;
  if (block.empty()) return found;
  const auto first = [](const std::vector<Range>& cuts, int64_t begin) {
    const auto at = std::partition_point(cuts.begin(), cuts.end(),
                                         [&](const Range& cut) { return cut.end <= begin; });
    return static_cast<int>(at - cuts.begin());
  };
  const auto& [rows, cols] = std::tie(chunks_.rows, chunks_.cols);
  for (int i = first(rows, block.rows.begin);
       i < static_cast<int>(rows.size()) && rows[i].begin < block.rows.end; ++i) {
    for (int j = first(cols, block.cols.begin);
         j < static_cast<int>(cols.size()) && cols[j].begin < block.cols.end; ++j)
      found.push_back(chunks_.IndexOf(i, j));
  }
  return found;
}

}  // namespace agmm
