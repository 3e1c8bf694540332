// Messages of fills <-> kernels/base/fill_value.h.
#pragma once

#include "absl/status/statusor.h"
#include "agmm/v1/tensor.pb.h"
#include "kernels/base/fill_value.h"

namespace agmm {

// Errors: INVALID_ARGUMENT for an unknown kind.
absl::StatusOr<FillSpec> FromProto(const v1::Fill& fill);

}  // namespace agmm
