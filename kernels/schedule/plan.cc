#include "kernels/schedule/plan.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/schedule/build.h"
#include "kernels/schedule/moves.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

// `resolved`: with a split and counts.
absl::StatusOr<Moves> MovesOf(const Algorithm& algorithm, const Problem& problem,
                              const Topology& topology, const PlanOptions& resolved) {
  AGMM_ASSIGN_OR_RETURN(const Split split, ParseSplit(problem, resolved.split));
  return MovesOf(problem, topology, split, resolved.chunks, resolved.k_chunks, algorithm.pieces);
}

// About how much all ranks do in an epoch.
struct Counts {
  int64_t read = 0, sent = 0, multiplied = 0;
};
Counts CountsOf(const Problem& problem, const Topology& topology, const PlanOptions& resolved) {
  Counts counts;
  const Algorithm* const algorithm = FindAlgorithm(resolved.algorithm);
  if (algorithm == nullptr) return counts;
  const absl::StatusOr<Moves> moves = MovesOf(*algorithm, problem, topology, resolved);
  if (!moves.ok()) return counts;
  std::vector<int64_t> multiplies(problem.mesh.size(), 1);
  for (const Move* move : {&moves->a, &moves->b, &moves->c}) {
    if (!move->travels) continue;
    const std::vector<ChunkCount> by_rank =
        CountChunks(move->has, move->needs, move->row_pieces, move->col_pieces);
    for (Rank rank = 0; rank < problem.mesh.size(); ++rank) {
      counts.read += by_rank[rank].read;
      counts.sent += by_rank[rank].received;
      if (algorithm->arrivals != Arrivals::kContiguous && move != &moves->c)
        multiplies[rank] *= std::max<int64_t>(1, by_rank[rank].read);
    }
  }
  if (algorithm->arrivals == Arrivals::kInPlace) counts.sent = 0;
  for (int64_t count : multiplies) counts.multiplied += count;
  return counts;
}

// The algorithm of a plan in which nothing travels, whatever was asked for.
constexpr char kLocal[] = "local";

}  // namespace

std::string ToString(const PlanOptions& options) {
  std::string text = absl::StrFormat("%s, chunks %d, along K %d", options.algorithm, options.chunks,
                                     options.k_chunks);
  if (!options.split.empty()) absl::StrAppend(&text, ", split ", options.split);
  if (options.workspace_shards > 0)
    absl::StrAppend(&text, ", workspace of ", options.workspace_shards, " shards");
  if (options.carried) absl::StrAppend(&text, ", carried");
  return text;
}

std::vector<std::string> AlgorithmNames() {
  std::vector<std::string> names = {"auto"};
  for (const Algorithm& algorithm : Algorithms()) names.push_back(algorithm.name);
  return names;
}

int64_t HopsOf(const Problem& problem, const Topology& topology, const PlanOptions& resolved) {
  return std::max<int64_t>(problem.mesh.size(), CountsOf(problem, topology, resolved).read);
}

absl::StatusOr<int64_t> LeastBetweenNodes(const Problem& problem, const Topology& topology,
                                          const PlanOptions& resolved) {
  AGMM_ASSIGN_OR_RETURN(const Split split, ParseSplit(problem, resolved.split));
  const Moves moves = MovesOf(problem, topology, split, 1, 1, 1);
  int64_t bytes = 0;
  for (const Move* move : {&moves.a, &moves.b, &moves.c}) {
    if (!move->travels) continue;
    for (const Chunk& chunk : RefineMove(problem, topology, *move).list) {
      // A rank whose node has the chunk takes it from there.
      std::set<int> nodes;
      for (const Source& source : chunk.sources) {
        for (Rank to : source.needers) {
          if (!topology.SameNode(source.rank, to)) nodes.insert(topology.node_of_rank[to]);
        }
      }
      bytes += static_cast<int64_t>(nodes.size()) * chunk.block.rows.size() *
               chunk.block.cols.size() * SizeOf(problem.tensors[move->operand].dtype);
    }
  }
  return bytes;
}

PlanCost CostOf(const Problem& problem, const Topology& topology, const PlanOptions& resolved) {
  // Measured with plans of 65,000 to two million steps: 1,230 to 1,370 bytes (NOTES.md).
  constexpr int64_t kStepBytes = 1400;
  const Counts counts = CountsOf(problem, topology, resolved);
  const int64_t steps = counts.sent + counts.multiplied;
  return {steps, steps * kStepBytes};
}

absl::StatusOr<Schedule> Plan(const Problem& problem, const Topology& topology,
                              const PlanOptions& options) {
  AGMM_RETURN_IF_ERROR(Validate(problem));
  AGMM_ASSIGN_OR_RETURN(const ResolvedOptions resolved, ResolveOptions(problem, topology, options));
  return PlanWith(*FindAlgorithm(resolved.options.algorithm), problem, topology, resolved.options);
}

absl::StatusOr<Schedule> PlanWith(const Algorithm& algorithm, const Problem& problem,
                                  const Topology& topology, const PlanOptions& resolved) {
  AGMM_ASSIGN_OR_RETURN(const Moves moves, MovesOf(algorithm, problem, topology, resolved));
  const auto flow = [&](const Move& move) {
    // An operand that does not travel is not cut.
    return Flow(problem, topology, move.operand,
                move.travels ? RefineMove(problem, topology, move) : Chunks(), algorithm.route);
  };
  BuildOptions build;
  build.arrivals = algorithm.arrivals;
  build.carried = resolved.carried;
  const Move& gathered = moves.a.travels ? moves.a : moves.b;
  build.places = resolved.workspace_shards * gathered.row_pieces * gathered.col_pieces;
  const Flow a = flow(moves.a), b = flow(moves.b), c = flow(moves.c);
  Schedule schedule = Build(problem, topology, moves.work, a, b, c, build);
  const bool local = !a.travels() && !b.travels() && !c.travels();
  schedule.algorithm = local ? kLocal : algorithm.name;
  return local ? schedule : Close(schedule);
}

}  // namespace agmm
