#include "tests/model/ptx/matrix/wgmma_matrix.h"

#include <algorithm>

#include "tests/model/ptx/matrix/fragments.h"

namespace ptx {
namespace {

template <Type kType>
void ReadPieces(const Cta& cta, const SharedMatrix& matrix, int rows, int depth, int row_step,
                int k_step, float* values) {
  constexpr int kElements = kType == Type::kTF32                          ? 4
                            : kType == Type::kF16 || kType == Type::kBF16 ? 8
                                                                          : 16;
  const int step = matrix.rows_inside ? row_step : k_step;
  const std::byte* const shared = cta.shared.data();
  matrix.ForPieces(0, rows, depth, [&](uint32_t offset, int row, int k) {
    float* const to = values + row * row_step + k * k_step;
    if (step == 1) return ToFloats(kType, shared + offset, kElements, to);
    float piece[kElements];
    ToFloats(kType, shared + offset, kElements, piece);
    for (int i = 0; i < kElements; ++i) to[i * step] = piece[i];
  });
}

}  // namespace

std::string ReadDescriptor(uint64_t descriptor, Type type, bool rows_inside, int rows,
                           SharedMatrix& matrix) {
  const auto field = [&](int bit) {
    return static_cast<uint32_t>(descriptor >> bit & 0x3fff) << 4;
  };
  constexpr int kSwizzles[] = {0, 3, 2, 1};
  matrix = {.start = field(0),
            .leading_bytes = field(16),
            .stride_bytes = field(32),
            .swizzle = kSwizzles[descriptor >> 62],
            .type = type,
            .rows_inside = rows_inside};
  constexpr uint64_t kFields = uint64_t{0xc00e'3fff'3fff'3fff};
  if (descriptor & ~kFields) return "the matrix descriptor has bits outside of its fields";
  if (descriptor >> 49 & 7) return "the model has no base offset of matrix descriptors";
  const uint32_t row_bytes = 16u << matrix.swizzle;
  const uint32_t read_bytes = rows_inside ? static_cast<uint32_t>(rows * Bytes(type)) : 32;
  if (matrix.swizzle && matrix.start % row_bytes + std::min(read_bytes, row_bytes) > row_bytes) {
    return "the start address of a swizzled matrix lies too far right in a row of the pattern";
  }
  return "";
}

void ReadMatrix(const Cta& cta, const SharedMatrix& matrix, int rows, int depth, int row_step,
                int k_step, float* values) {
  switch (matrix.type) {
    case Type::kF16:
      return ReadPieces<Type::kF16>(cta, matrix, rows, depth, row_step, k_step, values);
    case Type::kBF16:
      return ReadPieces<Type::kBF16>(cta, matrix, rows, depth, row_step, k_step, values);
    case Type::kTF32:
      return ReadPieces<Type::kTF32>(cta, matrix, rows, depth, row_step, k_step, values);
    case Type::kE4M3:
      return ReadPieces<Type::kE4M3>(cta, matrix, rows, depth, row_step, k_step, values);
    default: return ReadPieces<Type::kE5M2>(cta, matrix, rows, depth, row_step, k_step, values);
  }
}

}  // namespace ptx
