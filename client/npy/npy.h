// Matrices in NumPy's .npy files or in raw files, read and written in pieces: a file may be larger
// than memory. Format versions 1.0 and 2.0, little endian, C order, two dimensions; '<f4' is f32,
// '<f2' is f16. Source: the format as NumPy documents it, numpy.lib.format.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/npy/npy_header.h"
#include "kernels/base/dtype.h"

namespace agmm {

// Returns the file that writing `path` creates or replaces, with links resolved. Only regular files
// with write permission are replaced. Errors: INVALID_ARGUMENT.
absl::StatusOr<std::string> WritableTarget(const std::string& path);

// Thread-compatible; the file must not change while it is read.
class NpyReader {
 public:
  // Reads the header and checks the size of the file against it. Errors: INVALID_ARGUMENT, one line
  // with the path, for a file that cannot be opened or is not such a matrix: truncated, Fortran
  // order, big endian, another dtype, not two dimensions.
  static absl::StatusOr<std::unique_ptr<NpyReader>> Open(const std::string& path);
  // Opens a file of elements only, without a header. Errors: those of Open.
  static absl::StatusOr<std::unique_ptr<NpyReader>> OpenRaw(const std::string& path, int64_t rows,
                                                            int64_t cols, DType dtype);
  ~NpyReader();
  NpyReader(const NpyReader&) = delete;
  NpyReader& operator=(const NpyReader&) = delete;

  int64_t rows() const { return layout_.rows; }
  int64_t cols() const { return layout_.cols; }
  DType dtype() const { return layout_.dtype; }

  // Reads elements [begin, begin + count), counted row-major. Errors: OUT_OF_RANGE; DATA_LOSS if
  // the file has become shorter.
  absl::Status ReadElements(int64_t begin, int64_t count, void* out) const;

 private:
  NpyReader(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  static absl::StatusOr<std::unique_ptr<NpyReader>> OpenFile(const std::string& path);
  absl::Status CheckSize() const;

  const std::string path_;
  const int fd_;
  int64_t file_bytes_ = 0;
  NpyLayout layout_;
};

// Writes a temporary file and renames it in Commit, so that a reader of the target sees all of it
// or the file that was there before. Thread-compatible.
class NpyWriter {
 public:
  // A `raw` file has elements only, of any dtype. Errors: INVALID_ARGUMENT for a dtype that .npy
  // does not have (bf16), an empty matrix, or a target that cannot be written.
  static absl::StatusOr<std::unique_ptr<NpyWriter>> Create(const std::string& path, int64_t rows,
                                                           int64_t cols, DType dtype,
                                                           bool raw = false);
  // Removes the temporary file unless it was committed.
  ~NpyWriter();
  NpyWriter(const NpyWriter&) = delete;
  NpyWriter& operator=(const NpyWriter&) = delete;

  int64_t rows() const { return layout_.rows; }
  int64_t cols() const { return layout_.cols; }
  DType dtype() const { return layout_.dtype; }

  // Writes the next `count` elements, row-major without padding. Errors: OUT_OF_RANGE past the end;
  // the system's (RESOURCE_EXHAUSTED for a full disk).
  absl::Status Append(int64_t count, const void* elements);

  // Puts the file in place, once. Errors: FAILED_PRECONDITION while elements are missing; the
  // system's.
  absl::Status Commit();

 private:
  NpyWriter(std::string path, std::string temporary, std::FILE* file, const NpyLayout& layout)
      : path_(std::move(path)), temporary_(std::move(temporary)), file_(file), layout_(layout) {}

  const std::string path_, temporary_;
  std::FILE* file_;  // null once committed
  const NpyLayout layout_;
  int64_t written_ = 0;  // elements
};

}  // namespace agmm
