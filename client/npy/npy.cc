#include "client/npy/npy.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

// For a file that is stored by columns: the largest gap between two columns that one read covers,
// and the largest read, unless one column is larger.
constexpr int64_t kColumnGapBytes = 4 << 10, kColumnSpanBytes = 256 << 10;

absl::Status CheckNotEmpty(const std::string& path, int64_t rows, int64_t cols) {
  if (rows >= 1 && cols >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: a matrix of %d x %d is empty", path, rows, cols));
}

absl::Status CheckRange(const std::string& path, int64_t begin, int64_t count,
                        const NpyLayout& layout) {
  const int64_t size = layout.rows * layout.cols;
  if (begin >= 0 && count >= 0 && begin <= size && count <= size - begin) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrFormat(
      "%d elements from number %d are outside the %d of %s", count, begin, size, path));
}

// Copies `count` elements of `bytes` each to places that are `stride` elements apart.
template <typename Element>
void Scatter(const char* from, int64_t count, int64_t stride, char* to) {
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(to + i * stride * sizeof(Element), from + i * sizeof(Element), sizeof(Element));
}

// The number of elements that have all bits of the exponent `mask` set.
template <typename Bits>
int64_t CountWith(Bits mask, const void* elements, int64_t count) {
  const auto* const bytes = static_cast<const char*>(elements);
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, bytes + i * sizeof(Bits), sizeof(Bits));
    found += (bits & mask) == mask;
  }
  return found;
}

int64_t CountNonFinite(DType dtype, const void* elements, int64_t count) {
  const uint32_t mask = TraitsOf(dtype).infinity_bits;
  return SizeOf(dtype) == 4 ? CountWith<uint32_t>(mask, elements, count)
                            : CountWith<uint16_t>(mask, elements, count);
}

}  // namespace

absl::StatusOr<std::unique_ptr<NpyReader>> NpyReader::Open(const std::string& path) {
  AGMM_ASSIGN_OR_RETURN(std::unique_ptr<InputFile> file, InputFile::Open(path));
  AGMM_ASSIGN_OR_RETURN(const int64_t size, file->SizeUpTo(kMaxNpyHeaderBytes));
  std::string text(std::min(size, kMaxNpyHeaderBytes), '\0');
  AGMM_ASSIGN_OR_RETURN(const int64_t got,
                        file->Read(0, static_cast<int64_t>(text.size()), text.data()));
  const auto layout = ParseNpyHeader(absl::string_view(text).substr(0, got));
  if (!layout.ok()) return Annotate(layout.status(), file->name());
  return Checked(std::move(file), *layout);
}

absl::StatusOr<std::unique_ptr<NpyReader>> NpyReader::OpenRaw(const std::string& path, int64_t rows,
                                                              int64_t cols, DType dtype) {
  AGMM_RETURN_IF_ERROR(CheckNotEmpty(path, rows, cols));
  AGMM_ASSIGN_OR_RETURN(std::unique_ptr<InputFile> file, InputFile::Open(path));
  return Checked(std::move(file), {rows, cols, dtype});
}

absl::StatusOr<std::unique_ptr<NpyReader>> NpyReader::Checked(std::unique_ptr<InputFile> file,
                                                              const NpyLayout& layout) {
  const int64_t element_bytes = SizeOf(layout.dtype);
  // Computed in f64, because the product of hostile sizes may overflow.
  const double needed = static_cast<double>(layout.rows) * layout.cols * element_bytes;
  constexpr double kMost = 0x1p62;
  const int64_t most = needed > kMost
                           ? INT64_MAX
                           : layout.data_offset + layout.rows * layout.cols * element_bytes + 1;
  // One more byte shows that bytes are left over.
  AGMM_ASSIGN_OR_RETURN(const int64_t size, file->SizeUpTo(most));
  if (size == most - 1) return std::unique_ptr<NpyReader>(new NpyReader(std::move(file), layout));
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: %s: %d x %d %s take %.0f bytes%s, %d were found", file->name(),
      size < most ? "truncated" : "bytes are left over", layout.rows, layout.cols,
      Name(layout.dtype), needed, layout.data_offset == 0 ? "" : " after the header",
      size - layout.data_offset));
}

absl::Status NpyReader::ReadStored(int64_t begin, int64_t count, char* out) const {
  const int64_t bytes = count * SizeOf(dtype());
  AGMM_ASSIGN_OR_RETURN(const int64_t got,
                        file_->Read(layout_.data_offset + begin * SizeOf(dtype()), bytes, out));
  if (got == bytes) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("%s has %d bytes where %d are expected", file_->name(), got, bytes));
}

absl::Status NpyReader::ReadElements(int64_t begin, int64_t count, void* out) const {
  AGMM_RETURN_IF_ERROR(CheckRange(file_->name(), begin, count, layout_));
  char* const to = static_cast<char*>(out);
  const absl::Status read =
      by_columns() ? ReadByColumns(begin, count, to) : ReadStored(begin, count, to);
  AGMM_RETURN_IF_ERROR(file_->CheckUnchanged());
  return read;
}

absl::Status NpyReader::ReadByColumns(int64_t begin, int64_t count, char* out) const {
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

absl::StatusOr<std::unique_ptr<NpyWriter>> NpyWriter::Create(const std::string& path, int64_t rows,
                                                             int64_t cols, DType dtype, bool raw) {
  if (dtype == DType::kBF16 && !raw) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: .npy files have no bf16; write f32, which holds every bf16", path));
  }
  AGMM_RETURN_IF_ERROR(CheckNotEmpty(path, rows, cols));
  AGMM_ASSIGN_OR_RETURN(std::unique_ptr<OutputFile> file, OutputFile::Create(path));
  if (!raw) AGMM_RETURN_IF_ERROR(file->Write(NpyPreamble(rows, cols, dtype)));
  return std::unique_ptr<NpyWriter>(new NpyWriter(path, std::move(file), {rows, cols, dtype}));
}

absl::Status NpyWriter::Append(int64_t count, const void* elements) {
  if (file_->committed()) return absl::FailedPreconditionError(path_ + " has been committed");
  AGMM_RETURN_IF_ERROR(CheckRange(path_, written_, count, layout_));
  const auto bytes = static_cast<size_t>(count * SizeOf(dtype()));
  AGMM_RETURN_IF_ERROR(file_->Write({static_cast<const char*>(elements), bytes}));
  written_ += count;
  non_finite_ += CountNonFinite(dtype(), elements, count);
  return absl::OkStatus();
}

absl::Status NpyWriter::Commit() {
  if (file_->committed()) return absl::FailedPreconditionError(path_ + " has been committed");
  if (const int64_t size = rows() * cols(); written_ != size) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: %d of %s were written", path_, written_, Counted(size, "element")));
  }
  return file_->Commit();
}

}  // namespace agmm
