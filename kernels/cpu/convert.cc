#include "kernels/cpu/convert.h"

#include <algorithm>
#include <cstring>

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

void SumRows(std::span<const ConstMatrix> from, Matrix to, int64_t rows, int64_t cols) {
  constexpr int64_t kBatch = 1024;  // stays in the first-level cache until its last addend
  float sum[kBatch], wide[kBatch];
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t begin = 0; begin < cols; begin += kBatch) {
      const int64_t count = std::min(kBatch, cols - begin);
      const auto read = [&](const ConstMatrix& matrix, float* scratch) -> const float* {
        const std::byte* const batch =
            matrix.data + row * matrix.pitch_bytes + begin * SizeOf(matrix.dtype);
        if (matrix.dtype == DType::kF32) return reinterpret_cast<const float*>(batch);
        ConvertToF32(matrix.dtype, batch, scratch, count);
        return scratch;
      };
      std::byte* const target = to.data + row * to.pitch_bytes + begin * SizeOf(to.dtype);
      const bool wide_target = to.dtype == DType::kF32;
      const float* total = read(from.front(), sum);
      for (size_t i = 1; i < from.size(); ++i) {
        const float* const addend = read(from[i], wide);
        // The last addition writes the result, unless it has to be converted.
        float* const into =
            wide_target && i + 1 == from.size() ? reinterpret_cast<float*>(target) : sum;
        for (int64_t j = 0; j < count; ++j) into[j] = total[j] + addend[j];
        total = into;
      }
      if (!wide_target) {
        ConvertFromF32(to.dtype, total, target, count);
      } else if (target != reinterpret_cast<const std::byte*>(total)) {
        std::memcpy(target, total, count * sizeof(float));
      }
    }
  }
}

}  // namespace agmm
