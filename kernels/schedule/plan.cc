#include "kernels/schedule/plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status.h"
#include "kernels/schedule/gather.h"

namespace agmm {
namespace {

// A smaller chunk is mostly overhead: a message, a signal and a GEMM call.
constexpr int64_t kMinChunkBytes = 256 << 10;
// A multiply of fewer rows waits for B from memory, because each chunk reads B again.
constexpr int64_t kMinChunkRows = 128;
// More chunks leave less to multiply after the last arrival, but every chunk is a step on every
// rank of its group.
constexpr int64_t kMaxChosenChunks = 16, kMaxGroupChunks = 64;
// Bytes of B read from memory in the time of one byte of A over a link between nodes, and of one
// copied within a node.
constexpr int64_t kMemoryOverLink = 30, kMemoryOverCopy = 3;

// Fused forms overlap the first transfer with the multiply of the rank's own shard, whatever the
// chunk. Smaller chunks let a forwarded shard leave before all of it has arrived.
int ChooseChunks(const Problem& problem) {
  const int64_t shard_bytes = ShardBytes(problem.mesh, problem.tensors[kA]);
  const int64_t rows = ShardBlock(problem, kA, 0).rows.size();  // of the largest
  const int64_t group = static_cast<int64_t>(GatherGroups(problem)[0].size());
  return static_cast<int>(
      std::max<int64_t>(1, std::min({shard_bytes / kMinChunkBytes, rows / kMinChunkRows,
                                     kMaxGroupChunks / group, kMaxChosenChunks})));
}

bool NothingToGather(const Problem& problem) {
  const std::vector<int>& a_rows = problem.tensors[kA].sharding.rows;
  return a_rows == problem.tensors[kC].sharding.rows ||
         std::all_of(a_rows.begin(), a_rows.end(),
                     [&](int axis) { return problem.mesh.axes[axis].size == 1; });
}

// Two ranks on different nodes that gather from each other, if there are any.
std::optional<std::pair<Rank, Rank>> GathersBetweenNodes(const Problem& problem,
                                                         const Topology& topology) {
  for (const std::vector<Rank>& group : GatherGroups(problem)) {
    for (Rank rank : group) {
      if (!topology.SameNode(rank, group[0])) return std::pair(group[0], rank);
    }
  }
  return std::nullopt;
}

// Whether reading B once for each chunk, as fused forms do, costs more than the gather that they
// hide; serial reads B once. memory_over_gather: bytes of B read from memory while one of A is
// gathered.
bool TooFewRowsToFuse(const Problem& problem, int group, int chunks, int64_t memory_over_gather) {
  const int64_t rows = ShardBlock(problem, kA, 0).rows.size();
  const int64_t columns = ShardBlock(problem, kB, 0).cols.size();
  if (rows / chunks >= kMinChunkRows) return false;
  return columns * (int64_t{group} * chunks - 1) > memory_over_gather * rows * (group - 1);
}

// `chunks` as requested; 0: to be chosen.
std::string ChooseAlgorithm(const Problem& problem, const Topology& topology, int chunks) {
  if (NothingToGather(problem)) return "ring";
  const std::vector<std::vector<Rank>> groups = GatherGroups(problem);
  const int group_size = static_cast<int>(groups[0].size());
  if (!GathersBetweenNodes(problem, topology)) {
    return TooFewRowsToFuse(problem, group_size, std::max(chunks, 1), kMemoryOverCopy) ? "serial"
                                                                                       : "peer";
  }
  if (chunks == 0) chunks = ChooseChunks(problem);
  if (TooFewRowsToFuse(problem, group_size, chunks, kMemoryOverLink)) return "serial";
  for (const std::vector<Rank>& group : groups) {
    for (size_t i = 0; i < group.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        // A shard that has reached the node once is passed on within it.
        if (topology.SameNode(group[i], group[j])) return "ring";
      }
    }
  }
  return "direct";
}

// Refuses peer loads from other nodes.
absl::Status CheckWithinNodes(const Problem& problem, const Topology& topology) {
  if (NothingToGather(problem)) return absl::OkStatus();
  const auto apart = GathersBetweenNodes(problem, topology);
  if (!apart) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "algorithm peer multiplies out of the memory of one node, and ranks %d and %d, which gather "
      "together, are on nodes %d and %d; use ring or direct",
      apart->first, apart->second, topology.node_of_rank[apart->first],
      topology.node_of_rank[apart->second]));
}

// Checks that A is sharded along M and not along K, and B and C alike along N.
absl::Status CheckGatherAlongM(const Problem& problem) {
  const Sharding &a = problem.tensors[kA].sharding, &b = problem.tensors[kB].sharding,
                 &c = problem.tensors[kC].sharding;
  if (a.cols.empty() && b.rows.empty() && b.cols == c.cols && (c.rows.empty() || c.rows == a.rows))
    return absl::OkStatus();
  return absl::UnimplementedError(absl::StrFormat(
      "no planner for %s; this release gathers A along M (A[M_x, K] * B[K, N_x] -> C[M, N_x]) or "
      "multiplies shards that are already in place (A[M_x, K] * B[K, N] -> C[M_x, N])",
      ToString(problem)));
}

// A plan without transfers: every rank holds the rows of A that its C needs.
Schedule PlanLocal(const Problem& problem) {
  std::vector<GatherGroup> groups;
  GatherRoutes routes = SplitShards(problem, 1, &groups);
  for (const auto& [group, by_shard] : groups) {
    for (size_t i = 0; i < group.size(); ++i) {
      if (HasColumns(problem, group[i])) routes.multiplies[group[i]] = by_shard[i];
    }
  }
  return BuildGather(problem, "local", routes);
}

}  // namespace

const std::vector<std::string>& Algorithms() {
  static const auto* const all =
      new std::vector<std::string>{"auto", "serial", "ring", "direct", "peer"};
  return *all;
}

absl::StatusOr<PlanOptions> ResolveOptions(const Problem& problem, const Topology& topology,
                                           const PlanOptions& options) {
  if (!absl::c_linear_search(Algorithms(), options.algorithm)) {
    const std::vector<std::string>& all = Algorithms();
    return absl::InvalidArgumentError(
        absl::StrFormat("algorithm \"%s\" is not known; use %s or %s", options.algorithm,
                        absl::StrJoin(all.begin(), all.end() - 1, ", "), all.back()));
  }
  if (options.chunks < 0 || options.chunks > kMaxChunks) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d chunks a shard are outside [1, %d]; leave it out to have it chosen",
                        options.chunks, kMaxChunks));
  }
  PlanOptions resolved = options;
  if (resolved.algorithm == "auto")
    resolved.algorithm = ChooseAlgorithm(problem, topology, resolved.chunks);
  if (resolved.algorithm == "peer") AGMM_RETURN_IF_ERROR(CheckWithinNodes(problem, topology));
  if (resolved.algorithm == "serial") {
    resolved.chunks = 1;
  } else if (resolved.chunks == 0) {
    // Peer has no transfers to hide.
    resolved.chunks = resolved.algorithm == "peer" ? 1 : ChooseChunks(problem);
  }
  return resolved;
}

std::string ExplainChoice(const Problem& problem, const PlanOptions& asked,
                          const PlanOptions& resolved) {
  if (NothingToGather(problem)) return asked.algorithm == "auto" ? "nothing has to move" : "";
  std::string whole;
  if (resolved.algorithm == "serial" && asked.chunks > 1)
    whole = absl::StrFormat("serial takes shards whole, not in the %d chunks that were asked for",
                            asked.chunks);
  if (asked.algorithm != "auto") return whole;
  if (resolved.algorithm == "serial") {
    return absl::StrCat(
        "auto takes serial: so few rows cost more in pieces, because B is read once a piece, than "
        "their gather takes",
        whole.empty() ? "" : "; ", whole);
  }
  if (resolved.algorithm == "direct")
    return "auto takes direct: each rank that gathers is on a node of its own";
  if (resolved.algorithm == "peer")
    return "auto takes peer: all ranks that gather share a node and read each other's shards where "
           "they lie";
  return "auto takes ring: some ranks that gather share a node, others do not";
}

PlanCost CostOf(const Problem& problem, const PlanOptions& resolved) {
  // Measured with plans of 65,000 to two million steps: 1,230 to 1,370 bytes (NOTES.md).
  constexpr int64_t kStepBytes = 1400;
  // A hop is sent and multiplied; serial and peer send nothing, or multiply once.
  const bool once = resolved.algorithm == "serial" || resolved.algorithm == "peer";
  const int64_t steps = HopsOf(problem, resolved) * (once ? 1 : 2);
  return {steps, steps * kStepBytes};
}

int64_t HopsOf(const Problem& problem, const PlanOptions& options) {
  if (NothingToGather(problem)) return problem.mesh.size();
  int64_t chunks = options.chunks;  // of a group
  for (int axis : problem.tensors[kA].sharding.rows) chunks *= problem.mesh.axes[axis].size;
  return problem.mesh.size() * std::min(chunks, problem.m());
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
  if (resolved.algorithm == "peer") return Close(PlanPeer(problem, resolved.chunks));
  return Close(PlanRing(problem, resolved.chunks));
}

}  // namespace agmm
