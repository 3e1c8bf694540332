// Tensor maps: what cuTensorMapEncodeTiled writes, and TMA reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ptx {

// The contents of the 128 bytes. The real layout is not documented; this one is the model's own.
struct TensorMap {
  static constexpr uint32_t kMagic = 0x7e50a9d1;
  uint32_t magic = kMagic;
  uint8_t type = 0;        // CUtensorMapDataType
  uint8_t rank = 0;        // 1 to 5
  uint8_t interleave = 0;  // 0: none; nothing else is in the model
  uint8_t swizzle = 0;     // CUtensorMapSwizzle: 0 none, 1 32 bytes, 2 64 bytes, 3 128 bytes
  uint8_t l2_promotion = 0;
  uint8_t fill = 0;  // CUtensorMapFloatOOBfill: 0 zero, 1 NaN
  uint8_t element_bytes = 0;
  uint8_t reserved = 0;
  uint64_t address = 0;
  uint64_t dims[5] = {};     // elements, the innermost first
  uint64_t strides[4] = {};  // bytes, of dimension 1 and above
  uint32_t box[5] = {};      // elements
  uint8_t element_strides[5] = {};
  uint8_t padding[3] = {};
};
static_assert(sizeof(TensorMap) == 128);

// Checks a map against the rules of cuTensorMapEncodeTiled (cuda.h). Returns "", or the rule that
// it breaks.
std::string CheckTensorMap(const TensorMap& map);
// Bytes of an element of this CUtensorMapDataType, or 0.
int TensorElementBytes(int type);

// The address in shared memory at which a byte of a box lies that has this address without a
// swizzle.
inline uint32_t Swizzle(uint32_t address, int swizzle) {
  switch (swizzle) {
    case 1: return address ^ (address >> 7 & 1) << 4;
    case 2: return address ^ (address >> 7 & 3) << 4;
    case 3: return address ^ (address >> 7 & 7) << 4;
    default: return address;
  }
}

}  // namespace ptx
