#include "daemon/sequencer/admission.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/plan_inputs.h"
#include "proto/convert/time.h"

namespace agmm {
namespace {

// "[M_x, K] 1024 x 512 bf16 over mesh x=2 (ranks 0,1)".
std::string Text(const Mesh& mesh, Tensor tensor) {
  tensor.name.clear();
  return absl::StrFormat("%s %d x %d %s over mesh %s (ranks %s)", ToString(mesh, tensor),
                         tensor.rows, tensor.cols, Name(tensor.dtype), mesh.ToString(),
                         absl::StrJoin(mesh.ranks, ","));
}

// Checks that `found` can stand for `wanted`.
absl::Status CheckOperand(const v1::Tensor& proto, const PlacedTensor& found, const Mesh& mesh,
                          const Tensor& wanted, bool is_c) {
  if (SameSpec(found, {mesh, wanted})) return absl::OkStatus();
  const std::string next =
      is_c && !proto.name().empty()
          ? absl::StrFormat(
                "delete it (tensor rm %s), so that the job makes a new one, give C another name",
                proto.name())
          : "create one that fits";
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s stands for %s, which is %s, but the tensor is %s; %s, or change the spec",
      Describe(proto), wanted.name, Text(mesh, wanted), Text(found.mesh, found.tensor), next));
}

// Counts and bounds were checked on arrival.
absl::Status ReadTerms(const v1::SubmitJobRequest& request, const Catalog& catalog, JobSpec* job) {
  job->repeat = request.repeat_count() == 0 ? 1 : request.repeat_count();
  job->timeout = FromProto(request.timeout());
  if (job->timeout == absl::ZeroDuration()) job->timeout = kDefaultJobTimeout;
  for (int i = 0; i < 3; ++i) {
    const v1::TensorRef& ref = request.tensors(i);
    const absl::StatusOr<uint64_t> found = catalog.Resolve(ref);
    if (i == kC && absl::IsNotFound(found.status())) {
      job->new_c = ref.name();
      continue;
    }
    AGMM_ASSIGN_OR_RETURN(job->tensors[i], found);
    if (i != kC || ref.has_tensor_id()) continue;
    AGMM_ASSIGN_OR_RETURN(const v1::Tensor c, catalog.Find(*found));
    AGMM_RETURN_IF_ERROR(CheckOwner(c, request.session_id(), /*replaces=*/false));
  }
  if (job->tensors[kC] == job->tensors[kA] || job->tensors[kC] == job->tensors[kB]) {
    AGMM_ASSIGN_OR_RETURN(const v1::Tensor c, catalog.Find(job->tensors[kC]));
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is both input and output; give C a tensor of its own", Describe(c)));
  }
  return absl::OkStatus();
}

// The islands are left out if each node is one island.
Topology TopologyOf(const Mesh& mesh, const Members& members) {
  Topology topology;
  for (int rank : mesh.ranks) {
    topology.node_of_rank.push_back(members.ranks()[rank].node);
    topology.island_of_rank.push_back(members.ranks()[rank].island);
  }
  const std::vector<int>& islands = topology.island_of_rank;
  if (std::count(islands.begin(), islands.end(), 0) == static_cast<int64_t>(islands.size()))
    topology.island_of_rank.clear();
  return topology;
}

}  // namespace

absl::StatusOr<JobSpec> Admit(const v1::SubmitJobRequest& request, const Members& members,
                              const Catalog& catalog,
                              const std::function<bool(uint64_t)>& will_be_written) {
  JobSpec job;
  job.spec = request.spec();
  AGMM_ASSIGN_OR_RETURN(const Mesh mesh, FromProto(request.mesh()));
  // Checked first, because the tensors of a missing node are lost, which is the less important
  // error.
  AGMM_RETURN_IF_ERROR(CheckRanks(mesh, members));
  AGMM_RETURN_IF_ERROR(ReadTerms(request, catalog, &job));
  job.topology = TopologyOf(mesh, members);
  v1::Tensor protos[3];
  PlacedTensor tensors[3];
  const int given = job.new_c.empty() ? 3 : 2;
  for (int i = 0; i < given; ++i) {
    AGMM_ASSIGN_OR_RETURN(protos[i], catalog.Find(job.tensors[i]));
    AGMM_ASSIGN_OR_RETURN(tensors[i], FromProto(protos[i].spec()));
  }
  const Tensor &a = tensors[kA].tensor, &b = tensors[kB].tensor;
  if (a.cols != b.rows) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "A, %s, has %s and B, %s, has %s; the inner dimension must agree", Describe(protos[kA]),
        Counted(a.cols, "column"), Describe(protos[kB]), Counted(b.rows, "row")));
  }
  AGMM_ASSIGN_OR_RETURN(job.problem,
                        ParseProblem(request.spec(), mesh, {a.rows, b.cols, a.cols}, a.dtype));
  for (int i = 0; i < given; ++i)
    AGMM_RETURN_IF_ERROR(
        CheckOperand(protos[i], tensors[i], mesh, job.problem.tensors[i], i == kC));
  for (int i : {kA, kB}) {
    if (!catalog.WillHaveContents(job.tensors[i]) && !will_be_written(job.tensors[i])) {
      return absl::FailedPreconditionError(
          absl::StrFormat("%s stands for %s and has no contents; write it first",
                          Describe(protos[i]), job.problem.tensors[i].name));
    }
  }
  AGMM_ASSIGN_OR_RETURN(job.options, FromProto(request.options()));
  job.problem_key =
      absl::StrFormat("%s ranks %s", ToString(job.problem), absl::StrJoin(mesh.ranks, ","));
  if (!job.topology.island_of_rank.empty()) {
    absl::StrAppend(&job.problem_key, " islands ", absl::StrJoin(job.topology.island_of_rank, ","));
  }
  job.plan_key = absl::StrCat(job.problem_key, " ", ToString(job.options));
  return job;
}

}  // namespace agmm
