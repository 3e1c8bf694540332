#include "daemon/sequencer/admission.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/failpoint.h"
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

// A tensor that stands for an operand.
struct Found {
  v1::Tensor proto;
  PlacedTensor placed;
};

// By operand; empty for a result whose tensor does not exist yet.
using Tensors = std::vector<std::optional<Found>>;

absl::StatusOr<Binding> Bind(Operand operand, bool writes, const v1::TensorRef& ref,
                             const std::string& session, const Catalog& catalog,
                             std::optional<Found>* tensor) {
  Binding binding = {operand, 0, writes, ""};
  const absl::StatusOr<uint64_t> id = catalog.Resolve(ref);
  if (writes && ref.has_name() && absl::IsNotFound(id.status())) {
    binding.new_name = ref.name();
    return binding;
  }
  AGMM_ASSIGN_OR_RETURN(binding.tensor, id);
  Found& found = tensor->emplace();
  AGMM_ASSIGN_OR_RETURN(found.proto, catalog.Find(binding.tensor));
  AGMM_ASSIGN_OR_RETURN(found.placed, FromProto(found.proto.spec()));
  if (writes && ref.has_name())
    AGMM_RETURN_IF_ERROR(CheckOwner(found.proto, session, /*replaces=*/false));
  return binding;
}

// Checks that a tensor that is written stands for one operand only.
absl::Status CheckResults(const JobSpec& job, const Tensors& tensors) {
  for (const Binding& result : job.bindings) {
    if (!result.writes || !result.new_name.empty()) continue;
    for (const Binding& other : job.bindings) {
      if (other.tensor != result.tensor || other.operand == result.operand) continue;
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s is both input and output; give %s a tensor of its own",
          Describe(tensors[result.operand]->proto), job.problem.tensors[result.operand].name));
    }
  }
  return absl::OkStatus();
}

// Returns the tensor that the request gives for each operand. Counts and names were checked on
// arrival. Only tests give tensors for operands that the spec does not name: these are added to
// `operands`, without dimensions.
absl::StatusOr<std::vector<const v1::TensorRef*>> TensorsOf(const v1::SubmitJobRequest& request,
                                                            std::vector<Tensor>* operands) {
  std::vector<const v1::TensorRef*> refs(operands->size());
  // Tensors without names are in the order of the spec.
  if (!request.tensors().empty() && request.tensors_size() != static_cast<int>(refs.size())) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tensors has %d entries, but the spec has %d operands; give one for each",
                        request.tensors_size(), refs.size()));
  }
  for (int i = 0; i < request.tensors_size(); ++i) refs[i] = &request.tensors(i);
  for (const v1::OperandTensor& given : request.operands()) {
    const auto known = std::find_if(operands->begin(), operands->end(), [&](const Tensor& operand) {
      return operand.name == given.name();
    });
    const size_t index = known - operands->begin();
    if (known == operands->end()) {
      if (!AGMM_FAILPOINT("admission.spare_operands")) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "the spec has no operand \"%s\"; name its operands only", given.name()));
      }
      operands->emplace_back().name = given.name();
      refs.emplace_back();
    }
    refs[index] = &given.tensor();
  }
  if (const auto none = std::find(refs.begin(), refs.end(), nullptr); none != refs.end()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the spec has operand %s, but no tensor is given for it; add one",
                        (*operands)[none - refs.begin()].name));
  }
  return refs;
}

absl::StatusOr<Tensors> BindAll(const v1::SubmitJobRequest& request, const Catalog& catalog,
                                JobSpec* job) {
  AGMM_ASSIGN_OR_RETURN(const std::vector<const v1::TensorRef*> refs,
                        TensorsOf(request, &job->problem.tensors));
  Tensors tensors(refs.size());
  for (Operand operand = 0; operand < static_cast<Operand>(refs.size()); ++operand) {
    AGMM_ASSIGN_OR_RETURN(Binding binding,
                          Bind(operand, job->problem.Writes(operand), *refs[operand],
                               request.session_id(), catalog, &tensors[operand]));
    job->bindings.push_back(std::move(binding));
  }
  AGMM_RETURN_IF_ERROR(CheckResults(*job, tensors));
  return tensors;
}

// The size of a dimension of the spec, from the first tensor that has it.
struct Side {
  Operand operand = 0;
  int64_t size = 0;
  const char* unit = "";  // "row"
};

// Checks that the tensors of two inputs have one dtype. Validate would not name the tensors.
absl::Status CheckOneDtype(const Tensors& tensors, const Problem& problem, Operand a, Operand b) {
  const DType of_a = problem.tensors[a].dtype, of_b = problem.tensors[b].dtype;
  if (of_a == of_b) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s stands for %s and is %s, but %s stands for %s and is %s; a product multiplies matrices "
      "of one dtype, so create one of the two in the other's dtype",
      Describe(tensors[a]->proto), problem.tensors[a].name, Name(of_a), Describe(tensors[b]->proto),
      problem.tensors[b].name, Name(of_b)));
}

// Gives the operands of the spec the sizes that the inputs' tensors have. Where the spec gives no
// dtype, an input has that of its tensor, and a result that of the first input. An operand that the
// spec does not name takes both from its tensor.
absl::Status Complete(const Tensors& tensors, const std::vector<std::optional<DType>>& dtypes,
                      Problem* problem) {
  std::map<absl::string_view, Side> sides;
  std::optional<Operand> first_input;
  for (const Operand operand : problem->Inputs()) {
    const Tensor& found = tensors[operand]->placed.tensor;
    Tensor& wanted = problem->tensors[operand];
    if (wanted.row_dim.empty()) continue;
    wanted.dtype = dtypes[operand].value_or(found.dtype);
    if (!first_input.has_value()) first_input = operand;
    if (!dtypes[operand].has_value() && !dtypes[*first_input].has_value())
      AGMM_RETURN_IF_ERROR(CheckOneDtype(tensors, *problem, *first_input, operand));
    for (const auto& [dim, side] : {std::pair(&wanted.row_dim, Side{operand, found.rows, "row"}),
                                    {&wanted.col_dim, Side{operand, found.cols, "column"}}}) {
      const Side& first = sides.emplace(*dim, side).first->second;
      if (first.size == side.size) continue;
      const auto text = [&](const Side& one) {
        return absl::StrFormat("%s, %s, has %s", problem->tensors[one.operand].name,
                               Describe(tensors[one.operand]->proto), Counted(one.size, one.unit));
      };
      return absl::InvalidArgumentError(
          absl::StrFormat("%s and %s; they are dimension %s of the spec and must agree",
                          text(first), text(side), *dim));
    }
  }
  const DType dtype = problem->tensors[*first_input].dtype;
  for (size_t i = 0; i < tensors.size(); ++i) {
    Tensor& operand = problem->tensors[i];
    if (operand.row_dim.empty()) {
      const std::string name = operand.name;
      operand = tensors[i]->placed.tensor;
      operand.name = name;
    } else {
      operand.rows = sides[operand.row_dim].size;
      operand.cols = sides[operand.col_dim].size;
      if (problem->Writes(static_cast<Operand>(i))) operand.dtype = dtypes[i].value_or(dtype);
    }
  }
  return Validate(*problem);
}

// Checks that the tensor can stand for the operand.
absl::Status CheckFits(const Found& found, const Problem& problem, const Binding& binding) {
  const Tensor& wanted = problem.tensors[binding.operand];
  if (SameSpec(found.placed, {problem.mesh, wanted})) return absl::OkStatus();
  const std::string next =
      binding.writes && !found.proto.name().empty()
          ? absl::StrFormat("delete it, so that the job makes a new one, give %s another name",
                            wanted.name)
          : "create one that fits";
  return absl::FailedPreconditionError(
      absl::StrFormat("%s stands for %s, which is %s, but the tensor is %s; %s, or change the spec",
                      Describe(found.proto), wanted.name, Text(problem.mesh, wanted),
                      Text(found.placed.mesh, found.placed.tensor), next));
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
  job.repeat = request.repeat_count() == 0 ? 1 : request.repeat_count();
  job.timeout = FromProto(request.timeout());
  if (job.timeout == absl::ZeroDuration()) job.timeout = kDefaultJobTimeout;
  AGMM_ASSIGN_OR_RETURN(const Mesh mesh, FromProto(request.mesh()));
  // Checked first, because the tensors of a missing node are lost, too, and the missing node is the
  // more helpful error.
  AGMM_RETURN_IF_ERROR(CheckRanks(mesh, members));
  job.topology = TopologyOf(mesh, members);
  AGMM_ASSIGN_OR_RETURN(ParsedSpec parsed, ParseSpec(request.spec(), mesh));
  job.problem = std::move(parsed.problem);
  AGMM_ASSIGN_OR_RETURN(const Tensors tensors, BindAll(request, catalog, &job));
  AGMM_RETURN_IF_ERROR(Complete(tensors, parsed.dtypes, &job.problem));
  for (const Binding& binding : job.bindings)
    if (const auto& found = tensors[binding.operand]; found.has_value())
      AGMM_RETURN_IF_ERROR(CheckFits(*found, job.problem, binding));
  for (const Binding& binding : job.bindings) {
    if (binding.writes || catalog.WillHaveContents(binding.tensor) ||
        will_be_written(binding.tensor))
      continue;
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s stands for %s and has no contents; write it first",
        Describe(tensors[binding.operand]->proto), job.problem.tensors[binding.operand].name));
  }
  job.options = FromProto(request.options());
  job.problem_key =
      absl::StrFormat("%s ranks %s", ToString(job.problem), absl::StrJoin(mesh.ranks, ","));
  if (!job.topology.island_of_rank.empty()) {
    absl::StrAppend(&job.problem_key, " islands ", absl::StrJoin(job.topology.island_of_rank, ","));
  }
  job.plan_key = absl::StrCat(job.problem_key, " ", ToString(job.options));
  return job;
}

}  // namespace agmm
