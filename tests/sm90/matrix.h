// Matrices in the memory of a model GPU, with garbage around them that must stay, and their tensor
// maps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/model/ptx/bulk/tensor_map.h"
#include "tests/model/ptx/state/state.h"

namespace agmm::sm90 {

enum class Element { kF16, kBF16, kE4M3, kF32 };
int BytesOf(Element element);
float FloatOf(Element element, const std::byte* at);
void StoreFloat(Element element, float value, std::byte* at);

class Matrix {
 public:
  // Element (0, 0) is `x` elements behind a 16-byte aligned address. Everything is NaN, and counts
  // as unwritten.
  Matrix(ptx::HostMemory& memory, int gpu, Element element, int rows, int cols, int x);

  float At(int row, int col) const { return FloatOf(element, Place(row, col)); }
  void Set(int row, int col, float value) { StoreFloat(element, value, Place(row, col)); }
  // Small integers by the seed, so that sums are exact; they count as written by the host.
  void Fill(uint32_t seed, ptx::Races& races);
  // Makes all elements NaN again.
  void Poison();
  // Elements outside of the matrix that are not NaN any more.
  int CountChangedOutside() const;
  std::byte* Place(int row, int col) const;
  // A tensor map of boxes of this size: element (row, col) of the matrix is (row, x + col) of the
  // map.
  ptx::TensorMap Map(int box_rows, int box_cols) const;

  const Element element;
  const int rows, cols, x, pitch;  // pitch: elements

 private:
  size_t first_ = 0;  // the byte of the map's origin
  std::vector<std::byte> storage_;
  std::byte* begin_ = nullptr;  // aligned
  size_t bytes_ = 0;
};

}  // namespace agmm::sm90
