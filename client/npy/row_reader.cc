#include "client/npy/row_reader.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/status.h"

namespace agmm {

absl::Status RowReader::Read(int64_t first, int64_t count, char* out) {
  const int64_t element_bytes = SizeOf(file_.dtype());
  const bool inside = first >= 0 && count <= file_.rows() * file_.cols() - first;
  if (!file_.by_columns() || !inside || file_.cols() * element_bytes > stripe_bytes_)
    return file_.ReadElements(first, count, out);
  while (count > 0) {
    if (first < begin_ || first >= end_) AGMM_RETURN_IF_ERROR(ReadStripe(first / file_.cols()));
    const int64_t take = std::min(count, end_ - first);
    std::memcpy(out, stripe_.data() + (first - begin_) * element_bytes, take * element_bytes);
    first += take, count -= take, out += take * element_bytes;
  }
  return absl::OkStatus();
}

absl::Status RowReader::ReadStripe(int64_t row) {
  const int64_t row_bytes = file_.cols() * SizeOf(file_.dtype());
  const int64_t rows = std::min(stripe_bytes_ / row_bytes, file_.rows() - row);
  stripe_.resize(rows * row_bytes);
  begin_ = row * file_.cols();
  end_ = begin_;
  AGMM_RETURN_IF_ERROR(file_.ReadElements(begin_, rows * file_.cols(), stripe_.data()));
  end_ += rows * file_.cols();
  return absl::OkStatus();
}

}  // namespace agmm
