// Matrices in NumPy's .npy files, or raw, read and written a few rows at a time: a file may be
// larger than memory. Format versions 1.0 and 2.0, little endian, C order, two dimensions; '<f4' is
// f32, '<f2' is f16. Source: the format as NumPy documents it, numpy.lib.format.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/base/dtype.h"

namespace agmm {

// The file that `path` names or will name, links followed. Only regular files are replaced, and
// only those that their owner lets be written. Errors: INVALID_ARGUMENT.
absl::StatusOr<std::string> WritableTarget(const std::string& path);

// Thread-compatible; the file must not change while it is read.
class NpyReader {
 public:
  // Reads the header and checks the size of the file against it.
  // Errors: NOT_FOUND or PERMISSION_DENIED from the system; INVALID_ARGUMENT, one line with the
  // path, for what is no such matrix: truncated, Fortran order, big endian, another dtype, not two
  // dimensions.
  static absl::StatusOr<std::unique_ptr<NpyReader>> Open(const std::string& path);
  // A file of nothing but the elements, which does not say itself what it holds. Errors: as above.
  static absl::StatusOr<std::unique_ptr<NpyReader>> OpenRaw(const std::string& path, int64_t rows,
                                                            int64_t cols, DType dtype);
  ~NpyReader();
  NpyReader(const NpyReader&) = delete;
  NpyReader& operator=(const NpyReader&) = delete;

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  DType dtype() const { return dtype_; }
  int64_t row_bytes() const { return cols_ * SizeOf(dtype_); }

  // Reads rows [begin, begin + count) into `out`, count * row_bytes() bytes without padding.
  // Errors: OUT_OF_RANGE; DATA_LOSS where the file has become shorter.
  absl::Status ReadRows(int64_t begin, int64_t count, void* out) const;
  // The same of elements, counted row-major.
  absl::Status ReadElements(int64_t begin, int64_t count, void* out) const;

 private:
  static absl::StatusOr<std::unique_ptr<NpyReader>> OpenFile(const std::string& path,
                                                             int64_t* file_bytes);
  absl::Status CheckSize(int64_t file_bytes) const;
  NpyReader(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_;
  int64_t data_offset_ = 0, rows_ = 0, cols_ = 0;
  DType dtype_ = DType::kF32;
};

// Writes beside the target and renames on Commit: whoever reads the target sees all of it or the
// file that was there before. Thread-compatible.
class NpyWriter {
 public:
  // Errors: INVALID_ARGUMENT for a dtype that .npy has not (bf16) or an empty matrix; the system's
  // where nothing can be written in the target's directory.
  static absl::StatusOr<std::unique_ptr<NpyWriter>> Create(const std::string& path, int64_t rows,
                                                           int64_t cols, DType dtype);
  // A file of nothing but the elements, of any dtype.
  static absl::StatusOr<std::unique_ptr<NpyWriter>> CreateRaw(const std::string& path, int64_t rows,
                                                              int64_t cols, DType dtype);
  // Removes what was written, unless it was committed.
  ~NpyWriter();
  NpyWriter(const NpyWriter&) = delete;
  NpyWriter& operator=(const NpyWriter&) = delete;

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  DType dtype() const { return dtype_; }
  int64_t row_bytes() const { return cols_ * SizeOf(dtype_); }

  // Writes rows [begin, begin + count), in any order, from count * row_bytes() bytes without
  // padding. Errors: OUT_OF_RANGE; the system's (RESOURCE_EXHAUSTED for a full disk).
  absl::Status WriteRows(int64_t begin, int64_t count, const void* rows);
  // The same of elements, counted row-major.
  absl::Status WriteElements(int64_t begin, int64_t count, const void* elements);

  // Puts the file in place. Once. Errors: FAILED_PRECONDITION while rows are missing; the system's.
  absl::Status Commit();

 private:
  static absl::StatusOr<std::unique_ptr<NpyWriter>> CreateWith(const std::string& preamble,
                                                               const std::string& path,
                                                               int64_t rows, int64_t cols,
                                                               DType dtype);
  NpyWriter(std::string path, std::string temporary, int fd, int64_t rows, int64_t cols,
            DType dtype)
      : path_(std::move(path)),
        temporary_(std::move(temporary)),
        fd_(fd),
        rows_(rows),
        cols_(cols),
        dtype_(dtype) {}
  void MarkWritten(int64_t begin, int64_t end);

  std::string path_, temporary_;
  int fd_;  // -1 once committed
  int64_t rows_, cols_;
  DType dtype_;
  int64_t data_offset_ = 0;
  std::map<int64_t, int64_t>
      written_;  // begin -> end of the elements that were written; disjoint, not adjacent
};

}  // namespace agmm
