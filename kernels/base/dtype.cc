#include "kernels/base/dtype.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_format.h"

namespace agmm {

int64_t SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

absl::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kBF16: return "bf16";
    case DType::kF16: return "f16";
  }
  return "?";
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == Name(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("dtype \"%s\" is not known; use f32, bf16 or f16", name));
}

uint16_t F32ToBF16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float BF16ToF32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// The compiler's _Float16 converts in hardware where there is F16C and in libgcc where not;
// both round to nearest even.
uint16_t F32ToF16(float value) { return std::bit_cast<uint16_t>(static_cast<_Float16>(value)); }
float F16ToF32(uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }

void ConvertToF32(DType dtype, const void* from, float* to, int64_t count) {
  const auto* half = static_cast<const uint16_t*>(from);
  switch (dtype) {
    case DType::kF32:
      if (from != to) std::memcpy(to, from, count * sizeof(float));
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i) to[i] = BF16ToF32(half[i]);
      return;
    case DType::kF16:
      for (int64_t i = 0; i < count; ++i) to[i] = F16ToF32(half[i]);
      return;
  }
}

void ConvertFromF32(DType dtype, const float* from, void* to, int64_t count) {
  auto* half = static_cast<uint16_t*>(to);
  switch (dtype) {
    case DType::kF32:
      if (from != to) std::memcpy(to, from, count * sizeof(float));
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i) half[i] = F32ToBF16(from[i]);
      return;
    case DType::kF16:
      for (int64_t i = 0; i < count; ++i) half[i] = F32ToF16(from[i]);
      return;
  }
}

}  // namespace agmm
