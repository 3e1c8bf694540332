#include "tests/sm90/matrix.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "tests/model/ptx/arithmetic/floats.h"

namespace agmm::sm90 {
namespace {

constexpr int kPitchBytes = 128, kGuardBytes = 256;

int RoundUp(int value, int unit) { return (value + unit - 1) / unit * unit; }

// CUtensorMapDataType of cuda.h.
int MapTypeOf(Element element) {
  switch (element) {
    case Element::kF16: return 6;
    case Element::kBF16: return 9;
    case Element::kE4M3: return 0;
    case Element::kF32: return 7;
  }
  throw std::logic_error("an element");
}

}  // namespace

int BytesOf(Element element) {
  return element == Element::kE4M3 ? 1 : element == Element::kF32 ? 4 : 2;
}

float FloatOf(Element element, const std::byte* at) {
  uint32_t bits = 0;
  std::memcpy(&bits, at, BytesOf(element));
  switch (element) {
    case Element::kF16: return ptx::FloatOfF16(static_cast<uint16_t>(bits));
    case Element::kBF16: return ptx::FloatOfBF16(static_cast<uint16_t>(bits));
    case Element::kE4M3: return ptx::FloatOfE4M3(static_cast<uint8_t>(bits));
    case Element::kF32: return ptx::As<float>(bits);
  }
  throw std::logic_error("an element");
}

void StoreFloat(Element element, float value, std::byte* at) {
  uint32_t bits = 0;
  switch (element) {
    case Element::kF16: bits = ptx::F16OfFloat(value); break;
    case Element::kBF16: bits = ptx::BF16OfFloat(value); break;
    case Element::kE4M3: bits = std::isnan(value) ? 0x7f : ptx::E4M3OfFloat(value); break;
    case Element::kF32: bits = static_cast<uint32_t>(ptx::Bits(value)); break;
  }
  std::memcpy(at, &bits, BytesOf(element));
}

Matrix::Matrix(ptx::HostMemory& memory, int gpu, Element element, int rows, int cols, int x)
    : element(element),
      rows(rows),
      cols(cols),
      x(x),
      pitch(RoundUp((x + cols) * BytesOf(element), kPitchBytes) / BytesOf(element)) {
  bytes_ = static_cast<size_t>(rows) * pitch * BytesOf(element) + 2 * kGuardBytes;
  storage_.resize(bytes_ + 256);
  begin_ = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(storage_.data()) + 255) / 256 *
                                        256);
  first_ = 16 * (1 + (rows + cols + gpu) % 15);  // 16-byte aligned, and not more
  Poison();
  memory.Add(begin_, bytes_, gpu);
}

std::byte* Matrix::Place(int row, int col) const {
  return begin_ + first_ + (static_cast<size_t>(row) * pitch + x + col) * BytesOf(element);
}

void Matrix::Fill(uint32_t seed, ptx::Races& races) {
  for (int row = 0; row < rows; ++row) {
    for (int col = 0; col < cols; ++col) {
      seed = seed * 1664525 + 1013904223;
      Set(row, col, static_cast<float>(static_cast<int>((seed >> 20) % 5) - 2));
    }
    races.SetWritten(reinterpret_cast<uint64_t>(Place(row, 0)),
                     static_cast<uint64_t>(cols) * BytesOf(element));
  }
}

void Matrix::Poison() {
  std::byte nan[4];
  const size_t size = BytesOf(element);
  StoreFloat(element, std::numeric_limits<float>::quiet_NaN(), nan);
  for (size_t at = 0; at + size <= bytes_; at += size) std::memcpy(begin_ + at, nan, size);
}

int Matrix::CountChangedOutside() const {
  std::byte nan[4];
  const size_t size = BytesOf(element), row_bytes = static_cast<size_t>(pitch) * size;
  StoreFloat(element, std::numeric_limits<float>::quiet_NaN(), nan);
  int changed = 0;
  for (size_t at = 0; at + size <= bytes_;) {
    if (at >= first_ && at < first_ + rows * row_bytes && (at - first_) % row_bytes == x * size) {
      at += cols * size;  // a row of the matrix
      continue;
    }
    changed += std::memcmp(begin_ + at, nan, size) != 0;
    at += size;
  }
  return changed;
}

ptx::TensorMap Matrix::Map(int box_rows, int box_cols) const {
  ptx::TensorMap map;
  map.type = static_cast<uint8_t>(MapTypeOf(element));
  map.rank = 2;
  map.swizzle = 3;
  map.element_bytes = static_cast<uint8_t>(BytesOf(element));
  map.address = reinterpret_cast<uint64_t>(begin_ + first_);
  map.dims[0] = x + cols, map.dims[1] = rows;
  map.strides[0] = static_cast<uint64_t>(pitch) * BytesOf(element);
  map.box[0] = box_cols, map.box[1] = box_rows;
  map.element_strides[0] = map.element_strides[1] = 1;
  if (const std::string error = ptx::CheckTensorMap(map); !error.empty())
    throw std::logic_error(error);
  return map;
}

}  // namespace agmm::sm90
