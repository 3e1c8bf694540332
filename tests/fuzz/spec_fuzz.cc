// Lines: a mesh, a spec, a shape, an algorithm, the sharding of one tensor.
#include "kernels/schedule/spec.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/product.h"

namespace agmm::fuzz {
namespace {

// Larger sides find nothing new and take long to prove.
constexpr int64_t kMaxSide = 300;

void CheckTensor(absl::string_view sharding, const Mesh& mesh, const Shape& shape) {
  const absl::StatusOr<Tensor> tensor = ParseTensor(sharding, mesh, shape.m, shape.n, DType::kF32);
  if (!tensor.ok()) return;
  const std::string written = ToString(mesh, *tensor);
  const absl::StatusOr<Tensor> again = ParseTensor(written, mesh, shape.m, shape.n, DType::kF32);
  FUZZ_CHECK(again.ok() && *again == *tensor, written);
}

void Check(absl::string_view text) {
  const absl::string_view mesh_text = Line(&text), spec = Line(&text), shape_text = Line(&text),
                          algorithm = Line(&text), sharding = Line(&text);
  const absl::StatusOr<Mesh> mesh = ParseMesh(mesh_text);
  const absl::StatusOr<Shape> shape = ParseShape(shape_text);
  for (const absl::Status& status : {mesh.status(), shape.status()})
    FUZZ_CHECK(status.ok() || absl::IsInvalidArgument(status), status.ToString());
  if (!mesh.ok()) return;
  const absl::StatusOr<Mesh> again = ParseMesh(mesh->ToString());
  FUZZ_CHECK(again.ok() && *again == *mesh, mesh->ToString());
  Shape used = shape.value_or(Shape{7, 5, 3});
  if (used.m > kMaxSide || used.n > kMaxSide || used.k > kMaxSide) used = {7, 5, 3};
  PlanOptions options;
  options.algorithm = std::string(algorithm);
  options.chunks = algorithm.size() % 3;
  CheckProduct(spec, *mesh, used, options);
  CheckTensor(sharding, *mesh, used);
}

[[maybe_unused]] const bool kAdded = AddTarget("spec", Check);

}  // namespace
}  // namespace agmm::fuzz
