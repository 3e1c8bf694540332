#include "proto/convert/fill.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_format.h"

namespace agmm {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
// Elements made at a time: their f32 stay in the first cache.
constexpr int64_t kBatch = 1024;

inline uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// The largest value below 1.
float BelowOne(DType dtype) {
  switch (dtype) {
    case DType::kF32: return 1 - 0x1p-24f;
    case DType::kBF16: return 1 - 0x1p-8f;
    case DType::kF16: return 1 - 0x1p-11f;
  }
  return 0;
}

float Rounded(float value, DType dtype) {
  std::byte bits[sizeof(float)];
  ConvertFromF32(dtype, &value, bits, 1);
  ConvertToF32(dtype, bits, &value, 1);
  return value;
}

void MakeUniform(uint64_t z, int64_t count, float most, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    z += kGolden;
    to[i] =
        std::min(static_cast<float>(static_cast<int32_t>(Mix(z) >> 40)) * 0x1p-23f - 1.0f, most);
  }
}

void MakeIntegers(uint64_t z, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    z += kGolden;
    to[i] = static_cast<float>(static_cast<int32_t>((Mix(z) >> 32) * 9 >> 32) - 4);
  }
}

}  // namespace

absl::Status CheckFill(const v1::Fill& fill, DType dtype) {
  switch (fill.kind()) {
    case v1::Fill::KIND_UNIFORM:
    case v1::Fill::KIND_INTEGERS: return absl::OkStatus();
    case v1::Fill::KIND_CONSTANT:
      if (!std::isfinite(fill.value()) ||
          std::isfinite(Rounded(static_cast<float>(fill.value()), dtype)))
        return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrFormat(
          "a fill with %g is beyond what %s holds; take a smaller value or a wider dtype",
          fill.value(), Name(dtype)));
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("fill kind %d does not exist; use UNIFORM, INTEGERS or CONSTANT",
                          static_cast<int>(fill.kind())));
  }
}

void FillValues(const v1::Fill& fill, DType dtype, int64_t index, int64_t count, void* to) {
  float batch[kBatch];
  if (fill.kind() == v1::Fill::KIND_CONSTANT)
    std::fill_n(batch, std::min(kBatch, count), static_cast<float>(fill.value()));
  auto* out = static_cast<std::byte*>(to);
  for (int64_t done = 0; done < count; done += kBatch) {
    const int64_t part = std::min(kBatch, count - done);
    const uint64_t z = fill.seed() + static_cast<uint64_t>(index + done) * kGolden;
    if (fill.kind() == v1::Fill::KIND_UNIFORM) MakeUniform(z, part, BelowOne(dtype), batch);
    if (fill.kind() == v1::Fill::KIND_INTEGERS) MakeIntegers(z, part, batch);
    ConvertFromF32(dtype, batch, out + done * SizeOf(dtype), part);
  }
}

}  // namespace agmm
