// Values of f16 and bf16 as instructions compute with them.
#pragma once

#include <cstdint>

#include "tests/model/ptx/arithmetic/floats.h"

namespace ptx {

struct F16 {
  uint16_t bits;
  template <typename Float>
  static F16 Of(Float value) {
    return {F16Of(value)};
  }
};
struct BF16 {
  uint16_t bits;
  template <typename Float>
  static BF16 Of(Float value) {
    return {BF16Of(value)};
  }
};

inline float FloatOf(F16 value) { return FloatOfF16(value.bits); }
inline float FloatOf(BF16 value) { return FloatOfBF16(value.bits); }

// Subnormal numbers become zero (.ftz).
inline F16 Flush(F16 value) {
  return {value.bits & 0x7c00 ? value.bits : static_cast<uint16_t>(value.bits & 0x8000)};
}
inline BF16 Flush(BF16 value) {
  return {value.bits & 0x7f80 ? value.bits : static_cast<uint16_t>(value.bits & 0x8000)};
}

}  // namespace ptx
