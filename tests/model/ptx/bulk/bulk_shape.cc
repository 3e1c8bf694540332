// The bytes that a bulk copy moves.
#include <algorithm>
#include <cstring>

#include "tests/model/ptx/bulk/bulk.h"

namespace ptx {
namespace {

constexpr uint32_t kRangePieceBytes = 512;

}  // namespace

BulkShape BulkShape::Range(uint64_t global, uint32_t bytes) {
  BulkShape shape;
  shape.global_ = global;
  shape.bytes_ = bytes;
  shape.line_bytes_ = kRangePieceBytes;
  shape.pieces_ = (bytes + kRangePieceBytes - 1) / kRangePieceBytes;
  return shape;
}

BulkShape BulkShape::Box(const TensorMap& map, const std::array<int32_t, 5>& coordinates) {
  BulkShape shape;
  shape.map_ = map;
  shape.coordinates_ = coordinates;
  shape.line_bytes_ = map.box[0] * map.element_bytes;
  shape.pieces_ = 1;
  for (int i = 1; i < map.rank; ++i) shape.pieces_ *= map.box[i];
  shape.bytes_ = shape.line_bytes_ * shape.pieces_;
  return shape;
}

BulkPiece BulkShape::Piece(uint32_t index) const {
  BulkPiece piece{.offset = index * line_bytes_, .bytes = line_bytes_};
  if (map_.rank == 0) {
    piece.bytes = piece.count = std::min(line_bytes_, bytes_ - piece.offset);
    piece.global = global_ + piece.offset;
    return piece;
  }
  piece.global = map_.address;
  for (int i = 1; i < map_.rank; ++i) {
    const int64_t coordinate = int64_t{coordinates_[i]} + index % map_.box[i];
    index /= map_.box[i];
    if (coordinate < 0 || coordinate >= static_cast<int64_t>(map_.dims[i])) return piece;
    piece.global += coordinate * map_.strides[i - 1];
  }
  const int64_t begin = coordinates_[0], end = begin + map_.box[0];
  const int64_t first = std::max<int64_t>(begin, 0);
  const int64_t last = std::min<int64_t>(end, static_cast<int64_t>(map_.dims[0]));
  if (first >= last) return piece;
  piece.first = static_cast<uint32_t>(first - begin) * map_.element_bytes;
  piece.count = static_cast<uint32_t>(last - first) * map_.element_bytes;
  piece.global += first * map_.element_bytes;
  return piece;
}

void BulkShape::Fill(std::byte* to, uint32_t bytes) const {
  std::memset(to, 0, bytes);
  if (map_.fill == 0) return;
  // The NaN of PTX: all bits ones, except the sign.
  const int size = map_.element_bytes;
  std::memset(to, 0xff, bytes);
  for (uint32_t at = size - 1; at < bytes; at += size) to[at] = std::byte{0x7f};
}

}  // namespace ptx
