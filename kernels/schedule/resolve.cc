// The choice of open options, by a few rules, because plans are not simulated yet.
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

// A smaller chunk is mostly overhead: a message, a signal and a GEMM call.
constexpr int64_t kMinChunkBytes = 256 << 10;
// A multiply of fewer rows is limited by reading the other operand from memory, because each chunk
// reads it again.
constexpr int64_t kMinChunkRows = 128;
// More chunks leave less to do after the last arrival, but every chunk is a step on every rank that
// gathers it. A collective multiplies nothing, so its steps are cheaper.
constexpr int64_t kMaxChosenChunks = 16, kMaxMovedChunks = 32, kMaxGroupChunks = 64;
// The bytes of the stationary operand that are read from memory while one byte of the other operand
// arrives: over a link between nodes, and within a node.
constexpr int64_t kMemoryOverLink = 30, kMemoryOverCopy = 3;

// Smaller blocks of an all-to-all cross between nodes together, because a message costs more than
// the copy that unites them.
constexpr int64_t kMinAloneBytes = 16 << 10;

// The operands that travel under a split. Lengths and bytes are those of LargestDemand.
struct Gathered {
  bool nothing = true;    // no operand travels
  bool inputs = false;    // an input travels, or its terms do
  bool gathers = false;   // ranks receive the largest input, not only its terms
  bool several = false;   // more than one input travels
  bool result = false;    // C travels
  bool shards = false;    // an input travels that is not a sum
  bool sums = false;      // ranks add up terms
  bool closes = false;    // terms of an input
  bool exchange = false;  // only an all-to-all of the result travels
  bool moved = false;     // the result is moved, not computed
  bool bundles = false;   // its small chunks can leave a node together
  bool along_k = false;   // its pieces are slices of K
  bool by_rows = false;   // its pieces are rows, not columns
  int64_t shard_bytes = 0;
  int64_t length = 0;        // length of a shard in the gathered dimension
  int64_t stationary = 0;    // columns of the other operand at a rank (rows, where B travels)
  std::string read_again;    // the name of the stationary operand
  int64_t group = 1;         // shards that a rank gathers, its own included
  bool shared_node = false;  // two ranks of the mesh are on one node
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
  gathered.shards = absl::c_any_of(demands.list, [&](const Demand& demand) {
    return demand.travels && demand.consumer == Consumer::kMultiplies &&
           demand.producer == Producer::kShard;
  });
  gathered.closes = absl::c_any_of(demands.list, [&](const Demand& demand) {
    return demand.consumer == Consumer::kSum && !problem.Writes(demand.operand);
  });
  gathered.moved = !HasProduct(problem);
  gathered.exchange =
      !gathered.inputs && !gathered.sums && IsExchange(problem, topology, demands.result());
  gathered.nothing = !gathered.inputs && !gathered.result;
  if (gathered.nothing) return gathered;
  const Demand& input = LargestDemand(problem, demands);
  gathered.gathers = input.consumer == Consumer::kMultiplies;
  const Dim outer = OuterDim(problem, input.operand);
  // Each piece along K reads and writes all of C. Pieces along K therefore pay off only for few
  // rows.
  gathered.along_k =
      input.along_k && absl::c_all_of(input.has, [&](const Block& shard) {
        return Along(problem, input.operand, shard, outer).size() < 2 * kMinChunkRows;
      });
  const Dim cut = gathered.along_k ? Dim::kK : outer;
  gathered.by_rows = IsRows(problem, input.operand, cut);
  gathered.shard_bytes = ShardBytes(problem.mesh, problem.tensors[input.operand]);
  for (const Demand& demand : demands.list) {
    if (demand.consumer == Consumer::kMultiplies && demand.operand != input.operand)
      gathered.read_again = problem.tensors[demand.operand].name;
  }
  for (Rank rank = 0; rank < problem.mesh.size(); ++rank) {
    const Block& shard = input.has[rank];
    const LocalProduct& part = demands.work.parts[rank];
    gathered.length = std::max(gathered.length, Along(problem, input.operand, shard, cut).size());
    gathered.stationary =
        std::max(gathered.stationary, part.Of(outer == Dim::kN ? Dim::kM : Dim::kN).size());
  }
  for (const ChunkCount& count : CountChunks(input.has, input.needs, 1, 1))
    gathered.group = std::max(gathered.group, count.read);
  if (gathered.exchange && gathered.moved && CountHops(input) <= kMostCountedHops &&
      gathered.shard_bytes < kMinAloneBytes * gathered.group) {
    const Algorithm& hierarchical = *FindAlgorithm("hierarchical");
    gathered.bundles = !Movement(problem, topology, input, hierarchical).bundles().empty();
  }
  const std::set<int> nodes(topology.node_of_rank.begin(), topology.node_of_rank.end());
  gathered.shared_node = static_cast<int>(nodes.size()) < topology.rank_count();
  // Ranks of one node and one island are never a pair.
  if (nodes.size() == 1 && topology.island_of_rank.empty()) return gathered;
  for (const Demand& demand : demands.list)
    if (demand.travels && !gathered.apart) FindPairs(topology, demand, gathered);
  return gathered;
}

// Fused algorithms overlap the first transfer with the multiply of the rank's own shard, for any
// chunk size. With smaller chunks, a rank forwards a shard before all of it has arrived. `asked`:
// the pieces of a shard along the other dimension, each of which is cut into chunks.
int ChooseChunks(const Gathered& gathered, int asked) {
  const int64_t rows = gathered.moved ? gathered.length : gathered.length / kMinChunkRows;
  const int64_t most = gathered.moved ? kMaxMovedChunks : kMaxChosenChunks;
  return static_cast<int>(
      std::max<int64_t>(1, std::min({gathered.shard_bytes / kMinChunkBytes / asked, rows,
                                     kMaxGroupChunks / gathered.group / asked, most / asked})));
}

// Returns true if fused algorithms lose more time than they save. They hide the gather of an input,
// but read the stationary operand again for each chunk; serial reads it once. `memory_over_gather`:
// bytes of it that are read while one byte of the other operand is gathered. Slices of K read
// different parts of it, each once.
bool TooFewRowsToFuse(const Gathered& gathered, int chunks, int64_t memory_over_gather) {
  if (!gathered.gathers || gathered.along_k || gathered.length / chunks >= kMinChunkRows)
    return false;
  return gathered.stationary * (gathered.group * chunks - 1) >
         memory_over_gather * gathered.length * (gathered.group - 1);
}

bool AsksForPieces(const PlanOptions& asked) { return std::max(asked.chunks, asked.k_chunks) > 1; }
bool NeedsPlaces(const PlanOptions& asked) { return asked.workspace_shards > 0 || asked.carried; }

// An algorithm, and the reason why `auto` chooses it.
struct Choice {
  const Algorithm* algorithm;
  std::string why;
};
Choice ChooseAlgorithm(const Gathered& gathered, const PlanOptions& asked) {
  const auto take = [](const char* name, std::string why) {
    return Choice{FindAlgorithm(name), std::move(why)};
  };
  if (gathered.nothing) return take("ring", "");
  const bool needs_places = NeedsPlaces(asked);
  const int chunks = !gathered.apart     ? std::max(asked.chunks, 1)
                     : asked.chunks == 0 ? ChooseChunks(gathered, std::max(asked.k_chunks, 1))
                                         : asked.chunks;
  // serial multiplies whole shards.
  if (!needs_places && !AsksForPieces(asked) &&
      TooFewRowsToFuse(gathered, chunks, gathered.apart ? kMemoryOverLink : kMemoryOverCopy)) {
    return take("serial",
                absl::StrFormat("with %d %s per shard, reading %s again for each piece costs more "
                                "than the gather",
                                gathered.length, gathered.by_rows ? "rows" : "columns",
                                gathered.read_again));
  }
  if (gathered.exchange && (gathered.apart || gathered.in_islands)) {
    if (gathered.apart && gathered.bundles) {
      return take(
          "hierarchical",
          "some ranks share a node, and a node's small chunks for one rank leave in one message");
    }
    return take("direct", "each block goes to one rank");
  }
  if (gathered.apart && asked.workspace_shards > 0 && gathered.sums && !gathered.inputs)
    return take("ring", "each rank adds to one sum at a time, so it needs the least workspace");
  if (gathered.apart) {
    if (gathered.shared_node) {
      return take("hierarchical",
                  "some ranks share a node, and each block crosses to a node only once");
    }
    return take("direct", "each rank is on a node of its own");
  }
  if (needs_places)
    return take("ring", "it has a place for each arrival, which the options ask for");
  if (gathered.in_islands) {
    return take("ring",
                "ranks that exchange blocks share a node, but not all of them can load each "
                "other's memory");
  }
  if (gathered.shards) {
    return take("peer",
                "ranks that exchange blocks share a node, and read each other's shards in place");
  }
  return take("peer", gathered.sums ? "ranks that exchange blocks share a node, and add up each "
                                      "other's partial sums in place"
                                    : "ranks that exchange blocks share a node");
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
  for (const auto& [asked, name] : {std::pair{options.k_chunks > 1, "pieces along K need"},
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
  if (options.split.empty()) return ChooseSplit(problem);
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

// Reduces chosen pieces, and finally replaces a chosen algorithm by serial, until the plan has at
// most kMaxPlanSteps. `along` is chunks or k_chunks. Adds the changes to `why`.
void FitSteps(const Problem& problem, const Topology& topology, const PlanOptions& asked,
              int Recipe::*along, Recipe& recipe, std::vector<std::string>& why) {
  const auto fits = [&](const Recipe& one) {
    return CostOf(problem, topology, one).steps <= kMaxPlanSteps;
  };
  Recipe fewer = recipe;
  const bool of_shard = along == &Recipe::chunks;
  if ((of_shard ? asked.chunks : asked.k_chunks) == 0)
    fewer = HalvePieces(problem, topology, recipe, {along});
  Recipe serial;
  serial.algorithm = FindAlgorithm("serial");
  serial.split = recipe.split;
  serial.partials = recipe.partials;
  serial.transfers_only = recipe.transfers_only;
  if (asked.algorithm == "auto" && !NeedsPlaces(asked) && !AsksForPieces(asked) && !fits(fewer) &&
      fits(serial)) {
    why = {
        absl::StrFormat("auto takes serial: %s would have more than the %d steps that daemons plan",
                        recipe.algorithm->name, kMaxPlanSteps)};
    recipe = serial;
  } else if (fewer != recipe) {
    why.push_back(absl::StrFormat("pieces %s: %d, not %d, because daemons plan at most %d steps",
                                  of_shard ? "of a shard" : "along K", fewer.*along, recipe.*along,
                                  kMaxPlanSteps));
    recipe = fewer;
  }
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

absl::StatusOr<ResolvedOptions> ResolveOptions(const Problem& problem, const Topology& topology,
                                               const PlanOptions& asked) {
  AGMM_RETURN_IF_ERROR(CheckTopology(problem, topology));
  if (asked.algorithm != "auto" && FindAlgorithm(asked.algorithm) == nullptr) {
    const std::vector<std::string> all = AlgorithmNames();
    return absl::InvalidArgumentError(absl::StrFormat(
        "algorithm \"%s\" is not known; use %s or %s", absl::CHexEscape(asked.algorithm),
        absl::StrJoin(all.begin(), all.end() - 1, ", "), all.back()));
  }
  AGMM_RETURN_IF_ERROR(CheckCounts(asked));
  if (!HasProduct(problem)) AGMM_RETURN_IF_ERROR(CheckForCollective(problem, asked));
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
  std::vector<std::string> why;
  Recipe recipe = {
      FindAlgorithm(asked.algorithm), split,        kept.chunks,         kept.k_chunks,
      kept.workspace_shards,          kept.carried, kept.transfers_only, kept.partials};
  if (asked.algorithm == "auto") {
    const Choice choice = ChooseAlgorithm(gathered, kept);
    recipe.algorithm = choice.algorithm;
    if (!gathered.nothing)
      why.push_back(absl::StrFormat("auto takes %s: %s", choice.algorithm->name, choice.why));
  }
  const Algorithm& algorithm = *recipe.algorithm;
  AGMM_RETURN_IF_ERROR(
      CheckAlgorithm(algorithm, topology, asked.algorithm == "auto" ? kept : asked, gathered));
  if (algorithm.arrivals == Arrivals::kContiguous) recipe.chunks = recipe.k_chunks = 1;
  int Recipe::*const along = gathered.along_k ? &Recipe::k_chunks : &Recipe::chunks;
  if (!gathered.inputs) recipe.k_chunks = 1;
  // Chunks hide transfers, and shards that are read in place have none to hide.
  if (recipe.*along == 0 && algorithm.arrivals == Arrivals::kPlaces && !gathered.nothing) {
    const int other = gathered.along_k ? recipe.chunks : recipe.k_chunks;
    recipe.*along = ChooseChunks(gathered, std::max(other, 1));
  }
  recipe.chunks = std::max(recipe.chunks, 1);
  recipe.k_chunks = std::max(recipe.k_chunks, 1);
  if (gathered.nothing) {
    if (asked.algorithm == "auto") why.push_back("nothing has to move");
  } else {
    FitSteps(problem, topology, kept, along, recipe, why);
    absl::c_move(NotKept(gathered, asked, recipe), std::back_inserter(why));
    if (recipe.algorithm->name == "serial" && gathered.result &&
        CutDemands(problem, topology, split, *FindAlgorithm("serial"), 1, 1).makes_twice) {
      why.push_back(
          "serial may gather more than other algorithms, because its one multiply also makes parts "
          "of C that other ranks make");
    }
  }
  return ResolvedOptions{std::move(recipe), absl::StrJoin(why, "; ")};
}

}  // namespace agmm
