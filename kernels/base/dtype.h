// Names of element types, and conversions between them and f32 in bulk.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/base/dtype_traits.h"

namespace agmm {

// "f32", "bf16", "f16".
absl::string_view Name(DType dtype);
// The reverse of Name. Errors: INVALID_ARGUMENT with the accepted names.
absl::StatusOr<DType> ParseDType(absl::string_view name);

// Converts `count` elements, with the same bits as the conversions of dtype_traits.h. `from` and
// `to` must not overlap, unless they are equal and both element types have the same size.
void ConvertToF32(DType dtype, const void* from, float* to, int64_t count);
void ConvertFromF32(DType dtype, const float* from, void* to, int64_t count);

}  // namespace agmm
