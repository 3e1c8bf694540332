// A spec is planned and proved, or refused.
#pragma once

#include "absl/strings/string_view.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"

namespace agmm::fuzz {

void CheckProduct(absl::string_view spec, const Mesh& mesh, const Shape& shape,
                  const PlanOptions& options);

}  // namespace agmm::fuzz
