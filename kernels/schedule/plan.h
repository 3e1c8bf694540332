// Planners: Problem + Topology + options -> Schedule. Pure, deterministic, integers only, so that
// every daemon plans the same schedule for itself.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/schedule/algorithm.h"
#include "kernels/schedule/schedule.h"
#include "kernels/schedule/split.h"

namespace agmm {

// Options for the computation of a problem. The defaults leave everything open that can be chosen.
struct PlanOptions {
  std::string algorithm = "auto";  // or the name of one of Algorithms()
  // Pieces of each shard along M or N that are sent and multiplied separately; along only one of
  // the two if C travels; 0: chosen.
  int chunks = 0;
  int k_chunks = 0;   // pieces along K; 0: chosen
  std::string split;  // axes that cut M, N and K, as "M=x,N=y" or "none"; empty: chosen
  // The number of gathered shards, or of shards of partial sums, for which a rank has room at a
  // time, at least 2; 0: all. A rank has room for more if the route forwards or adds them so late
  // that they would otherwise wait for one another.
  int workspace_shards = 0;
  bool carried = false;  // sends name the multiply whose tiles feed them
  // Leaves out the multiplies, to time a plan's transfers. C is not computed.
  bool transfers_only = false;
  // The dtype in which terms of a sum travel. A narrower one than f32 rounds a term, or a sum of
  // terms, each time that it leaves a rank.
  DType partials = DType::kF32;
  bool operator==(const PlanOptions&) const = default;
};

// All choices that determine a plan, as values: with one problem and one topology, equal recipes
// give equal schedules. ResolveOptions makes recipes; PlanOptions are their form in text.
struct Recipe {
  const Algorithm* algorithm = nullptr;  // never null; need not be one of Algorithms()
  Split split;
  int chunks = 1, k_chunks = 1;  // pieces along M or N, and along K
  int workspace_shards = 0;      // 0: room for all
  bool carried = false;
  bool transfers_only = false;
  DType partials = DType::kF32;  // f32 if no terms travel
  bool operator==(const Recipe&) const = default;
};

// "ring, chunks 4, along K 1, split N=x", plus any option that is not the default. Equal strings
// mean equal plans.
std::string ToString(const PlanOptions& options);

// The most chunks, k_chunks and workspace_shards.
inline constexpr int kMaxChunks = 256;

// The most steps of a plan that daemons make. Planning and proving this many takes one or two
// seconds. That time grows faster than the number of steps.
inline constexpr int64_t kMaxPlanSteps = 1 << 17;

// The number of steps of a plan without joins, and an estimate of the memory for planning and
// proving it. Beyond kMaxPlanSteps, both may be too high.
struct PlanCost {
  int64_t steps = 0, bytes = 0;
};
PlanCost CostOf(const Problem& problem, const Topology& topology, const Recipe& recipe);

// The values of PlanOptions::algorithm.
std::vector<std::string> AlgorithmNames();

// Returns the options of the plan whose time is T_ag, the gather alone: a route with the fewest
// bytes between nodes, and copies within a node only between ranks that cannot load each other's
// memory.
PlanOptions GatherAlone();

// Returns the bytes that must cross between nodes in an epoch of any plan of this split: each node
// gets the bytes that its ranks need and none of them has, once, and sends each sum once.
// `partials`: as in PlanOptions.
int64_t LeastBetweenNodes(const Problem& problem, const Topology& topology, const Split& split,
                          DType partials = DType::kF32);

// Checks that the topology has the ranks of the problem. Errors: INVALID_ARGUMENT.
absl::Status CheckTopology(const Problem& problem, const Topology& topology);

// Checks options that do not depend on a split. Errors: INVALID_ARGUMENT for an unknown algorithm,
// a count out of range, or an option that only a product has.
absl::Status CheckOptions(const Problem& problem, const PlanOptions& asked);

struct ResolvedOptions {
  Recipe recipe;
  std::string why;  // one sentence about options that are not kept; empty if all are
};
// Returns the recipe of a request. Open options get defaults, without regard to time: an algorithm
// with the fewest bytes between nodes, one piece, and DefaultSplit. Choose (kernels/predict) looks
// for the fastest instead. `problem` is valid. Errors: INVALID_ARGUMENT for an unknown algorithm, a
// split that names no axis of the mesh or does not fit an open sum, a count out of range, options
// that exclude each other, or too many blocks between ranks.
absl::StatusOr<ResolvedOptions> ResolveOptions(const Problem& problem, const Topology& topology,
                                               const PlanOptions& asked);

// Halves the pieces of the recipe repeatedly, along each of `which` in turn, until the plan has at
// most kMaxPlanSteps steps or one piece is left.
Recipe HalvePieces(const Problem& problem, const Topology& topology, Recipe recipe,
                   std::initializer_list<int Recipe::*> which);

// Returns options that resolve to `recipe`: its form in text, for requests and reports.
PlanOptions OptionsOf(const Problem& problem, const Recipe& recipe);

// Plans a valid problem by a recipe that ResolveOptions could have made for it. Errors: those of
// CheckTopology and CheckSplit, and RESOURCE_EXHAUSTED for a workspace that is too large.
absl::StatusOr<Schedule> PlanWith(const Problem& problem, const Topology& topology,
                                  const Recipe& recipe);
// Resolves the options and plans by their recipe. Errors: INVALID_ARGUMENT for an invalid problem,
// those of ResolveOptions and those of PlanWith.
absl::StatusOr<Schedule> Plan(const Problem& problem, const Topology& topology,
                              const PlanOptions& options);

// Returns the same schedule with a join in place of each multiply. Verify the schedule before,
// because without multiplies no step computes C.
Schedule TransfersOf(Schedule schedule);

// Returns the same schedule without waits that others imply and without signals that no step waits
// for, slots renumbered densely. Idempotent. Plan calls it at its end.
Schedule Close(Schedule schedule);

}  // namespace agmm
