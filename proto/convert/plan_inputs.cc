#include "proto/convert/plan_inputs.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

constexpr size_t kMaxOperands = 64, kMaxOperandNameBytes = 256;

using OperandList = google::protobuf::RepeatedPtrField<v1::Operand>;

void AddOperands(const Problem& problem, OperandList* operands) {
  for (const Tensor& tensor : problem.tensors) {
    v1::Operand* operand = operands->Add();
    operand->set_name(tensor.name);
    *operand->mutable_spec() = SpecOf(problem.mesh, tensor);
  }
}

absl::StatusOr<std::vector<Tensor>> TensorsOf(const OperandList& operands, const Mesh& mesh) {
  std::vector<absl::string_view> names;
  for (const v1::Operand& operand : operands) names.push_back(operand.name());
  AGMM_RETURN_IF_ERROR(CheckOperandNames(names));
  std::vector<Tensor> tensors;
  for (const v1::Operand& operand : operands) {
    const v1::TensorSpec& spec = operand.spec();
    AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(spec.dtype()));
    AGMM_ASSIGN_OR_RETURN(Tensor tensor,
                          ParseTensor(spec.sharding(), mesh, spec.rows(), spec.cols(), dtype));
    tensor.name = operand.name();
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace

absl::StatusOr<DType> FromProto(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_F32: return DType::kF32;
    case v1::DTYPE_BF16: return DType::kBF16;
    case v1::DTYPE_F16: return DType::kF16;
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("dtype %d is not known; use F32, BF16 or F16", static_cast<int>(dtype)));
  }
}

v1::DType ToProto(DType dtype) { return static_cast<v1::DType>(dtype); }

absl::StatusOr<DType> PartialsOf(v1::DType partials) {
  return partials == v1::DTYPE_UNSPECIFIED ? DType::kF32 : FromProto(partials);
}

absl::StatusOr<Mesh> FromProto(const v1::Mesh& mesh) {
  // The parser of the notation checks names, sizes and ranks; but a name must not contain notation.
  std::string text;
  for (const v1::MeshAxis& axis : mesh.axes()) {
    if (absl::StrContains(axis.name(), '=')) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "an axis is called \"%s\"; axis names are letters only", absl::CHexEscape(axis.name())));
    }
    absl::StrAppend(&text, text.empty() ? "" : ",", axis.name(), "=", axis.size());
  }
  return ParseMesh(text, {mesh.ranks().begin(), mesh.ranks().end()});
}

v1::Mesh ToProto(const Mesh& mesh) {
  v1::Mesh proto;
  for (const Axis& axis : mesh.axes) {
    v1::MeshAxis* out = proto.add_axes();
    out->set_name(axis.name);
    out->set_size(axis.size);
  }
  proto.mutable_ranks()->Add(mesh.ranks.begin(), mesh.ranks.end());
  return proto;
}

absl::StatusOr<v1::Mesh> MeshFromText(absl::string_view text, const std::vector<int>& ranks) {
  AGMM_ASSIGN_OR_RETURN(const Mesh mesh, ParseMesh(text, ranks));
  return ToProto(mesh);
}

PlanOptions FromProto(const v1::PlanOptions& options) {
  PlanOptions result;
  if (!options.algorithm().empty()) result.algorithm = options.algorithm();
  result.chunks = options.chunk_count();
  result.k_chunks = options.k_chunk_count();
  result.split = options.split();
  result.workspace_shards = options.workspace_shard_count();
  result.carried = options.carried();
  result.transfers_only = options.transfers_only();
  result.partials = PartialsOf(options.partials()).value_or(DType::kF32);  // checked on arrival
  return result;
}

v1::PlanOptions ToProto(const PlanOptions& options) {
  v1::PlanOptions proto;
  proto.set_algorithm(options.algorithm);
  proto.set_chunk_count(options.chunks);
  proto.set_k_chunk_count(options.k_chunks);
  proto.set_split(options.split);
  proto.set_workspace_shard_count(options.workspace_shards);
  proto.set_carried(options.carried);
  proto.set_transfers_only(options.transfers_only);
  proto.set_partials(ToProto(options.partials));
  return proto;
}

absl::StatusOr<Recipe> FromProto(const v1::Recipe& recipe, const Mesh& mesh) {
  Recipe result;
  result.algorithm = FindAlgorithm(recipe.algorithm());
  if (result.algorithm == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("algorithm \"%s\" of a recipe is not known; install one build everywhere",
                        absl::CHexEscape(recipe.algorithm())));
  }
  std::set<int> cut;
  for (const auto& [axes, result_axes] : {std::pair(&recipe.m_axes(), &result.split.m),
                                          {&recipe.n_axes(), &result.split.n},
                                          {&recipe.k_axes(), &result.split.k}}) {
    for (const int axis : *axes) {
      const int count = static_cast<int>(mesh.axes.size());
      if (axis < 0 || axis >= count || !cut.insert(axis).second) {
        return absl::InvalidArgumentError(
            absl::StrFormat("a recipe cuts axis %d, which mesh %s does not have, or cuts it twice; "
                            "install one build everywhere",
                            axis, mesh.ToString()));
      }
      result_axes->push_back(axis);
    }
  }
  result.chunks = recipe.chunk_count();
  result.k_chunks = recipe.k_chunk_count();
  result.workspace_shards = recipe.workspace_shard_count();
  if (std::min(result.chunks, result.k_chunks) < 1 || result.workspace_shards < 0 ||
      result.workspace_shards == 1 ||
      std::max({result.chunks, result.k_chunks, result.workspace_shards}) > kMaxChunks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a recipe has %d chunks, %d along K and a workspace of %d shards; chunks are from 1 to %d, "
        "and a workspace has 0 shards or from 2 to %d",
        result.chunks, result.k_chunks, result.workspace_shards, kMaxChunks, kMaxChunks));
  }
  result.carried = recipe.carried();
  result.transfers_only = recipe.transfers_only();
  AGMM_ASSIGN_OR_RETURN(result.partials, PartialsOf(recipe.partials()));
  return result;
}

v1::Recipe ToProto(const Recipe& recipe) {
  v1::Recipe proto;
  proto.set_algorithm(recipe.algorithm->name);
  proto.mutable_m_axes()->Add(recipe.split.m.begin(), recipe.split.m.end());
  proto.mutable_n_axes()->Add(recipe.split.n.begin(), recipe.split.n.end());
  proto.mutable_k_axes()->Add(recipe.split.k.begin(), recipe.split.k.end());
  proto.set_chunk_count(recipe.chunks);
  proto.set_k_chunk_count(recipe.k_chunks);
  proto.set_workspace_shard_count(recipe.workspace_shards);
  proto.set_carried(recipe.carried);
  proto.set_transfers_only(recipe.transfers_only);
  proto.set_partials(ToProto(recipe.partials));
  return proto;
}

absl::StatusOr<PlacedTensor> FromProto(const v1::TensorSpec& spec) {
  PlacedTensor placed;
  AGMM_ASSIGN_OR_RETURN(placed.mesh, FromProto(spec.mesh()));
  AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(spec.dtype()));
  AGMM_ASSIGN_OR_RETURN(placed.tensor,
                        ParseTensor(spec.sharding(), placed.mesh, spec.rows(), spec.cols(), dtype));
  return placed;
}

v1::TensorSpec ToProto(const Mesh& mesh, const Tensor& tensor) {
  v1::TensorSpec spec = SpecOf(mesh, tensor);
  *spec.mutable_mesh() = ToProto(mesh);
  return spec;
}

v1::TensorSpec SpecOf(const Mesh& mesh, const Tensor& tensor) {
  v1::TensorSpec spec;
  spec.set_rows(tensor.rows);
  spec.set_cols(tensor.cols);
  spec.set_dtype(ToProto(tensor.dtype));
  Tensor unnamed = tensor;
  unnamed.name.clear();
  spec.set_sharding(ToString(mesh, unnamed));
  return spec;
}

absl::Status CheckOperandNames(const std::vector<absl::string_view>& names) {
  if (names.empty() || names.size() > kMaxOperands) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the number of operands is %d, outside [1, %d]; give each operand of the "
                        "spec once",
                        names.size(), kMaxOperands));
  }
  std::set<absl::string_view> seen;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].size() > kMaxOperandNameBytes || !IsOperandName(names[i])) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "operand %d is called \"%s\"; use up to %d letters and digits, a letter first, and not "
          "\"workspace\"",
          i + 1, absl::CHexEscape(names[i].substr(0, kMaxOperandNameBytes)), kMaxOperandNameBytes));
    }
    if (!seen.insert(names[i]).second) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "operand %d is %s a second time; give each operand once", i + 1, names[i]));
    }
  }
  return absl::OkStatus();
}

void SetProblem(const Problem& problem, v1::PreparePlan* prepare) {
  *prepare->mutable_mesh() = ToProto(problem.mesh);
  AddOperands(problem, prepare->mutable_operands());
  for (const Operation& operation : problem.operations) {
    v1::Operation* const proto = prepare->add_operations();
    if (const auto* product = std::get_if<Product>(&operation)) {
      proto->mutable_product()->set_a(product->a);
      proto->mutable_product()->set_b(product->b);
      proto->mutable_product()->set_c(product->c);
    } else {
      const auto& [from, to] = std::get<Collective>(operation);
      proto->mutable_collective()->set_from(from);
      proto->mutable_collective()->set_to(to);
    }
  }
}

void SetProblem(const Problem& problem, v1::Job* job) {
  *job->mutable_mesh() = ToProto(problem.mesh);
  AddOperands(problem, job->mutable_operands());
  job->set_m(ShapeOf(problem).m);
  job->set_n(ShapeOf(problem).n);
  job->set_k(ShapeOf(problem).k);
  job->set_dtype(ToProto(problem.tensors[problem.Inputs().front()].dtype));
  job->set_result_dtype(ToProto(problem.tensors[ResultOf(problem)].dtype));
}

absl::StatusOr<Problem> ProblemOf(const v1::PreparePlan& prepare) {
  Problem problem;
  AGMM_ASSIGN_OR_RETURN(problem.mesh, FromProto(prepare.mesh()));
  AGMM_ASSIGN_OR_RETURN(problem.tensors, TensorsOf(prepare.operands(), problem.mesh));
  for (const v1::Operation& operation : prepare.operations()) {
    if (operation.has_product()) {
      const v1::Product& product = operation.product();
      problem.operations.push_back(Product{product.a(), product.b(), product.c()});
    } else if (operation.has_collective()) {
      const v1::Collective& collective = operation.collective();
      problem.operations.push_back(Collective{collective.from(), collective.to()});
    } else {
      return absl::InvalidArgumentError(
          "an operation of the plan is not known here; install one build everywhere");
    }
  }
  AGMM_RETURN_IF_ERROR(Validate(problem));
  return problem;
}

absl::StatusOr<Problem> ProblemOf(const v1::Job& job) {
  AGMM_ASSIGN_OR_RETURN(const Mesh mesh, FromProto(job.mesh()));
  if (job.operands().empty()) {
    AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(job.dtype()));
    return ParseProblem(job.spec(), mesh, {job.m(), job.n(), job.k()}, dtype);
  }
  AGMM_ASSIGN_OR_RETURN(ParsedSpec parsed, ParseSpec(job.spec(), mesh));
  Problem problem = std::move(parsed.problem);
  AGMM_ASSIGN_OR_RETURN(problem.tensors, TensorsOf(job.operands(), mesh));
  AGMM_RETURN_IF_ERROR(Validate(problem));
  return problem;
}

absl::StatusOr<FillSpec> FromProto(const v1::Fill& fill) {
  switch (fill.kind()) {
    case v1::Fill::KIND_UNIFORM: return FillSpec{FillKind::kUniform, fill.seed()};
    case v1::Fill::KIND_INTEGERS: return FillSpec{FillKind::kIntegers, fill.seed()};
    case v1::Fill::KIND_CONSTANT: return FillSpec{FillKind::kConstant, 0, fill.value()};
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("fill kind %d does not exist; use UNIFORM, INTEGERS or CONSTANT",
                          static_cast<int>(fill.kind())));
  }
}

}  // namespace agmm
