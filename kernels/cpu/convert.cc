#include "kernels/cpu/convert.h"

#include <algorithm>

#include "kernels/device/rows.h"

namespace agmm {

void CopyRows(ConstMatrix from, Matrix to, int64_t rows, int64_t cols) {
  if (from.dtype == to.dtype) {
    const int64_t row_bytes = cols * SizeOf(from.dtype);
    return CopyRows({const_cast<std::byte*>(from.data), rows, row_bytes, from.pitch_bytes},
                    {to.data, rows, row_bytes, to.pitch_bytes});
  }
  for (int64_t row = 0; row < rows; ++row) {
    const std::byte* source = from.data + row * from.pitch_bytes;
    std::byte* target = to.data + row * to.pitch_bytes;
    if (to.dtype == DType::kF32) {
      ConvertToF32(from.dtype, source, reinterpret_cast<float*>(target), cols);
    } else {
      ConvertFromF32(to.dtype, reinterpret_cast<const float*>(source), target, cols);
    }
  }
}

void AddRows(ConstMatrix from, Matrix into, int64_t rows, int64_t cols) {
  constexpr int64_t kBatch = 512;
  float wide[kBatch];
  for (int64_t row = 0; row < rows; ++row) {
    const std::byte* source = from.data + row * from.pitch_bytes;
    float* target = reinterpret_cast<float*>(into.data + row * into.pitch_bytes);
    for (int64_t begin = 0; begin < cols; begin += kBatch) {
      const int64_t count = std::min(kBatch, cols - begin);
      const std::byte* batch = source + begin * SizeOf(from.dtype);
      const float* addend = reinterpret_cast<const float*>(batch);
      if (from.dtype != DType::kF32) {
        ConvertToF32(from.dtype, batch, wide, count);
        addend = wide;
      }
      for (int64_t i = 0; i < count; ++i) target[begin + i] += addend[i];
    }
  }
}

}  // namespace agmm
