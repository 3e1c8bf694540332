// Matrices in NumPy's .npy files or in raw files, read and written in pieces: a file may be larger
// than memory. Format versions 1.0 to 3.0, little endian, C or Fortran order, two dimensions; '<f4'
// is f32, '<f2' is f16. Source: the format as NumPy documents it, numpy.lib.format.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/npy/input_file.h"
#include "client/npy/output_file.h"
#include "kernels/base/dtype.h"

namespace agmm {

// The form of a matrix in a file.
struct NpyLayout {
  int64_t rows = 0, cols = 0;
  DType dtype = DType::kF32;
  int64_t data_offset = 0;  // in the file; 0 without a header
  bool by_columns = false;  // one column after the other: Fortran order
};

// Thread-compatible.
class NpyReader {
 public:
  // Reads the header and checks the size of the file against it; "-" is standard input. Errors:
  // those of InputFile; INVALID_ARGUMENT, one line with the path, for a file that is not such a
  // matrix: truncated, big endian, another dtype, not two dimensions, empty.
  static absl::StatusOr<std::unique_ptr<NpyReader>> Open(const std::string& path);
  // Opens a file of elements only, without a header. Errors: those of Open.
  static absl::StatusOr<std::unique_ptr<NpyReader>> OpenRaw(const std::string& path, int64_t rows,
                                                            int64_t cols, DType dtype);

  // The name of the file in errors.
  const std::string& name() const { return file_->name(); }
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
  NpyReader(std::unique_ptr<InputFile> file, const NpyLayout& layout)
      : file_(std::move(file)), layout_(layout) {}
  static absl::StatusOr<std::unique_ptr<NpyReader>> Checked(std::unique_ptr<InputFile> file,
                                                            const NpyLayout& layout);
  // Elements [begin, begin + count) in the order of the file.
  absl::Status ReadStored(int64_t begin, int64_t count, char* out) const;
  // Like ReadElements, for a file that is stored by columns.
  absl::Status ReadByColumns(int64_t begin, int64_t count, char* out) const;

  const std::unique_ptr<InputFile> file_;
  const NpyLayout layout_;
};

// Reads a file in the order of its rows. Transposes a file that is stored by columns one stripe of
// rows at a time, because reading a few rows of it touches every page. Thread-compatible.
class RowReader {
 public:
  // A stripe takes at most `stripe_bytes` of memory. Rows that are larger are read without stripes.
  // `file` outlives this object.
  explicit RowReader(const NpyReader& file, int64_t stripe_bytes = 32 << 20)
      : file_(file), stripe_bytes_(stripe_bytes) {}

  // Like NpyReader::ReadElements; fast for consecutive ranges.
  absl::Status Read(int64_t first, int64_t count, char* out);

 private:
  absl::Status ReadStripe(int64_t row);

  const NpyReader& file_;
  const int64_t stripe_bytes_;
  std::vector<char> stripe_;
  int64_t begin_ = 0, end_ = 0;  // the elements in it
};

// Thread-compatible. A reader of the target sees the whole matrix or the file that was there
// before, see OutputFile.
class NpyWriter {
 public:
  // A `raw` file has elements only, of any dtype. Errors: those of OutputFile; INVALID_ARGUMENT for
  // a dtype that .npy does not have (bf16) or an empty matrix.
  static absl::StatusOr<std::unique_ptr<NpyWriter>> Create(const std::string& path, int64_t rows,
                                                           int64_t cols, DType dtype,
                                                           bool raw = false);

  int64_t rows() const { return layout_.rows; }
  int64_t cols() const { return layout_.cols; }
  DType dtype() const { return layout_.dtype; }
  // The number of written elements that are infinite or not a number.
  int64_t non_finite() const { return non_finite_; }

  // Writes the next `count` elements, row-major without padding. Errors: OUT_OF_RANGE past the end;
  // those of OutputFile.
  absl::Status Append(int64_t count, const void* elements);

  // Puts the file in place, once. Errors: FAILED_PRECONDITION while elements are missing; those of
  // OutputFile.
  absl::Status Commit();

 private:
  NpyWriter(std::string path, std::unique_ptr<OutputFile> file, const NpyLayout& layout)
      : path_(std::move(path)), file_(std::move(file)), layout_(layout) {}

  const std::string path_;
  const std::unique_ptr<OutputFile> file_;
  const NpyLayout layout_;
  int64_t written_ = 0;  // elements
  int64_t non_finite_ = 0;
};

// ---- The header: a Python dict literal, read as JSON ----

// The most bytes before the data: a prefix of 12 bytes and the dict. NumPy's own headers of
// matrices have 128 in all.
inline constexpr int64_t kMaxNpyHeaderBytes = 12 + (64 << 10);

// Parses the header of a file from its first kMaxNpyHeaderBytes, or all of a shorter one. Errors:
// INVALID_ARGUMENT saying why the matrix cannot be read, and how to convert it.
absl::StatusOr<NpyLayout> ParseNpyHeader(absl::string_view file);

// The bytes before the data; their number is a multiple of 64.
std::string NpyPreamble(int64_t rows, int64_t cols, DType dtype);

}  // namespace agmm
