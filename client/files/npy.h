// Matrices in NumPy's .npy files or in raw files, read and written in pieces: a file may be larger
// than memory. Format versions 1.0 to 3.0, little endian, C or Fortran order, two dimensions; '<f4'
// is f32, '<f2' is f16. Source: the format as NumPy documents it, numpy.lib.format.
#pragma once

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/files/matrix_reader.h"
#include "client/files/output_file.h"
#include "kernels/base/dtype.h"

namespace agmm {

// Reads the header, and checks it and then the size of the file; "-" is standard input. `stop` as
// in InputFile. Errors: those of InputFile; INVALID_ARGUMENT, one line with the path, for a file
// that is not such a matrix: truncated, big endian, another dtype, not two dimensions, empty.
absl::StatusOr<std::unique_ptr<MatrixReader>> OpenNpy(const std::string& path,
                                                      std::stop_token stop = {});
// Opens a file of elements only, without a header. Errors: those of OpenNpy.
absl::StatusOr<std::unique_ptr<MatrixReader>> OpenRaw(const std::string& path, int64_t rows,
                                                      int64_t cols, DType dtype);

// The dtype of the .npy file for a tensor: f32 for bf16, because .npy has no bf16 and f32 holds it
// exactly.
DType FileDType(DType dtype);

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
  NpyWriter(std::string path, std::unique_ptr<OutputFile> file, const MatrixLayout& layout)
      : path_(std::move(path)), file_(std::move(file)), layout_(layout) {}

  const std::string path_;
  const std::unique_ptr<OutputFile> file_;
  const MatrixLayout layout_;
  int64_t written_ = 0;  // elements
  int64_t non_finite_ = 0;
};

// ---- The header: a Python dict literal, read as JSON ----

// The most bytes before the data: a prefix of 12 bytes and the dict. NumPy's own headers of
// matrices have 128 in all.
inline constexpr int64_t kMaxNpyHeaderBytes = 12 + (64 << 10);

// The first bytes of a file that show the size of its header.
inline constexpr int64_t kNpyPrefixBytes = 12;
// Returns the bytes before the data, from at least kNpyPrefixBytes of the file, or all of a shorter
// one. Errors: INVALID_ARGUMENT.
absl::StatusOr<int64_t> NpyHeaderBytes(absl::string_view file);

// Parses the header of a file, of which at least kNpyPrefixBytes and NpyHeaderBytes are given, or
// all. Errors:
// INVALID_ARGUMENT saying why the matrix cannot be read, and how to convert it.
absl::StatusOr<MatrixLayout> ParseNpyHeader(absl::string_view file);

// The bytes before the data; their number is a multiple of 64.
std::string NpyPreamble(int64_t rows, int64_t cols, DType dtype);

}  // namespace agmm
