// Element types of matrices, and conversions between them and f32.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace agmm {

enum class DType : int { kF32 = 1, kBF16 = 2, kF16 = 3 };

// Bytes of an element: 4, 2, 2.
int64_t SizeOf(DType dtype);
// "f32", "bf16", "f16".
absl::string_view Name(DType dtype);
// The reverse of Name. Errors: INVALID_ARGUMENT with the accepted names.
absl::StatusOr<DType> ParseDType(absl::string_view name);

// Round to nearest even; NaN stays NaN; out of range becomes infinity.
uint16_t F32ToBF16(float value);
uint16_t F32ToF16(float value);
float BF16ToF32(uint16_t bits);
float F16ToF32(uint16_t bits);

// Converts `count` elements; `from` and `to` must not overlap unless they are equal and of one
// size.
void ConvertToF32(DType dtype, const void* from, float* to, int64_t count);
void ConvertFromF32(DType dtype, const float* from, void* to, int64_t count);

}  // namespace agmm
