#include "kernels/schedule/plan.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status.h"
#include "kernels/schedule/gather.h"

namespace agmm {
namespace {

// A chunk below this is all overhead: a message, a signal and a GEMM call for too little work.
constexpr int64_t kMinChunkBytes = 256 << 10;
// A multiply of fewer rows waits for B from memory, which each chunk reads anew.
constexpr int64_t kMinChunkRows = 128;
// The last chunk to arrive is multiplied when nothing is left to hide it behind; but every chunk is a step on every
// rank of its group.
constexpr int64_t kMaxChosenChunks = 16, kMaxGroupChunks = 64;
// Bytes of B that come from memory in the time of a byte of A over a link between nodes.
constexpr int64_t kMemoryOverLink = 30;

bool Known(const std::string& algorithm) {
  return std::find(Algorithms().begin(), Algorithms().end(), algorithm) != Algorithms().end();
}

// Fused forms overlap the first transfer with the own shard's multiply whatever the chunk; smaller chunks
// let a forwarded shard leave before all of it has come.
int ChooseChunks(const Problem& problem) {
  const int64_t shard_bytes = ShardBytes(problem.mesh, problem.tensors[kA]);
  const int64_t rows = ShardBlock(problem, kA, 0).rows.size();  // of the largest
  const int64_t group = static_cast<int64_t>(GatherGroups(problem)[0].size());
  return static_cast<int>(std::max<int64_t>(
      1, std::min({shard_bytes / kMinChunkBytes, rows / kMinChunkRows, kMaxGroupChunks / group, kMaxChosenChunks})));
}

bool NothingToGather(const Problem& problem) {
  const std::vector<int>& a_rows = problem.tensors[kA].sharding.rows;
  return a_rows == problem.tensors[kC].sharding.rows ||
         std::all_of(a_rows.begin(), a_rows.end(),
                     [&](int axis) { return problem.mesh.axes[axis].size == 1; });
}

// Fused forms read B once a chunk, serial once in all. With few rows that costs more than the gather that it hides.
bool TooFewRowsToFuse(const Problem& problem, int group, int chunks) {
  const int64_t rows = ShardBlock(problem, kA, 0).rows.size();
  const int64_t columns = ShardBlock(problem, kB, 0).cols.size();
  if (rows / chunks >= kMinChunkRows) return false;
  return columns * (int64_t{group} * chunks - 1) > kMemoryOverLink * rows * (group - 1);
}

std::string ChooseAlgorithm(const Problem& problem, const Topology& topology, int chunks) {
  if (NothingToGather(problem)) return "ring";
  const std::vector<std::vector<Rank>> groups = GatherGroups(problem);
  if (TooFewRowsToFuse(problem, static_cast<int>(groups[0].size()), chunks)) return "serial";
  for (const std::vector<Rank>& group : groups) {
    for (size_t i = 0; i < group.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        // What comes to the node once can be passed on there.
        if (topology.SameNode(group[i], group[j])) return "ring";
      }
    }
  }
  return "direct";
}

// A sharded along M and not along K, C whole along M, B and C sharded alike along N.
absl::Status CheckGatherAlongM(const Problem& problem) {
  const Sharding &a = problem.tensors[kA].sharding, &b = problem.tensors[kB].sharding,
                 &c = problem.tensors[kC].sharding;
  if (a.cols.empty() && b.rows.empty() && b.cols == c.cols && (c.rows.empty() || c.rows == a.rows))
    return absl::OkStatus();
  return absl::UnimplementedError(absl::StrFormat(
      "no planner for %s; this release gathers A along M (A[M_x, K] * B[K, N_x] -> C[M, N_x]) or "
      "multiplies what is already in place (A[M_x, K] * B[K, N] -> C[M_x, N])",
      ToString(problem)));
}

// Nothing moves: every rank holds the rows of A that its C needs.
Schedule PlanLocal(const Problem& problem) {
  GatherRoutes routes;
  routes.sends.resize(problem.mesh.size());
  routes.multiplies.resize(problem.mesh.size());
  for (Rank rank = 0; rank < problem.mesh.size(); ++rank) {
    const Block shard = ShardBlock(problem, kA, rank);
    if (shard.empty() || !HasColumns(problem, rank)) continue;
    routes.multiplies[rank].push_back(static_cast<int>(routes.chunks.size()));
    routes.chunks.push_back({rank, shard.rows});
  }
  return BuildGather(problem, "local", routes);
}

}  // namespace

const std::vector<std::string>& Algorithms() {
  static const auto* const all = new std::vector<std::string>{"auto", "serial", "ring", "direct"};
  return *all;
}

absl::StatusOr<PlanOptions> ResolveOptions(const Problem& problem, const Topology& topology,
                                           const PlanOptions& options) {
  if (!Known(options.algorithm)) {
    const std::vector<std::string>& all = Algorithms();
    return absl::InvalidArgumentError(
        absl::StrFormat("algorithm \"%s\" is not known; use %s or %s", options.algorithm,
                        absl::StrJoin(all.begin(), all.end() - 1, ", "), all.back()));
  }
  if (options.chunks < 0 || options.chunks > kMaxChunks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d chunks a shard are outside [1, %d]; leave it out to have it chosen", options.chunks,
        kMaxChunks));
  }
  PlanOptions resolved = options;
  if (resolved.algorithm == "auto") {
    const int chunks = resolved.chunks > 0 ? resolved.chunks : ChooseChunks(problem);
    resolved.algorithm = ChooseAlgorithm(problem, topology, chunks);
  }
  if (resolved.algorithm == "serial") {
    resolved.chunks = 1;
  } else if (resolved.chunks == 0) {
    resolved.chunks = ChooseChunks(problem);
  }
  return resolved;
}

std::string ExplainChoice(const PlanOptions& asked, const PlanOptions& resolved) {
  if (asked.algorithm != "auto") return "";
  if (resolved.algorithm == "serial")
    return "auto takes serial: so few rows cost more in pieces, for B is read once a piece, than their gather takes";
  if (resolved.algorithm == "direct")
    return "auto takes direct: each rank that gathers is on a node of its own";
  return "auto takes ring: ranks of one node gather together";
}

absl::StatusOr<Schedule> Plan(const Problem& problem, const Topology& topology,
                              const PlanOptions& options) {
  AGMM_RETURN_IF_ERROR(Validate(problem));
  if (topology.rank_count() != problem.mesh.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the topology has %d ranks and mesh %s has %d", topology.rank_count(),
                        problem.mesh.ToString(), problem.mesh.size()));
  }
  AGMM_ASSIGN_OR_RETURN(const PlanOptions resolved, ResolveOptions(problem, topology, options));
  AGMM_RETURN_IF_ERROR(CheckGatherAlongM(problem));
  if (NothingToGather(problem)) return PlanLocal(problem);
  if (resolved.algorithm == "serial") return Close(PlanSerial(problem));
  if (resolved.algorithm == "direct") return Close(PlanDirect(problem, resolved.chunks));
  return Close(PlanRing(problem, resolved.chunks));
}

}  // namespace agmm
