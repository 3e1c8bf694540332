// cuTensorMapEncodeTiled, as the model has it.
#pragma once

#include <cuda.h>

#include <cstring>

#include "tests/model/ptx/bulk/tensor_map.h"

namespace ptx {

// Writes the model's map, if the arguments keep the rules of cuda.h; else returns
// CUDA_ERROR_INVALID_VALUE.
inline CUresult EncodeTiled(CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank,
                            void* address, const cuuint64_t* dims, const cuuint64_t* strides,
                            const cuuint32_t* box, const cuuint32_t* element_strides,
                            CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                            CUtensorMapL2promotion l2, CUtensorMapFloatOOBfill fill) {
  if (rank < 1 || rank > 5) return CUDA_ERROR_INVALID_VALUE;
  TensorMap map;
  map.type = static_cast<uint8_t>(type);
  map.rank = static_cast<uint8_t>(rank);
  map.interleave = static_cast<uint8_t>(interleave);
  map.swizzle = static_cast<uint8_t>(swizzle);
  map.l2_promotion = static_cast<uint8_t>(l2);
  map.fill = static_cast<uint8_t>(fill);
  map.element_bytes = static_cast<uint8_t>(TensorElementBytes(static_cast<int>(type)));
  map.address = reinterpret_cast<uint64_t>(address);
  for (cuuint32_t i = 0; i < rank; ++i) {
    map.dims[i] = dims[i];
    map.box[i] = box[i];
    map.element_strides[i] = static_cast<uint8_t>(element_strides[i]);
    if (i > 0) map.strides[i - 1] = strides[i - 1];
  }
  if (!CheckTensorMap(map).empty()) return CUDA_ERROR_INVALID_VALUE;
  static_assert(sizeof(CUtensorMap) == sizeof map);
  std::memcpy(out, &map, sizeof map);
  return CUDA_SUCCESS;
}

}  // namespace ptx
