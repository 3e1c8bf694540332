#include "kernels/schedule/plan.h"

#include <algorithm>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/schedule/build.h"
#include "kernels/schedule/moves.h"

namespace agmm {
namespace {

// The distinct ends of `one` and `other` in ascending order, of each only if its flag is set.
std::vector<int64_t> EndsOf(bool cut_one, const std::vector<Range>& one, bool cut_other,
                            const std::vector<Range>& other) {
  std::vector<int64_t> ends;
  for (const auto& [cut, ranges] : {std::pair(cut_one, &one), std::pair(cut_other, &other)}) {
    if (!cut) continue;
    for (const Range& range : *ranges) ends.push_back(range.end);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

// The pieces of a range between these ends.
double PiecesOf(const Range& range, const std::vector<int64_t>& ends) {
  if (range.empty()) return 0;
  const auto first = std::upper_bound(ends.begin(), ends.end(), range.begin);
  return static_cast<double>(std::lower_bound(first, ends.end(), range.end) - first + 1);
}

// A floating-point number, because hostile options make more than 64 bits can count.
double StepsOf(const Problem& problem, const Topology& topology, const Recipe& recipe) {
  const Algorithm& algorithm = *recipe.algorithm;
  const Moves moves =
      CutMoves(problem, topology, recipe.split, algorithm, recipe.chunks, recipe.k_chunks);
  const Move* const all[] = {&moves.a, &moves.b, &moves.c};
  Grid grids[3];
  bool cut[3];
  double steps = 0;
  for (int i = 0; i < 3; ++i) {
    const Move& move = *all[i];
    cut[i] = move.travels && algorithm.arrivals != Arrivals::kContiguous;
    if (!move.travels) continue;
    grids[i] = GridOf(move.has, move.needs, move.pieces.rows, move.pieces.cols);
    // On one node no input is copied.
    if (algorithm.arrivals == Arrivals::kInPlace && !algorithm.one_a_node && i < 2) continue;
    for (const ChunkCount& count :
         CountChunks(move.has, move.needs, move.pieces.rows, move.pieces.cols))
      steps += static_cast<double>(count.received);
  }
  const auto ends = [&](int one, int other, Dim dim) {
    const auto cuts = [&](int i) -> const std::vector<Range>& {
      return Along(problem, all[i]->operand, grids[i], dim);
    };
    return EndsOf(cut[one], cuts(one), cut[other], cuts(other));
  };
  const std::vector<int64_t> m = ends(0, 2, Dim::kM), n = ends(1, 2, Dim::kN),
                             k = ends(0, 1, Dim::kK);
  for (size_t rank = 0; rank < moves.work.parts.size(); ++rank) {
    const LocalProduct& part = moves.work.parts[rank];
    if (moves.made.empty()) {
      steps += PiecesOf(part.m, m) * PiecesOf(part.n, n) * PiecesOf(part.k, k);
      continue;
    }
    for (const Block& c : moves.made[rank]) {
      steps += PiecesOf(Along(problem, c.operand, c, Dim::kM), m) *
               PiecesOf(Along(problem, c.operand, c, Dim::kN), n) * PiecesOf(part.k, k);
    }
  }
  return steps;
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
  if (options.transfers_only) absl::StrAppend(&text, ", transfers only");
  return text;
}

PlanOptions OptionsOf(const Problem& problem, const Recipe& recipe) {
  PlanOptions options;
  options.algorithm = recipe.algorithm->name;
  options.chunks = recipe.chunks;
  options.k_chunks = recipe.k_chunks;
  options.split = SplitText(problem, recipe.split);
  options.workspace_shards = recipe.workspace_shards;
  options.carried = recipe.carried;
  options.transfers_only = recipe.transfers_only;
  return options;
}

PlanOptions GatherAlone() {
  PlanOptions options;
  options.algorithm = "hierarchical_peer";
  options.transfers_only = true;
  return options;
}

std::vector<std::string> AlgorithmNames() {
  std::vector<std::string> names = {"auto"};
  for (const Algorithm& algorithm : Algorithms()) names.push_back(algorithm.name);
  return names;
}

int64_t LeastBetweenNodes(const Problem& problem, const Topology& topology, const Split& split) {
  const Algorithm& fewest = *FindAlgorithm("hierarchical");
  const Moves moves = CutMoves(problem, topology, split, fewest, 1, 1);
  int64_t bytes = 0;
  for (const Move* move : {&moves.a, &moves.b, &moves.c}) {
    if (!move->travels) continue;
    for (const Chunk& chunk : RefineMove(problem, topology, *move, fewest).list) {
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

PlanCost CostOf(const Problem& problem, const Topology& topology, const Recipe& recipe) {
  // Measured with plans of 400,000 to two million steps: 1,100 to 1,500 bytes (NOTES.md).
  constexpr double kStepBytes = 1600;
  const auto whole = [](double number) {
    return static_cast<int64_t>(std::min(number, 9e18));  // what an int64_t can hold
  };
  const double steps = StepsOf(problem, topology, recipe);
  return {whole(steps), whole(steps * kStepBytes)};
}

absl::StatusOr<Schedule> Plan(const Problem& problem, const Topology& topology,
                              const PlanOptions& options) {
  AGMM_RETURN_IF_ERROR(Validate(problem));
  AGMM_ASSIGN_OR_RETURN(const ResolvedOptions resolved, ResolveOptions(problem, topology, options));
  return PlanWith(problem, topology, resolved.recipe);
}

absl::StatusOr<Schedule> PlanWith(const Problem& problem, const Topology& topology,
                                  const Recipe& recipe) {
  AGMM_RETURN_IF_ERROR(CheckNoSum(problem, recipe.split));
  const Algorithm& algorithm = *recipe.algorithm;
  const Moves moves =
      CutMoves(problem, topology, recipe.split, algorithm, recipe.chunks, recipe.k_chunks);
  const auto flow = [&](const Move& move) {
    // An operand that does not travel is not cut.
    return Flow(problem, topology, move.operand,
                move.travels ? RefineMove(problem, topology, move, algorithm) : Chunks(),
                algorithm.route);
  };
  BuildOptions build;
  build.arrivals = algorithm.arrivals;
  build.carried = recipe.carried;
  const Move& gathered = moves.a.travels ? moves.a : moves.b;
  build.places = recipe.workspace_shards * gathered.pieces.rows * gathered.pieces.cols;
  const Flow a = flow(moves.a), b = flow(moves.b), c = flow(moves.c);
  Schedule schedule = Build(problem, topology, moves.work, a, b, c, build);
  if (schedule.workspace_bytes > kMaxWorkspaceBytes) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the plan takes a workspace of %s on every rank, and %s are the most; use smaller sizes, "
        "more ranks or a bounded workspace",
        FormatBytes(schedule.workspace_bytes), FormatBytes(kMaxWorkspaceBytes)));
  }
  const bool local = !a.travels() && !b.travels() && !c.travels();
  schedule.algorithm = local ? kLocal : algorithm.name;
  if (!local) schedule = Close(std::move(schedule));
  return recipe.transfers_only ? TransfersOf(std::move(schedule)) : schedule;
}

Schedule TransfersOf(Schedule schedule) {
  for (std::vector<Step>& steps : schedule.ranks) {
    for (Step& step : steps) {
      if (std::holds_alternative<Multiply>(step.op)) step.op = Join();
    }
  }
  return schedule;
}

}  // namespace agmm
