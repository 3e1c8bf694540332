// Memory that malloc takes for its blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agmm {

// Memory that malloc takes for a block of `bytes` (glibc on 64 bits: 8 bytes of its own, in units
// of 16, at least 32), so that many small blocks are counted correctly.
constexpr int64_t MallocBytes(size_t bytes) {
  return bytes == 0 ? 0 : static_cast<int64_t>(bytes <= 24 ? 32 : (bytes + 8 + 15) / 16 * 16);
}
template <typename T>
int64_t MallocBytesOf(const std::vector<T>& vector) {
  return MallocBytes(vector.capacity() * sizeof(T));
}

}  // namespace agmm
