// The matrices of wgmma in shared memory, as their descriptors give them.
#pragma once

#include <cstdint>
#include <string>

#include "tests/model/ptx/bulk/tensor_map.h"
#include "tests/model/ptx/state/state.h"

namespace ptx {

// A matrix of rows along M or N, and of a depth along K. Its pieces of 16 bytes are neighbours
// along K, or along M or N if `rows_inside`.
struct SharedMatrix {
  uint32_t start = 0, leading_bytes = 0, stride_bytes = 0;
  int swizzle = 0;  // as of a tensor map: 0 none, 1 32 bytes, 2 64 bytes, 3 128 bytes
  Type type = Type::kNone;
  bool rows_inside = false;

  int piece_elements() const { return 16 / Bytes(type); }

  // Calls function(offset in shared memory, first row, first k) for each piece of these rows.
  // `row` and `rows` are multiples of 8, or of the elements of a piece if that is more.
  template <typename Function>
  void ForPieces(int row, int rows, int depth, Function function) const {
    const int elements = piece_elements();
    if (rows_inside) {
      for (int k = 0; k < depth; ++k) {
        for (int at = row; at < row + rows; at += elements) {
          function(Place(OffsetInside(at / elements, k)), at, k);
        }
      }
    } else {
      for (int at = row; at < row + rows; ++at) {
        for (int k = 0; k < depth; k += elements) {
          function(Place(OffsetAlong(at, k / elements)), at, k);
        }
      }
    }
  }

 private:
  // Pieces side by side in a row of the swizzle's pattern.
  uint32_t width() const { return 1u << swizzle; }
  // The layouts of CuTe's mma_traits_sm90_gmma.hpp ("canonical layouts").
  uint32_t OffsetAlong(uint32_t row, uint32_t piece) const {
    return row % 8 * 16 * width() + row / 8 * stride_bytes + piece * (swizzle ? 16 : leading_bytes);
  }
  uint32_t OffsetInside(uint32_t piece, uint32_t k) const {
    if (swizzle == 0) return piece * stride_bytes + k % 8 * 16 + k / 8 * leading_bytes;
    return piece % width() * 16 + piece / width() * leading_bytes + k % 8 * 16 * width() +
           k / 8 * stride_bytes;
  }
  // The swizzle exchanges bits of the address, so that a start within the pattern is possible.
  uint32_t Place(uint32_t offset) const { return Swizzle(start + offset, swizzle) & 0x3ffff; }
};

// Reads the descriptor of a matrix of `rows` rows and 32 bytes of depth. Returns what is wrong with
// it, or "".
std::string ReadDescriptor(uint64_t descriptor, Type type, bool rows_inside, int rows,
                           SharedMatrix& matrix);

// Converts the matrix to f32: the element of row r and k goes to values[r * row_step + k * k_step].
void ReadMatrix(const Cta& cta, const SharedMatrix& matrix, int rows, int depth, int row_step,
                int k_step, float* values);

}  // namespace ptx
