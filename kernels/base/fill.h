// Fills host memory with the values of fill_value.h.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/base/dtype.h"
#include "kernels/base/fill_value.h"

namespace agmm {

// Errors: INVALID_ARGUMENT for a finite value that is too large for `dtype`.
absl::Status CheckFill(const FillSpec& fill, DType dtype);

// Returns the dtype's largest value below 1.
float LargestBelowOne(DType dtype);

// Writes elements index, index + 1, ..., index + count - 1, dense, to `to`. `fill` has been
// checked.
void FillValues(const FillSpec& fill, DType dtype, int64_t index, int64_t count, void* to);

}  // namespace agmm
