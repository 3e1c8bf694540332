#include "kernels/device/rows.h"

#include <cstring>

namespace agmm {

void CopyRows(const Rows& from, const Rows& to) {
  if (from.bytes() == 0) return;
  if (from.dense() && to.dense()) {
    std::memcpy(to.data, from.data, from.bytes());
    return;
  }
  for (int64_t row = 0; row < from.rows; ++row)
    std::memcpy(to.data + row * to.pitch_bytes, from.data + row * from.pitch_bytes, from.row_bytes);
}

}  // namespace agmm
