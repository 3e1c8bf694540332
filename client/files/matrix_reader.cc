#include "client/files/matrix_reader.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

// For a file that is stored by columns: the largest gap between two columns that one read covers,
// and the largest read, unless one column is larger.
constexpr int64_t kColumnGapBytes = 4 << 10, kColumnSpanBytes = 256 << 10;

// Copies `count` elements of `bytes` each to places that are `stride` elements apart.
template <typename Element>
void Scatter(const char* from, int64_t count, int64_t stride, char* to) {
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(to + i * stride * sizeof(Element), from + i * sizeof(Element), sizeof(Element));
}

}  // namespace

absl::Status MatrixReader::ReadStored(int64_t begin, int64_t count, char* out) const {
  const int64_t bytes = count * SizeOf(dtype());
  AGMM_ASSIGN_OR_RETURN(const int64_t got,
                        file_->Read(layout_.data_offset + begin * SizeOf(dtype()), bytes, out));
  if (got == bytes) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("%s has %d bytes where %d are expected; retry when no process is writing it",
                      file_->name(), got, bytes));
}

absl::Status MatrixReader::ReadElements(int64_t begin, int64_t count, void* out) const {
  AGMM_RETURN_IF_ERROR(CheckRange(file_->name(), begin, count, layout_));
  char* const to = static_cast<char*>(out);
  const absl::Status read =
      by_columns() ? ReadByColumns(begin, count, to) : ReadStored(begin, count, to);
  AGMM_RETURN_IF_ERROR(file_->CheckUnchanged());
  return read;
}

absl::Status MatrixReader::ReadByColumns(int64_t begin, int64_t count, char* out) const {
  const int64_t element_bytes = SizeOf(dtype());
  // One read covers the gaps between short columns, because a separate read takes longer than
  // copying a page.
  const int64_t most_gap = kColumnGapBytes / element_bytes,
                most_span = kColumnSpanBytes / element_bytes;
  // `first` is the first element of the range in a column; `place` is its position in the file, and
  // `size` the number of elements of the range in that column.
  const auto place = [&](int64_t first) { return first % cols() * rows() + first / cols(); };
  const auto size = [&](int64_t first) { return (begin + count - 1 - first) / cols() + 1; };
  const auto scatter = element_bytes == 4 ? Scatter<uint32_t> : Scatter<uint16_t>;
  std::vector<char> span;
  const int64_t end = begin + std::min(count, cols());
  for (int64_t first = begin, next; first < end; first = next) {
    const int64_t span_begin = place(first);
    int64_t span_end = span_begin + size(first);
    for (next = first + 1; next < end; ++next) {
      const int64_t at = place(next), gap = at - span_end;
      if (gap < 0 || gap > most_gap || at + size(next) - span_begin > most_span) break;
      span_end = at + size(next);
    }
    span.resize((span_end - span_begin) * element_bytes);
    AGMM_RETURN_IF_ERROR(ReadStored(span_begin, span_end - span_begin, span.data()));
    for (int64_t column = first; column < next; ++column) {
      scatter(span.data() + (place(column) - span_begin) * element_bytes, size(column), cols(),
              out + (column - begin) * element_bytes);
    }
  }
  return absl::OkStatus();
}

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

absl::Status ConvertedReader::Read(int64_t offset_bytes, int64_t size_bytes, char* out) {
  const int64_t first = offset_bytes / SizeOf(to_), count = size_bytes / SizeOf(to_);
  if (from_ == to_) return rows_.Read(first, count, out);
  elements_.resize(count * SizeOf(from_));
  AGMM_RETURN_IF_ERROR(rows_.Read(first, count, elements_.data()));
  ConvertElements(from_, elements_.data(), to_, out, count);
  return absl::OkStatus();
}

void ConvertElements(DType from, const char* elements, DType to, char* out, int64_t count) {
  if (to == DType::kF32) return ConvertToF32(from, elements, reinterpret_cast<float*>(out), count);
  std::vector<float> between(count);
  ConvertToF32(from, elements, between.data(), count);
  ConvertFromF32(to, between.data(), out, count);
}

absl::Status CheckRange(const std::string& path, int64_t begin, int64_t count,
                        const MatrixLayout& layout) {
  const int64_t size = layout.rows * layout.cols;
  if (begin >= 0 && count >= 0 && begin <= size && count <= size - begin) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrFormat(
      "%d elements from number %d are outside the %d of %s", count, begin, size, path));
}

}  // namespace agmm
