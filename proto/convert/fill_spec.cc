#include "proto/convert/fill_spec.h"

#include "absl/strings/str_format.h"

namespace agmm {

absl::StatusOr<FillSpec> FromProto(const v1::Fill& fill) {
  switch (fill.kind()) {
    case v1::Fill::KIND_UNIFORM: return FillSpec{FillKind::kUniform, fill.seed()};
    case v1::Fill::KIND_INTEGERS: return FillSpec{FillKind::kIntegers, fill.seed()};
    case v1::Fill::KIND_CONSTANT: return FillSpec{FillKind::kConstant, 0, fill.value()};
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("fill kind %d does not exist; use UNIFORM, INTEGERS or CONSTANT",
                          static_cast<int>(fill.kind())));
  }
}

}  // namespace agmm
