#include "daemon/measure/probe.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "daemon/sequencer/placement.h"
#include "kernels/base/dtype.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/schedule/spec.h"

namespace agmm::measure {
namespace {

// The ranks of a message multiply a column of A by the rows of B that they hold together. Only the
// transfers are planned: B's rows travel, and no rank copies or multiplies anything. With one row,
// which the first rank holds, B travels in one direction.
constexpr char kMessageSpec[] = "A[M_x, K] * B[K_x, N] -> C[M_x, N]";
constexpr char kCopySpec[] = "A[M, K] -> B[M, K]";
constexpr char kProductSpec[] = "A[M_x, K] * B[K, N] -> C[M_x, N]";
constexpr char kMovingRowsSpec[] = "A[M_x, K] * B[K, N_x] -> C[M, N_x]";
constexpr char kMovingColumnsSpec[] = "A[M_x, K] * B[K, N_x] -> C[M_x, N]";

absl::StatusOr<Problem> ProblemOf(const Probe& probe) {
  AGMM_ASSIGN_OR_RETURN(const Mesh mesh,
                        ParseMesh(absl::StrFormat("x=%d", probe.ranks.size()), probe.ranks));
  const int64_t elements = probe.size / SizeOf(probe.dtype);
  const int64_t ranks = mesh.size();
  const auto problem = [&](const char* spec, const std::string& shape) -> absl::StatusOr<Problem> {
    AGMM_ASSIGN_OR_RETURN(const Shape sizes, ParseShape(shape, spec));
    return ParseProblem(spec, mesh, sizes, probe.dtype);
  };
  switch (probe.kind) {
    case Probe::Kind::kOneWay:
    case Probe::Kind::kMessages:
      return problem(kMessageSpec, absl::StrFormat("M=2,K=1,N=%d", elements));
    case Probe::Kind::kBothWays:
      return problem(kMessageSpec, absl::StrFormat("M=2,K=2,N=%d", elements));
    case Probe::Kind::kCopy: return problem(kCopySpec, absl::StrFormat("M=1,K=%d", elements));
    case Probe::Kind::kRows:
      return problem(kProductSpec,
                     absl::StrFormat("M=%d,N=%d,K=%d", probe.size * ranks, probe.width, kDepth));
    case Probe::Kind::kMovingRows:
    case Probe::Kind::kWholeRows:
      return problem(kMovingRowsSpec,
                     absl::StrFormat("M=%d,N=%d,K=%d", probe.size, probe.width * ranks, kDepth));
    case Probe::Kind::kMovingColumns:
      return problem(kMovingColumnsSpec,
                     absl::StrFormat("M=%d,N=%d,K=%d", probe.size * ranks, probe.width, kDepth));
    case Probe::Kind::kProduct: break;
  }
  return problem(kProductSpec,
                 absl::StrFormat("M=%d,N=%d,K=%d", probe.size * ranks, probe.size, probe.size));
}

PlanOptions OptionsOf(const Probe& probe) {
  PlanOptions options;
  const bool message = IsMessage(probe);
  if (!message && !Moves(probe)) return options;
  options.algorithm = probe.kind == Probe::Kind::kWholeRows ? "serial" : "direct";
  options.split = message || probe.kind == Probe::Kind::kMovingColumns ? "M=x" : "N=x";
  options.chunks = probe.kind == Probe::Kind::kMessages ? kPieces : 1;
  options.k_chunks = 1;
  options.transfers_only = message;
  return options;
}

}  // namespace

bool IsMessage(const Probe& probe) {
  return probe.kind == Probe::Kind::kOneWay || probe.kind == Probe::Kind::kMessages ||
         probe.kind == Probe::Kind::kBothWays;
}

bool Moves(const Probe& probe) { return probe.width > 0 && probe.kind != Probe::Kind::kRows; }

std::string Describe(const Probe& probe) {
  const auto ranks = FormatRanks(probe.ranks);
  switch (probe.kind) {
    case Probe::Kind::kOneWay:
      return absl::StrFormat("%s from rank %d to rank %d", FormatBytes(probe.size), probe.ranks[0],
                             probe.ranks[1]);
    case Probe::Kind::kMessages:
      return absl::StrFormat("%s in %d messages from rank %d to rank %d", FormatBytes(probe.size),
                             kPieces, probe.ranks[0], probe.ranks[1]);
    case Probe::Kind::kBothWays:
      return absl::StrFormat("%s between rank %d and rank %d, both ways", FormatBytes(probe.size),
                             probe.ranks[0], probe.ranks[1]);
    case Probe::Kind::kCopy:
      return absl::StrFormat("a copy of %s on ranks %s", FormatBytes(probe.size), ranks);
    case Probe::Kind::kRows:
      return absl::StrFormat("a product of %d x %d x %d on ranks %s", probe.size, probe.width,
                             kDepth, ranks);
    case Probe::Kind::kMovingRows:
      return absl::StrFormat("a product of %d x %d x %d on ranks %s, half of whose rows move",
                             probe.size, probe.width, kDepth, ranks);
    case Probe::Kind::kWholeRows:
      return absl::StrFormat(
          "a product of %d x %d x %d on ranks %s after half of its rows have moved", probe.size,
          probe.width, kDepth, ranks);
    case Probe::Kind::kMovingColumns:
      return absl::StrFormat("a product of %d x %d x %d on ranks %s, half of whose columns move",
                             probe.size, probe.width, kDepth, ranks);
    case Probe::Kind::kProduct: break;
  }
  return absl::StrFormat("a product of %s matrices of %d x %d on ranks %s", Name(probe.dtype),
                         probe.size, probe.size, ranks);
}

absl::StatusOr<JobSpec> JobOf(const Probe& probe, const std::vector<int>& nodes,
                              const std::vector<int>& islands) {
  JobSpec job;
  AGMM_ASSIGN_OR_RETURN(job.problem, ProblemOf(probe));
  job.options = OptionsOf(probe);
  for (int rank : probe.ranks) {
    job.topology.node_of_rank.push_back(nodes[rank]);
    job.topology.island_of_rank.push_back(islands[rank]);
  }
  // Left out if each node is one island, as for jobs.
  const std::vector<int>& of_rank = job.topology.island_of_rank;
  if (std::all_of(of_rank.begin(), of_rank.end(), [](int island) { return island == 0; }))
    job.topology.island_of_rank.clear();
  return job;
}

Layout LayOut(const Problem& problem, int64_t workspace_bytes) {
  Layout layout;
  for (const Tensor& tensor : problem.tensors) {
    layout.offset_bytes.push_back(layout.bytes);
    const int64_t bytes =
        std::max(ShardBytes(problem.mesh, tensor), ShardPitchBytes(problem.mesh, tensor));
    layout.bytes += RoundUp(bytes, kPlacementAlign);
  }
  layout.workspace_offset_bytes = layout.bytes;
  layout.bytes += RoundUp(workspace_bytes, kPlacementAlign);
  return layout;
}

}  // namespace agmm::measure
