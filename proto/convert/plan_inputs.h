// Messages <-> the planner's structs, shared by daemon and client. Everything that comes from the
// wire is checked here.
#pragma once

#include "absl/status/statusor.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/peer.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/problem.h"

namespace agmm {

absl::StatusOr<DType> FromProto(v1::DType dtype);
v1::DType ToProto(DType dtype);

absl::StatusOr<Mesh> FromProto(const v1::Mesh& mesh);
v1::Mesh ToProto(const Mesh& mesh);
// Parses "x=4" or "dp=2,tp=4"; without ranks, the mesh has the first ones. Errors:
// INVALID_ARGUMENT.
absl::StatusOr<v1::Mesh> MeshFromText(absl::string_view text, const std::vector<int>& ranks);

absl::StatusOr<PlanOptions> FromProto(const v1::PlanOptions& options);
v1::PlanOptions ToProto(const PlanOptions& options);

// Returns a recipe for problems on `mesh`. Errors: INVALID_ARGUMENT for a recipe that the planner
// cannot make.
absl::StatusOr<Recipe> FromProto(const v1::Recipe& recipe, const Mesh& mesh);
v1::Recipe ToProto(const Recipe& recipe);

// A tensor's spec with its mesh. Errors: INVALID_ARGUMENT.
struct PlacedTensor {
  Mesh mesh;
  Tensor tensor;
};
absl::StatusOr<PlacedTensor> FromProto(const v1::TensorSpec& spec);
v1::TensorSpec ToProto(const Mesh& mesh, const Tensor& tensor);
// The same without the mesh.
v1::TensorSpec SpecOf(const Mesh& mesh, const Tensor& tensor);

}  // namespace agmm
