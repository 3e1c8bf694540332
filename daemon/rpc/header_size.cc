#include "daemon/rpc/header_size.h"

#include <algorithm>

namespace agmm {
namespace {

constexpr int kMostShift = 28;  // gRPC's integers have 32 bits
constexpr uint64_t kStaticEntries = 61;
constexpr int64_t kTableBytes = 4096;  // gRPC's table, which takes no larger entry
// The shortest Huffman code has 5 bits for 8.
constexpr uint64_t kLongestDecoded = 8, kShortestEncoded = 5;

}  // namespace

bool HeaderSize::Integer::Begin(unsigned char byte, unsigned most) {
  value_ = byte & most;
  shift_ = 0;
  return value_ < most;
}

bool HeaderSize::Integer::Continue(unsigned char byte) {
  if (shift_ <= kMostShift) {
    value_ += uint64_t{byte & 0x7fu} << shift_;
    shift_ += 7;
  }
  return (byte & 0x80) == 0;
}

int64_t HeaderSize::Read(absl::string_view part) {
  auto bytes = static_cast<int64_t>(part.size());
  while (!part.empty()) {
    if (next_ == Next::kName || next_ == Next::kValue) {
      const size_t taken = static_cast<size_t>(std::min<uint64_t>(left_, part.size()));
      left_ -= taken;
      part.remove_prefix(taken);
      if (left_ == 0) next_ = next_ == Next::kName ? Next::kValueLength : Next::kField;
      continue;
    }
    const auto byte = static_cast<unsigned char>(part[0]);
    part.remove_prefix(1);
    if (next_ == Next::kField) {
      bytes += kFieldBytes + OnField(byte);
    } else if (next_ != Next::kIndex) {
      bytes += OnLength(byte);
    } else if (integer_.Continue(byte)) {
      bytes += OnIndex();
    }
  }
  return bytes;
}

int64_t HeaderSize::OnField(unsigned char byte) {
  unsigned most = 0x0f;
  kind_ = Kind::kLiteral;
  if ((byte & 0x80) != 0) {
    most = 0x7f;
    kind_ = Kind::kIndexed;
  } else if ((byte & 0x40) != 0) {
    most = 0x3f;
    kind_ = Kind::kAdded;
  } else if ((byte & 0x20) != 0) {
    most = 0x1f;
    kind_ = Kind::kResize;
  }
  next_ = Next::kIndex;
  return integer_.Begin(byte, most) ? OnIndex() : 0;
}

int64_t HeaderSize::OnIndex() {
  begun_ = false;
  entry_ = 0;
  if (kind_ == Kind::kResize) {
    next_ = Next::kField;
    return 0;
  }
  const int64_t copied = integer_.value() > kStaticEntries ? largest_ : 0;
  if (kind_ == Kind::kIndexed) {
    next_ = Next::kField;
    return copied;
  }
  entry_ = copied;
  next_ = integer_.value() == 0 ? Next::kNameLength : Next::kValueLength;
  return copied;
}

int64_t HeaderSize::OnLength(unsigned char byte) {
  if (!begun_) huffman_ = (byte & 0x80) != 0;
  const bool whole = begun_ ? integer_.Continue(byte) : integer_.Begin(byte, 0x7f);
  begun_ = !whole;
  if (!whole) return 0;
  left_ = integer_.value();
  const uint64_t decoded = huffman_ ? left_ * kLongestDecoded / kShortestEncoded : left_;
  entry_ += static_cast<int64_t>(decoded);
  if (next_ == Next::kNameLength) {
    next_ = left_ > 0 ? Next::kName : Next::kValueLength;
  } else {
    next_ = left_ > 0 ? Next::kValue : Next::kField;
    if (kind_ == Kind::kAdded) largest_ = std::max(largest_, std::min(entry_, kTableBytes));
  }
  return static_cast<int64_t>(decoded - left_);
}

}  // namespace agmm
