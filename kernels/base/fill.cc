#include "kernels/base/fill.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_format.h"

namespace agmm {
namespace {

// Elements made at a time: their f32 stay in the first cache.
constexpr int64_t kBatch = 1024;

float Rounded(float value, DType dtype) {
  std::byte bits[sizeof(float)];
  ConvertFromF32(dtype, &value, bits, 1);
  ConvertToF32(dtype, bits, &value, 1);
  return value;
}

// The loops advance the argument of mix, which is cheaper than FillValue.
void MakeUniform(uint64_t z, int64_t count, float most, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    z += kFillStep;
    to[i] = UniformOf(MixFill(z), most);
  }
}

void MakeIntegers(uint64_t z, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    z += kFillStep;
    to[i] = IntegerOf(MixFill(z));
  }
}

}  // namespace

float LargestBelowOne(DType dtype) { return 1 - std::ldexp(1.0f, -TraitsOf(dtype).precision_bits); }

absl::Status CheckFill(const FillSpec& fill, DType dtype) {
  if (fill.kind != FillKind::kConstant || !std::isfinite(fill.value) ||
      std::isfinite(Rounded(static_cast<float>(fill.value), dtype)))
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("a fill with %g is beyond what %s holds; take a smaller value or a wider "
                      "dtype",
                      fill.value, Name(dtype)));
}

void FillValues(const FillSpec& fill, DType dtype, int64_t index, int64_t count, void* to) {
  float batch[kBatch];
  if (fill.kind == FillKind::kConstant)
    std::fill_n(batch, std::min(kBatch, count), static_cast<float>(fill.value));
  auto* out = static_cast<std::byte*>(to);
  for (int64_t done = 0; done < count; done += kBatch) {
    const int64_t part = std::min(kBatch, count - done);
    const uint64_t z = FillState(fill.seed, index + done);
    if (fill.kind == FillKind::kUniform) MakeUniform(z, part, LargestBelowOne(dtype), batch);
    if (fill.kind == FillKind::kIntegers) MakeIntegers(z, part, batch);
    ConvertFromF32(dtype, batch, out + done * SizeOf(dtype), part);
  }
}

}  // namespace agmm
