// Matrices in files, read in pieces by rows: a file may be larger than memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/files/input_file.h"
#include "kernels/base/dtype.h"

namespace agmm {

// The form of a matrix in a file.
struct MatrixLayout {
  int64_t rows = 0, cols = 0;
  DType dtype = DType::kF32;
  int64_t data_offset = 0;  // in the file, in bytes
  bool by_columns = false;  // one column after the other: Fortran order
};

// Thread-compatible.
class MatrixReader {
 public:
  // The caller has checked that the file holds the matrix, whose bytes fit in 63 bits.
  MatrixReader(std::shared_ptr<const InputFile> file, const MatrixLayout& layout)
      : file_(std::move(file)), layout_(layout) {}

  // The name of the file in errors.
  const std::string& name() const { return file_->name(); }
  const std::shared_ptr<const InputFile>& file() const { return file_; }
  const MatrixLayout& layout() const { return layout_; }
  int64_t rows() const { return layout_.rows; }
  int64_t cols() const { return layout_.cols; }
  DType dtype() const { return layout_.dtype; }
  // True if the file holds one column after the other (Fortran order), so that a few elements of a
  // row are scattered over all of it.
  bool by_columns() const { return layout_.by_columns; }

  // Reads elements [begin, begin + count), counted row-major. Errors: OUT_OF_RANGE; those of
  // InputFile: DATA_LOSS if the file has changed.
  absl::Status ReadElements(int64_t begin, int64_t count, void* out) const;

 private:
  // Elements [begin, begin + count) in the order of the file.
  absl::Status ReadStored(int64_t begin, int64_t count, char* out) const;
  // Like ReadElements, for a file that is stored by columns.
  absl::Status ReadByColumns(int64_t begin, int64_t count, char* out) const;

  const std::shared_ptr<const InputFile> file_;
  const MatrixLayout layout_;
};

// Reads a file in the order of its rows. Transposes a file that is stored by columns one stripe of
// rows at a time, because reading a few rows of it touches every page. Thread-compatible.
class RowReader {
 public:
  // A stripe takes at most `stripe_bytes` of memory. Rows that are larger are read without stripes.
  // `file` outlives this object.
  explicit RowReader(const MatrixReader& file, int64_t stripe_bytes = 32 << 20)
      : file_(file), stripe_bytes_(stripe_bytes) {}

  // Like MatrixReader::ReadElements; fast for consecutive ranges.
  absl::Status Read(int64_t first, int64_t count, char* out);

 private:
  absl::Status ReadStripe(int64_t row);

  const MatrixReader& file_;
  const int64_t stripe_bytes_;
  std::vector<char> stripe_;
  int64_t begin_ = 0, end_ = 0;  // the elements in it
};

// Reads a file in the order of its rows, as elements of another dtype. Thread-compatible.
class ConvertedReader {
 public:
  // `file` outlives this object.
  ConvertedReader(const MatrixReader& file, DType dtype)
      : rows_(file), from_(file.dtype()), to_(dtype) {}

  // Reads bytes [offset_bytes, offset_bytes + size_bytes) of the converted matrix, whole elements.
  absl::Status Read(int64_t offset_bytes, int64_t size_bytes, char* out);

 private:
  RowReader rows_;
  const DType from_, to_;
  std::vector<char> elements_;
};

// Converts `count` elements to another dtype, by way of f32.
void ConvertElements(DType from, const char* elements, DType to, char* out, int64_t count);

// Errors: OUT_OF_RANGE, with the file's name, if elements [begin, begin + count) are not all in
// the matrix.
absl::Status CheckRange(const std::string& path, int64_t begin, int64_t count,
                        const MatrixLayout& layout);

}  // namespace agmm
