#include "proto/convert/problem_messages.h"

#include "kernels/base/status.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

using OperandList = google::protobuf::RepeatedPtrField<v1::Operand>;

void AddOperands(const Problem& problem, OperandList* operands) {
  for (const Tensor& tensor : problem.tensors) {
    v1::Operand* operand = operands->Add();
    operand->set_name(tensor.name);
    *operand->mutable_spec() = SpecOf(problem.mesh, tensor);
  }
}

absl::StatusOr<std::vector<Tensor>> TensorsOf(const OperandList& operands, const Mesh& mesh) {
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

void SetProblem(const Problem& problem, v1::PreparePlan* prepare) {
  *prepare->mutable_mesh() = ToProto(problem.mesh);
  AddOperands(problem, prepare->mutable_operands());
  for (const Operation& operation : problem.operations) {
    // Validate accepts no other operation.
    const auto& [a, b, c] = std::get<Product>(operation);
    v1::Product* product = prepare->add_operations()->mutable_product();
    product->set_a(a);
    product->set_b(b);
    product->set_c(c);
  }
}

void SetProblem(const Problem& problem, v1::Job* job) {
  *job->mutable_mesh() = ToProto(problem.mesh);
  AddOperands(problem, job->mutable_operands());
  job->set_m(ShapeOf(problem).m);
  job->set_n(ShapeOf(problem).n);
  job->set_k(ShapeOf(problem).k);
  job->set_dtype(ToProto(problem.tensors[TheProduct(problem).a].dtype));
}

absl::StatusOr<Problem> ProblemOf(const v1::PreparePlan& prepare) {
  Problem problem;
  AGMM_ASSIGN_OR_RETURN(problem.mesh, FromProto(prepare.mesh()));
  AGMM_ASSIGN_OR_RETURN(problem.tensors, TensorsOf(prepare.operands(), problem.mesh));
  for (const v1::Operation& operation : prepare.operations()) {
    if (!operation.has_product()) {
      return absl::InvalidArgumentError(
          "an operation of the plan is not known here; install one build everywhere");
    }
    const v1::Product& product = operation.product();
    problem.operations.push_back(Product{product.a(), product.b(), product.c()});
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
  AGMM_ASSIGN_OR_RETURN(Problem problem, ParseSpec(job.spec(), mesh));
  AGMM_ASSIGN_OR_RETURN(problem.tensors, TensorsOf(job.operands(), mesh));
  AGMM_RETURN_IF_ERROR(Validate(problem));
  return problem;
}

}  // namespace agmm
