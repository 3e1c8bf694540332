// Planners: Problem + Topology + options -> Schedule. Pure, deterministic, integers only, so that
// every daemon plans the same schedule for itself.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/schedule/recipe.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// Options for the computation of a product. The defaults leave everything open that can be chosen.
struct PlanOptions {
  std::string algorithm = "auto";  // or the name of one of Algorithms()
  // Pieces along M or N of each shard that travel and multiply on their own, along one of the two
  // where C travels; 0: chosen.
  int chunks = 0;
  int k_chunks = 0;   // pieces along K; 0: chosen
  std::string split;  // which axes cut M, N and K, as "M=x,N=y" or "none"; empty: chosen
  // The gathered shards for which a rank has room at a time, from 2; 0: all. More, where a route
  // passes shards on so late that they would wait for one another.
  int workspace_shards = 0;
  bool carried = false;  // sends name the multiply whose tiles feed them
  // Without the multiplies, to time what a plan moves. C is not made.
  bool transfers_only = false;
  bool operator==(const PlanOptions&) const = default;
};

// "ring, chunks 4, along K 1, split N=x", plus any option that is not the default. Equal strings
// mean equal plans.
std::string ToString(const PlanOptions& options);

// The most chunks, k_chunks and workspace_shards.
inline constexpr int kMaxChunks = 256;

// The most steps of a plan that daemons make. Planning and proving this many takes one or two
// seconds; both grow faster than the number.
inline constexpr int64_t kMaxPlanSteps = 1 << 17;

// About how many steps a plan has, without joins and copies of a rank's own blocks, or somewhat
// more; and the memory that it takes to plan and to prove it. The time goes by the steps, too.
struct PlanCost {
  int64_t steps = 0, bytes = 0;
};
PlanCost CostOf(const Problem& problem, const Topology& topology, const Recipe& recipe);

// The values of PlanOptions::algorithm.
std::vector<std::string> AlgorithmNames();

// The plan whose time is T_ag, the gather alone: a route with the fewest bytes between nodes, and
// copies within a node only between ranks that cannot load each other's memory.
PlanOptions GatherAlone();

// The bytes that have to cross between nodes in an epoch of any plan of this split: each node gets
// what its ranks need and none of them has, once.
int64_t LeastBetweenNodes(const Problem& problem, const Topology& topology, const Split& split);

struct ResolvedOptions {
  Recipe recipe;
  std::string why;  // one sentence on what was chosen; empty where all that was asked for was kept
};
// Chooses the options that were left open, so that the plan has at most kMaxPlanSteps steps where a
// choice can bring that about. `problem` is valid.
// Errors: INVALID_ARGUMENT for an unknown algorithm, a split that names no axis of the mesh, a
// count out of range, options that exclude each other, or more blocks between ranks than can be
// looked at; UNIMPLEMENTED for a split that needs a sum.
absl::StatusOr<ResolvedOptions> ResolveOptions(const Problem& problem, const Topology& topology,
                                               const PlanOptions& asked);

// Returns the recipe with half its pieces again and again, along each of `which` in turn, until the
// plan has at most kMaxPlanSteps steps or one piece is left.
Recipe HalvePieces(const Problem& problem, const Topology& topology, Recipe recipe,
                   std::initializer_list<int Recipe::*> which);

// Options that resolve to `recipe`: its form in text, for requests and reports.
PlanOptions OptionsOf(const Problem& problem, const Recipe& recipe);

// Plans a valid problem by a recipe that ResolveOptions could have made for it. Errors:
// UNIMPLEMENTED for a split that needs a sum, and RESOURCE_EXHAUSTED for a workspace that is too
// large.
absl::StatusOr<Schedule> PlanWith(const Problem& problem, const Topology& topology,
                                  const Recipe& recipe);
// Resolves the options and plans by their recipe. Errors: INVALID_ARGUMENT for an invalid problem,
// those of ResolveOptions and those of PlanWith.
absl::StatusOr<Schedule> Plan(const Problem& problem, const Topology& topology,
                              const PlanOptions& options);

// Returns the same schedule with a join in place of each multiply. Verify proves its transfers and
// signals with the multiplies.
Schedule TransfersOf(Schedule schedule);

// Returns the same schedule without waits that others imply and without signals that no step waits
// for, slots renumbered densely. Idempotent. Plan calls it at its end.
Schedule Close(Schedule schedule);

}  // namespace agmm
