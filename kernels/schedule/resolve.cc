// Checks the options of a request, and gives open ones their defaults. kernels/predict chooses by
// prediction.
#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/schedule/build.h"
#include "kernels/schedule/cut_demands.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

// The operands that travel under a split.
struct Gathered {
  bool nothing = true;   // no operand travels
  bool inputs = false;   // an input travels, or its terms do
  bool several = false;  // more than one input travels
  bool result = false;   // the result travels
  bool sums = false;     // ranks add up terms
  bool closes = false;   // terms of an input
  // Two ranks that exchange chunks and are on different nodes.
  std::optional<std::pair<Rank, Rank>> apart;
  // Two ranks of one node, neither of which can load the other's memory. Not set if `apart` is set.
  std::optional<std::pair<Rank, Rank>> in_islands;
};

// Looks for the pairs among the ranks that exchange chunks of one operand.
void FindPairs(const Topology& topology, const Demand& demand, Gathered& gathered) {
  const Grid grid = GridOf(demand.has, demand.needs, 1, 1);
  const auto for_each_cell = [&](const Block& block, auto use) {
    if (block.empty()) return true;
    const Range rows = Grid::Within(grid.rows, block.rows),
                cols = Grid::Within(grid.cols, block.cols);
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      for (int64_t j = cols.begin; j < cols.end; ++j) {
        if (!use(static_cast<size_t>(i) * grid.cols.size() + j)) return false;
      }
    }
    return true;
  };
  std::vector<std::vector<std::pair<int, Rank>>> holders(grid.size());  // (node, rank)
  const Rank ranks = static_cast<Rank>(demand.has.size());
  for (Rank rank = 0; rank < ranks; ++rank) {
    for_each_cell(demand.has[rank], [&](size_t cell) {
      holders[cell].emplace_back(topology.node_of_rank[rank], rank);
      return true;
    });
  }
  for (auto& cell : holders) std::sort(cell.begin(), cell.end());
  for (Rank rank = 0; rank < ranks; ++rank) {
    const int node = topology.node_of_rank[rank];
    const auto look = [&](size_t cell) {
      std::vector<std::pair<int, Rank>> of_group;
      if (!demand.groups.empty()) {
        absl::c_copy_if(holders[cell], std::back_inserter(of_group),
                        [&](const std::pair<int, Rank>& holder) {
                          return demand.groups[holder.second] == demand.groups[rank];
                        });
      }
      const auto& all = demand.groups.empty() ? holders[cell] : of_group;
      if (all.empty() || std::binary_search(all.begin(), all.end(), std::pair(node, rank)))
        return true;
      const auto at = std::lower_bound(all.begin(), all.end(), std::pair(node, Rank{0}));
      if (at != all.end() && at->first == node) {
        const auto loads = [&](const std::pair<int, Rank>& holder) {
          return topology.CanLoad(holder.second, rank);
        };
        if (!gathered.in_islands && std::none_of(at, all.end(), loads))
          gathered.in_islands = std::minmax(at->second, rank);
      } else {
        gathered.apart = std::minmax(all.front().second, rank);
      }
      return !gathered.apart;
    };
    for (const Block& block : demand.needs[rank])
      if (!for_each_cell(block, look)) return;
  }
}

Gathered GatheredUnder(const Problem& problem, const Topology& topology, const Demands& demands) {
  Gathered gathered;
  std::set<Operand> inputs;
  for (const Demand& demand : demands.list)
    if (demand.travels && !problem.Writes(demand.operand)) inputs.insert(demand.operand);
  gathered.inputs = !inputs.empty();
  gathered.several = inputs.size() > 1;
  gathered.result = demands.result_travels();
  gathered.sums = absl::c_any_of(demands.list, [](const Demand& demand) {
    return demand.travels && demand.consumer == Consumer::kSum;
  });
  gathered.closes = absl::c_any_of(demands.list, [&](const Demand& demand) {
    return demand.consumer == Consumer::kSum && !problem.Writes(demand.operand);
  });
  gathered.nothing = !gathered.inputs && !gathered.result;
  const std::set<int> nodes(topology.node_of_rank.begin(), topology.node_of_rank.end());
  // Ranks of one node and one island are never a pair.
  if (gathered.nothing || (nodes.size() == 1 && topology.island_of_rank.empty())) return gathered;
  for (const Demand& demand : demands.list)
    if (demand.travels && !gathered.apart) FindPairs(topology, demand, gathered);
  return gathered;
}

bool AsksForPieces(const PlanOptions& asked) { return std::max(asked.chunks, asked.k_chunks) > 1; }

// The algorithm for a request that leaves it open: the one with the fewest bytes between nodes,
// which copies nothing within an island.
const Algorithm* DefaultAlgorithm(const PlanOptions& asked) {
  const bool needs_places = asked.workspace_shards > 0 || asked.carried;
  return FindAlgorithm(needs_places ? "hierarchical" : "hierarchical_peer");
}

absl::Status CheckCounts(const PlanOptions& options) {
  for (const auto& [count, name] :
       {std::pair{options.chunks, "chunks a shard"}, {options.k_chunks, "chunks along K"}}) {
    if (count >= 0 && count <= kMaxChunks) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d %s are outside [1, %d]; leave it out to have it chosen", count, name, kMaxChunks));
  }
  if (options.workspace_shards == 1 || options.workspace_shards < 0 ||
      options.workspace_shards > kMaxChunks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a workspace of %d shards is outside [2, %d], because one arrives while another is "
        "multiplied; leave it out to keep all",
        options.workspace_shards, kMaxChunks));
  }
  return absl::OkStatus();
}

// Refuses options for multiplies in a collective.
absl::Status CheckForCollective(const Problem& problem, const PlanOptions& options) {
  const bool split = !options.split.empty() && options.split != "none";
  for (const auto& [asked, name] : {std::pair{split, "a split needs"},
                                    {options.k_chunks > 1, "pieces along K need"},
                                    {options.carried, "carried sends need"},
                                    {options.transfers_only, "a plan of transfers only needs"}}) {
    if (!asked) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s a product, and %s has none; leave the option out", name, SpecText(problem)));
  }
  return absl::OkStatus();
}

// Refuses options that exclude the algorithm or each other.
absl::Status CheckAlgorithm(const Algorithm& algorithm, const Topology& topology,
                            const PlanOptions& options, const Gathered& gathered) {
  if (const auto& apart = gathered.apart; algorithm.name == "peer" && apart) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "algorithm peer reads from the memory of one node, and ranks %d and %d, which exchange "
        "blocks, are on nodes %d and %d; use ring or direct",
        apart->first, apart->second, topology.node_of_rank[apart->first],
        topology.node_of_rank[apart->second]));
  }
  if (const auto& pair = gathered.in_islands; algorithm.name == "peer" && pair) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "algorithm peer reads from memory that every rank can load, and ranks %d and %d, which "
        "exchange blocks, are in islands %d and %d of node %d; use ring or direct",
        pair->first, pair->second, topology.island_of_rank[pair->first],
        topology.island_of_rank[pair->second], topology.node_of_rank[pair->first]));
  }
  if (options.carried && options.workspace_shards > 0) {
    return absl::InvalidArgumentError(
        "carried sends hold up the multiply that feeds them until the receiver has a place, and "
        "with a bounded workspace all ranks may wait for one another; ask for one of the two");
  }
  if (options.carried && options.transfers_only) {
    return absl::InvalidArgumentError(
        "multiplies feed carried sends, and a plan of transfers only has none; ask for one of the "
        "two");
  }
  if (algorithm.arrivals == Arrivals::kPlaces) return absl::OkStatus();
  for (const auto& [asked, name] : {std::pair{options.workspace_shards > 0, "a bounded workspace"},
                                    {options.carried, "carried sends"}}) {
    if (!asked) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "algorithm %s has no place for each arrival, which %s needs; use ring or direct",
        algorithm.name, name));
  }
  return absl::OkStatus();
}

absl::StatusOr<Split> SplitFor(const Problem& problem, const PlanOptions& options) {
  if (options.split.empty()) return DefaultSplit(problem);
  AGMM_ASSIGN_OR_RETURN(const Split split, ParseSplit(problem, options.split));
  if (HasProduct(problem)) AGMM_RETURN_IF_ERROR(CheckSplit(problem, split));
  AGMM_RETURN_IF_ERROR(CheckDemands(problem, split, DemandsOf(problem, split)));
  return split;
}

// Returns the requested options without the ones that this problem cannot keep.
PlanOptions KeptOf(const Gathered& gathered, PlanOptions options) {
  // With two moving operands, or none, chunks are not used in the order of their arrival.
  if (gathered.inputs ? gathered.several || gathered.result || gathered.closes : !gathered.sums)
    options.workspace_shards = 0;
  // A multiply that waits for a sum of another rank must not hold up a send.
  if (gathered.closes) options.carried = false;
  if (!gathered.sums) options.partials = DType::kF32;
  return options;
}

// Returns the reasons why some requested options are not kept.
std::vector<std::string> NotKept(const Gathered& gathered, const PlanOptions& asked,
                                 const Recipe& recipe) {
  std::vector<std::string> reasons;
  if (recipe.algorithm->name == "serial" && AsksForPieces(asked)) {
    reasons.push_back(
        absl::StrFormat("serial takes shards whole, not in the %d chunks that were asked for",
                        std::max(asked.chunks, asked.k_chunks)));
  } else if (asked.k_chunks > 1 && !gathered.inputs) {
    reasons.push_back(
        absl::StrFormat("K is not cut into the %d pieces that were asked for, because no input "
                        "travels",
                        asked.k_chunks));
  }
  if (asked.carried && !recipe.carried)
    reasons.push_back("sends are not carried, because the sum of an input is closed first");
  if (asked.partials != recipe.partials)
    reasons.push_back("partials are f32, because no terms of a sum travel");
  if (asked.workspace_shards > 0 && recipe.workspace_shards == 0) {
    reasons.push_back(
        gathered.closes   ? "the workspace holds all arrivals, because the sum of an input is "
                            "closed first"
        : gathered.inputs ? "the workspace holds all arrivals, because with more than one moving "
                            "operand they are not used in order"
                          : "the workspace is not bounded, because chunks arrive directly in the "
                            "result's shards");
  }
  return reasons;
}

}  // namespace

absl::Status CheckTopology(const Problem& problem, const Topology& topology) {
  if (topology.rank_count() != problem.mesh.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the topology has %s and mesh %s has %d", Counted(topology.rank_count(), "rank"),
        problem.mesh.ToString(), problem.mesh.size()));
  }
  return CheckIslands(topology);
}

Recipe HalvePieces(const Problem& problem, const Topology& topology, Recipe recipe,
                   std::initializer_list<int Recipe::*> which) {
  if (absl::c_all_of(which, [&](int Recipe::*pieces) { return recipe.*pieces <= 1; }))
    return recipe;
  const Algorithm& algorithm = *recipe.algorithm;
  Demands demands = CutDemands(problem, topology, recipe.split, algorithm, recipe.chunks,
                               recipe.k_chunks, recipe.partials, recipe.workspace_shards > 0);
  for (int Recipe::*pieces : which) {
    while (recipe.*pieces > 1 &&
           CountSteps(problem, topology, demands, algorithm) > kMaxPlanSteps) {
      recipe.*pieces /= 2;
      SetPieces(problem, algorithm, recipe.chunks, recipe.k_chunks, demands);
    }
  }
  return recipe;
}

absl::Status CheckOptions(const Problem& problem, const PlanOptions& asked) {
  if (asked.algorithm != "auto" && FindAlgorithm(asked.algorithm) == nullptr) {
    const std::vector<std::string> all = AlgorithmNames();
    return absl::InvalidArgumentError(absl::StrFormat(
        "algorithm \"%s\" is not known; use %s or %s", absl::CHexEscape(asked.algorithm),
        absl::StrJoin(all.begin(), all.end() - 1, ", "), all.back()));
  }
  AGMM_RETURN_IF_ERROR(CheckCounts(asked));
  return HasProduct(problem) ? absl::OkStatus() : CheckForCollective(problem, asked);
}

absl::StatusOr<ResolvedOptions> ResolveOptions(const Problem& problem, const Topology& topology,
                                               const PlanOptions& asked) {
  AGMM_RETURN_IF_ERROR(CheckTopology(problem, topology));
  AGMM_RETURN_IF_ERROR(CheckOptions(problem, asked));
  AGMM_ASSIGN_OR_RETURN(const Split split, SplitFor(problem, asked));
  const std::string split_text = SplitText(problem, split);
  if (const auto read = ParseSplit(problem, split_text); !read.ok() || *read != split) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "split %s of mesh %s is ambiguous, because the axis names in it can be divided in another "
        "way; rename an axis",
        split_text, problem.mesh.ToString()));
  }
  const Gathered gathered = GatheredUnder(problem, topology, DemandsOf(problem, split));
  const PlanOptions kept = KeptOf(gathered, asked);
  const bool open = asked.algorithm == "auto";
  const Algorithm& algorithm = open ? *DefaultAlgorithm(kept) : *FindAlgorithm(asked.algorithm);
  AGMM_RETURN_IF_ERROR(CheckAlgorithm(algorithm, topology, open ? kept : asked, gathered));
  Recipe recipe = {&algorithm,
                   split,
                   std::max(kept.chunks, 1),
                   std::max(kept.k_chunks, 1),
                   kept.workspace_shards,
                   kept.carried,
                   kept.transfers_only,
                   kept.partials};
  if (algorithm.arrivals == Arrivals::kContiguous) recipe.chunks = recipe.k_chunks = 1;
  if (!gathered.inputs) recipe.k_chunks = 1;
  std::vector<std::string> why;
  if (!gathered.nothing) {
    why = NotKept(gathered, asked, recipe);
    if (algorithm.arrivals == Arrivals::kContiguous && gathered.result &&
        CutDemands(problem, topology, split, algorithm, 1, 1).makes_twice) {
      why.push_back(
          "serial may gather more than other algorithms, because its one multiply also makes parts "
          "of C that other ranks make");
    }
  }
  return ResolvedOptions{std::move(recipe), absl::StrJoin(why, "; ")};
}

}  // namespace agmm
