// Messages <-> the structs of kernels/schedule and kernels/base, shared by daemon and client.
// Everything that comes from the wire is checked here. Errors: INVALID_ARGUMENT.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/peer.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "kernels/base/fill_value.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/problem.h"

namespace agmm {

absl::StatusOr<DType> FromProto(v1::DType dtype);
v1::DType ToProto(DType dtype);

absl::StatusOr<Mesh> FromProto(const v1::Mesh& mesh);
v1::Mesh ToProto(const Mesh& mesh);
// Parses "x=4" or "dp=2,tp=4"; without ranks, the mesh has the first ones.
absl::StatusOr<v1::Mesh> MeshFromText(absl::string_view text, const std::vector<int>& ranks);

// Returns the dtype in which terms travel: f32 if it is not given.
absl::StatusOr<DType> PartialsOf(v1::DType partials);
PlanOptions FromProto(const v1::PlanOptions& options);
v1::PlanOptions ToProto(const PlanOptions& options);

// Returns a recipe for problems on `mesh`.
absl::StatusOr<Recipe> FromProto(const v1::Recipe& recipe, const Mesh& mesh);
v1::Recipe ToProto(const Recipe& recipe);

// A tensor's spec with its mesh.
struct PlacedTensor {
  Mesh mesh;
  Tensor tensor;
};
absl::StatusOr<PlacedTensor> FromProto(const v1::TensorSpec& spec);
v1::TensorSpec ToProto(const Mesh& mesh, const Tensor& tensor);
// The same without the mesh.
v1::TensorSpec SpecOf(const Mesh& mesh, const Tensor& tensor);

// Sets mesh and operands.
void SetProblem(const Problem& problem, v1::PreparePlan* prepare);
// Sets mesh and operands, and for older clients the fields that only a product has.
void SetProblem(const Problem& problem, v1::Job* job);

// Checks the number of operands, and that each has a name of its own that the notation can have. In
// errors, names[i] is called operands[i].name.
absl::Status CheckOperandNames(const std::vector<absl::string_view>& names);

// Errors: also those of Validate.
absl::StatusOr<Problem> ProblemOf(const v1::PreparePlan& prepare);
// The record of an older daemon has no operands; m, n, k and dtype describe them then.
absl::StatusOr<Problem> ProblemOf(const v1::Job& job);

absl::StatusOr<FillSpec> FromProto(const v1::Fill& fill);

}  // namespace agmm
