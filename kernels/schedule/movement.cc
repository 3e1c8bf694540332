#include "kernels/schedule/movement.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
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
  const std::vector<ChunkCount> counts = CountChunks(demand.has, demand.needs, rows, cols);
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    if (demand.everywhere) {
      double others = -1;
      for (size_t other = 0; other < counts.size(); ++other)
        others += demand.groups[other] == demand.groups[rank] && counts[other].read > 0;
      hops += static_cast<double>(counts[rank].read) * others;
    } else {
      hops += static_cast<double>(counts[rank].received);
    }
  }
  return hops;
}

// The ranks through which chunks may pass.
struct Rings {
  std::vector<std::vector<Rank>> members;  // each ascending; empty: none
  std::vector<int> of_rank;

  const std::vector<Rank>* Of(Rank rank) const {
    return members.empty() ? nullptr : &members[of_rank[rank]];
  }
  // An estimate of the hops of all chunks: two for each if they leave in bundles, else half of its
  // ring.
  int64_t MostHops(const std::vector<Chunk>& chunks, bool bundles) const {
    int64_t hops = 0;
    for (const Chunk& chunk : chunks) {
      for (const Source& source : chunk.sources)
        if (const std::vector<Rank>* const ring = Of(source.rank))
          hops += bundles ? 2 : static_cast<int64_t>(ring->size()) / 2;
    }
    return hops;
  }
};

// Returns the sets of ranks that exchange chunks, directly or by others. None if a source sends a
// chunk to several ranks, or if no rank exchanges chunks with several ranks.
Rings RingsOf(const std::vector<Chunk>& chunks, int ranks) {
  std::vector<Rank> leader(ranks);
  std::iota(leader.begin(), leader.end(), 0);
  const auto find = [&](Rank rank) {
    while (leader[rank] != rank) rank = leader[rank] = leader[leader[rank]];
    return rank;
  };
  for (const Chunk& chunk : chunks) {
    for (const Source& source : chunk.sources) {
      if (source.needers.size() > 1) return {};
      for (Rank needer : source.needers) leader[find(needer)] = find(source.rank);
    }
  }
  Rings rings;
  std::vector<int> number(ranks, -1);  // by leader
  for (Rank rank = 0; rank < ranks; ++rank) {
    int& ring = number[find(rank)];
    if (ring < 0) {
      ring = static_cast<int>(rings.members.size());
      rings.members.emplace_back();
    }
    rings.of_rank.push_back(ring);
    rings.members[ring].push_back(rank);
  }
  const bool exchange =
      absl::c_any_of(rings.members, [](const std::vector<Rank>& ring) { return ring.size() > 2; });
  return exchange ? rings : Rings();
}

// Returns false if ranks receive more elements than they have, so that some element has several
// needers. This is fast, and decides most cases.
bool MayBeExchange(const Demand& demand) {
  if (demand.consumer == Consumer::kSum) return false;
  const auto size = [](const Block& block) {
    return block.empty()
               ? 0.0
               : static_cast<double>(block.rows.size()) * static_cast<double>(block.cols.size());
  };
  double received = 0, held = 0;
  for (size_t rank = 0; rank < demand.has.size(); ++rank) {
    held += size(demand.has[rank]);
    for (const Block& needed : demand.needs[rank])
      received += size(needed) - size(Intersect(needed, demand.has[rank]));
  }
  return received <= held;
}

// Returns true if the chunks of `demand` may pass through ranks that do not need them.
bool MayPassOn(const Demand& demand, const Algorithm& algorithm) {
  // Bundles only go from shards to shards. A bundle of computed blocks would wait for the last one.
  return algorithm.passes_on && MayBeExchange(demand) &&
         (!algorithm.bundles ||
          (demand.producer == Producer::kShard && demand.consumer == Consumer::kShard));
}

// Calls use(hop) for each hop of the chunk with this number.
template <typename Use>
void ForEachHop(const Problem& problem, const Topology& topology, const Demand& demand,
                const Algorithm& algorithm, const Rings& rings, const Chunk& chunk, int number,
                const Use& use) {
  const bool in_place = IsReadInPlace(demand, algorithm);
  for (const Source& source : chunk.sources) {
    std::vector<Hop> hops = algorithm.route(
        {source.rank, source.needers, chunk.piece, problem.mesh, topology, rings.Of(source.rank)});
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
              !std::binary_search(between.begin(), between.end(), sums ? hop.from : hop.to),
          !rings.members.empty() && hop.to != source.needers.front()});
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
                demand.pieces.cols, algorithm.one_a_node, demand.groups, demand.everywhere);
}

Movement::Movement(const Problem& problem, const Topology& topology, const Demand& demand,
                   const Algorithm& algorithm)
    : operand_(demand.operand),
      producer_(demand.producer),
      consumer_(demand.consumer),
      terms_dtype_(demand.terms_dtype),
      everywhere_(demand.everywhere) {
  if (!demand.travels) return;
  chunks_ = RefineDemand(problem, topology, demand, algorithm);
  const auto route = [&](const Rings& rings) {
    hops_.clear();
    arrivals_.clear();
    for (int c = 0; c < static_cast<int>(chunks_.list.size()); ++c) {
      ForEachHop(problem, topology, demand, algorithm, rings, chunks_.list[c], c,
                 [&](const ChunkHop& hop) { hops_.push_back(hop); });
    }
    std::stable_sort(hops_.begin(), hops_.end(), [](const ChunkHop& a, const ChunkHop& b) {
      return std::tie(a.step, a.chunk) < std::tie(b.step, b.chunk);
    });
    if (consumer_ == Consumer::kSum) return;
    arrivals_.reserve(hops_.size());
    for (int i = 0; i < static_cast<int>(hops_.size()); ++i)
      arrivals_.emplace(std::pair(hops_[i].to, hops_[i].chunk), i);
  };
  Rings rings = MayPassOn(demand, algorithm) ? RingsOf(chunks_.list, problem.mesh.size()) : Rings();
  if (rings.MostHops(chunks_.list, algorithm.bundles) > kMostCountedHops) rings = {};
  route(rings);
  if (!rings.members.empty() && (PassesByHolder(demand) || (algorithm.bundles && !MakeBundles()))) {
    bundles_.clear();
    bundle_of_.clear();
    route({});
  }
  if (consumer_ != Consumer::kSum) return;
  summed_ = demand.has;
  for (int i = 0; i < static_cast<int>(hops_.size()); ++i) {
    terms_[{hops_[i].to, hops_[i].chunk}].push_back(i);
    const std::pair from(hops_[i].from, hops_[i].chunk);
    if (everywhere_) {
      spread_[from].push_back(i);
    } else {
      leaving_[from] = i;
    }
  }
}

// Returns true if a chunk passes through a rank that has it, or that gets it from another source.
bool Movement::PassesByHolder(const Demand& demand) const {
  absl::flat_hash_set<std::pair<Rank, int>> reached;
  return absl::c_any_of(hops_, [&](const ChunkHop& hop) {
    const Block& block = chunks_.list[hop.chunk].block;
    return Intersect(demand.has[hop.to], block) == block ||
           !reached.emplace(hop.to, hop.chunk).second;
  });
}

// Unites the chunks of hops from one rank to another. Returns false if chunks that pass through a
// rank would leave it alone, because they do not form one block.
bool Movement::MakeBundles() {
  std::map<std::pair<Rank, Rank>, Bundle> bundles;
  for (int i = 0; i < static_cast<int>(hops_.size()); ++i) {
    const ChunkHop& hop = hops_[i];
    if (hop.passes) continue;
    const Block& block = chunks_.list[hop.chunk].block;
    const auto [at, added] =
        bundles.try_emplace({hop.from, hop.to}, Bundle{hop.from, hop.to, block, {}});
    Bundle& bundle = at->second;
    bundle.hops.push_back(i);
    bundle.block.rows = {std::min(bundle.block.rows.begin, block.rows.begin),
                         std::max(bundle.block.rows.end, block.rows.end)};
    bundle.block.cols = {std::min(bundle.block.cols.begin, block.cols.begin),
                         std::max(bundle.block.cols.end, block.cols.end)};
  }
  for (auto& [ranks, bundle] : bundles) {
    int64_t elements = 0;
    bool passed = false;
    for (const int hop : bundle.hops) {
      const Block& block = chunks_.list[hops_[hop].chunk].block;
      elements += block.rows.size() * block.cols.size();
      passed |= ArrivalAt(bundle.from, hops_[hop].chunk) >= 0;
    }
    if (!passed) continue;
    if (bundle.hops.size() < 2 || elements != bundle.block.rows.size() * bundle.block.cols.size())
      return false;
    for (const int hop : bundle.hops) bundle_of_[hop] = static_cast<int>(bundles_.size());
    bundles_.push_back(std::move(bundle));
  }
  return true;
}

int64_t Movement::CountCopies() const {
  int64_t copies = 0;
  for (const ChunkHop& hop : hops_) copies += !hop.in_place;
  for (const Bundle& bundle : bundles_) {
    ++copies;
    // Chunks of the sender itself are copied into the bundle.
    for (const int hop : bundle.hops) copies -= ArrivalAt(bundle.from, hops_[hop].chunk) >= 0;
  }
  return copies;
}

bool IsExchange(const Problem& problem, const Topology& topology, const Demand& demand) {
  if (!demand.travels || !MayBeExchange(demand)) return false;
  Demand whole = demand;
  whole.pieces = {};
  const Chunks chunks = RefineDemand(problem, topology, whole, *FindAlgorithm("direct"));
  return !RingsOf(chunks.list, problem.mesh.size()).members.empty();
}

namespace {

const std::vector<int>& HopsAt(
    const absl::flat_hash_map<std::pair<Rank, int>, std::vector<int>>& hops, Rank rank, int chunk) {
  static const std::vector<int> kNone;
  const auto at = hops.find({rank, chunk});
  return at == hops.end() ? kNone : at->second;
}

}  // namespace

const std::vector<int>& Movement::TermsAt(Rank rank, int chunk) const {
  return HopsAt(terms_, rank, chunk);
}

const std::vector<int>& Movement::SpreadFrom(Rank rank, int chunk) const {
  return HopsAt(spread_, rank, chunk);
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
                         ? problem.tensors[SourceOf(problem, demand.operand)].dtype
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
    ForEachHop(problem, topology, counted, algorithm, {}, cell, 0, [&](const ChunkHop& hop) {
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
  if (MayPassOn(demand, algorithm) && CountHops(demand) <= kMostCountedHops) {
    return static_cast<double>(Movement(problem, topology, demand, algorithm).CountCopies());
  }
  const bool in_place = IsReadInPlace(demand, algorithm);
  if (in_place && !algorithm.one_a_node) return 0;  // ranks can load all chunks
  if (!in_place || Hops(demand, 1, 1) > kMostCountedHops) return CountHops(demand);
  // All pieces of a grid cell have the same ranks, so each has the same number of copies.
  Demand whole = demand;
  whole.pieces = {};
  double copies = 0;
  for (const Chunk& cell : RefineDemand(problem, topology, whole, algorithm).list) {
    const int64_t pieces = PiecesOf(cell, demand);
    ForEachHop(problem, topology, whole, algorithm, {}, cell, 0, [&](const ChunkHop& hop) {
      copies += hop.in_place ? 0 : static_cast<double>(pieces);
    });
  }
  return copies;
}

}  // namespace agmm
